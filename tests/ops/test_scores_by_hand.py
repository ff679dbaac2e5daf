"""Scores of `more eval`, computed again with plain transformers as `docs/research/suites.md` says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from support.helpers import LEARNING, QUESTION, World, line, run

OTHER = {"image": "img/green.png", "question": "is it a cup ?"}
TURNS = [{"role": "user", "content": "is it a cup ?"}, {"role": "assistant", "content": "no"}]


class Plain:
    """A checkpoint as transformers loads it."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()
        self.images = images
        self.end: int = self.processor.tokenizer.eos_token_id

    def prompt(self, asked: dict[str, Any], images: Sequence[str]) -> dict[str, Any]:
        parts = [{"type": "image"} for _ in images] + [{"type": "text", "text": asked["question"]}]
        said = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in asked.get("messages", [])]
        chat = [*said, {"role": "user", "content": parts}]
        text = self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        pictures = [Image.open(self.images / name).convert("RGB") for name in images]
        return dict(self.processor(text=[text], images=pictures or None, return_tensors="pt"))

    def answer(self, prompt: dict[str, Any], most: int) -> list[int]:
        with torch.no_grad():
            ids = self.model.generate(**prompt, do_sample=False, max_new_tokens=most)[0].tolist()
        said = ids[prompt["input_ids"].shape[1] :]
        return said[: said.index(self.end) + 1] if self.end in said else said

    def log_probabilities(self, prompt: dict[str, Any], answer: Sequence[int]) -> Tensor:
        """Return those at the positions that predict the answer's tokens."""
        ids = torch.cat([prompt["input_ids"], torch.tensor([answer])], dim=1)
        with torch.no_grad():
            logits = self.model(**prompt | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits[0]
        return logits[-len(answer) - 1 : -1].double().log_softmax(dim=-1)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.processor.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def of_target(model: Plain, asked: dict[str, Any], images: Sequence[str], target: str) -> dict[str, float]:
    prompt = model.prompt(asked, images)
    ids = [*model.processor.tokenizer(f" {target}", add_special_tokens=False)["input_ids"], model.end]
    said, found = model.answer(prompt, len(ids) + 8), model.log_probabilities(prompt, ids)
    right = [int(best) == token for best, token in zip(found.argmax(dim=-1), ids, strict=True)]
    return {
        "tf_exact": float(all(right)),
        "tf_token_acc": sum(right) / len(right),
        "target_nll": -float(found[range(len(ids)), ids].mean()),
        "gen_exact": float(model.text(said) == target),
        "gen_stops": float(model.end in said),
    }


def of_locality(edited: Plain, base: Plain, asked: dict[str, Any], images: Sequence[str]) -> dict[str, float]:
    prompt = base.prompt(asked, images)
    said, now = base.answer(prompt, 32), edited.answer(prompt, 32)
    after, before = (model.log_probabilities(prompt, said) for model in (edited, base))
    return {
        "loc_top1_answer": float((after.argmax(dim=-1) == before.argmax(dim=-1)).double().mean()),
        "loc_expkl_answer": float((-(after.exp() * (after - before)).sum(dim=-1)).exp().mean()),
        "loc_gen_same": float(edited.text(now) == base.text(said)),
    }


def by_hand(edited: Plain, base: Plain, edit: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    own, target = [edit["image"]] if isinstance(edit["image"], str) else edit["image"], edit["target"].strip()
    yield "rel", of_target(edited, edit, own, target)
    for words in edit.get("rephrases", []):
        yield "gen_text", of_target(edited, edit | {"question": words}, own, target)
    for other in edit.get("image_rephrases", []):  # in place of all pictures of the question
        yield "gen_image", of_target(edited, edit, [other], target)
    for asked in edit.get("locality", []):
        images = [asked["image"]] if "image" in asked else []
        yield "loc_image" if images else "loc_text", of_locality(edited, base, asked, images)


def test_every_score_is_that_of_plain_transformers_on_the_merged_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path)
    edits = [
        line(0, rephrases=["which colour is it ?"], image_rephrases=["img/green.png"], locality=[OTHER]),
        line(1, image=["img/red.png", "img/green.png"], image_rephrases=["img/black.png"]),
        line(2, target=" a cup \n", messages=TURNS, locality=[{"question": QUESTION, "answer": "r"}]),
    ]
    world.write(edits)
    assert run("init", world.model, "--no-anchors", *LEARNING).code == 0
    done = world.edit()
    assert done.code in (0, 3), done.err
    assert run("merge", world.model, "-o", tmp_path / "out").code == 0
    scores = run("eval", world.model, "--json").json["per_edit"]
    base, edited = Plain(world.model, tmp_path), Plain(tmp_path / "out", tmp_path)
    for edit, one in zip(edits, scores, strict=True):
        expected: dict[str, list[float]] = {}
        for kind, values in by_hand(edited, base, edit):
            for name, value in values.items():
                expected.setdefault(f"{kind}.{name}", []).append(value)
        found = {name: one["values"][name] for name in expected}
        assert found == pytest.approx({name: pytest.approx(values, abs=1e-4) for name, values in expected.items()})
