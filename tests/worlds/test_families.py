"""Trained models of the other families: complete, small, as accurate as their cards say, trained as they are used."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from transformers import AutoModelForImageTextToText

from more_cli.model.processors import load_processor
from support.paths import DATA
from worlds.embedded import families, speech, transformer
from worlds.embedded.draw import with_pictures
from worlds.embedded.world.facts import facts
from worlds.embedded.world.language import ask, kinds_for
from worlds.embedded.world.phrases import CAPTION_PROMPT
from worlds.embedded.world.pictures import Picture
from worlds.embedded.world.pools import Dice, Pool, Purpose
from worlds.embedded.world.scenes import scene

SUITES = DATA / "suites"
FAMILIES = ("blip2_opt", "qwen2_vl", "qwen3_vl")
SAMPLE_SCENES = 24
TOLERANCE = 3.0  # standard errors of the sample's accuracy


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str) -> Any:
    loaded, info = AutoModelForImageTextToText.from_pretrained(
        DATA / family, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return loaded.eval()


@pytest.fixture(scope="module")
def processor(family: str) -> Any:
    return load_processor(DATA / family)


def prompt(processor: Any, question: str, image: bool) -> str:
    if not processor.chat_template:
        return f"Question: {question} Answer:"
    parts = [{"type": "image"}] if image else []
    message = {"role": "user", "content": [*parts, {"type": "text", "text": question}]}
    return str(processor.apply_chat_template([message], add_generation_prompt=True))


@torch.no_grad()
def answers(model: Any, processor: Any, asked: list[tuple[Any, str]]) -> list[str]:
    """Greedy answers to questions, all of them about a picture or all about none."""
    tokenizer = processor.tokenizer
    pictured = asked[0][0] is not None
    texts = [prompt(processor, question, pictured) for _, question in asked]
    if pictured:
        images = [image for image, _ in asked]
        inputs, speaker = processor(images=images, text=texts, padding=True, return_tensors="pt"), model
    else:
        # Only BLIP-2 needs its language model for that, and only it has one by this name.
        inputs, speaker = tokenizer(texts, padding=True, return_tensors="pt"), getattr(model, "language_model", model)
    out = speaker.generate(**inputs, max_new_tokens=24, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    return [tokenizer.decode(row, skip_special_tokens=True).strip() for row in out]


def card(family: str) -> dict[str, float]:
    """Accuracy in percent per kind of question, as the model card states it."""
    text = (DATA / family / "README.md").read_text(encoding="utf-8")
    return {kind: float(value) for kind, value in re.findall(r"^\| ([^|]+) \| ([0-9.]+) \|", text, re.MULTILINE)}


def held_out(scenes: int) -> list[tuple[Any, str, str]]:
    found = []
    for index in range(scenes):
        about, dice = scene(Pool.SCORE, index), Dice(Purpose.QUESTIONS, Pool.SCORE, index)
        picture = Image.fromarray(Picture(about).pixels)
        for kind in kinds_for(about):
            question = ask(about, kind, dice)
            if question is not None:
                text = CAPTION_PROMPT if kind == "caption" else question.trained(index)
                found.append((picture, text, question.answer))
    return found


def test_a_checkpoint_is_small_and_deep_enough(family: str, model: Any) -> None:
    assert 2_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 3_000_000
    assert (DATA / family / "model.safetensors").stat().st_size <= 6 * 2**20
    assert model.config.get_text_config().num_hidden_layers >= 8
    with safe_open(DATA / family / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118


def test_accuracy_is_what_the_card_says(family: str, model: Any, processor: Any) -> None:
    asked = held_out(SAMPLE_SCENES)
    said: list[str] = []
    for start in range(0, len(asked), 48):
        said += answers(model, processor, [item[:2] for item in asked[start : start + 48]])
    right = [answer == truth for answer, (_, _, truth) in zip(said, asked, strict=True)]
    stated = card(family)["overall"] / 100
    spread = math.sqrt(stated * (1 - stated) / len(right))
    assert abs(sum(right) / len(right) - stated) <= TOLERANCE * spread


def test_facts_are_known_from_text_alone(family: str, model: Any, processor: Any) -> None:
    known = facts()[::4]
    said = answers(model, processor, [(None, fact.trained(0)) for fact in known])
    right = sum(answer == fact.answer for answer, fact in zip(said, known, strict=True))
    assert right >= len(known) - 1 - len(known) * (1 - card(family)["fact"] / 100)


def test_suite_records_say_what_the_model_says(family: str, model: Any, processor: Any) -> None:
    folder = with_pictures(SUITES / family / "e-vqa-mini")
    text = (folder / "eval.json").read_text(encoding="utf-8")
    records = json.loads(text)
    assert text == json.dumps(records, indent=1) + "\n"
    sample = records[:: len(records) // 16]
    for image, question, answer in (("image", "src", "pred"), ("m_loc", "m_loc_q", "m_loc_a")):
        asked = [(Image.open(folder / record[image]).convert("RGB"), record[question]) for record in sample]
        assert answers(model, processor, asked) == [record[answer] for record in sample]
    anchors = [json.loads(line) for line in (folder / "anchors.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(anchors) == 128
    pictured = [line for line in anchors if "image" in line][::8]
    asked = [(Image.open(folder / line["image"]).convert("RGB"), line["question"]) for line in pictured]
    assert answers(model, processor, asked) == [line["answer"] for line in pictured]


def test_training_sees_what_the_library_computes(
    family: str, model: Any, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(transformer, "PRECISION", torch.float32)
    record = families.FAMILIES[family]
    writer = speech.Writer(record, processor.tokenizer, model)
    data = speech.batch(writer, 0, speech.LED)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        logits = model.get_output_embeddings()(speech.Learner(model, record, None).spoken(data)[0].last)
    for row in (0, 1, speech.LED.pictures):  # two with a picture, one of text alone
        pixels = data.pixels[row : row + 1] if row < speech.LED.pictures else None
        ends = (data.labels[row] == processor.tokenizer.eos_token_id).nonzero().flatten().tolist()
        for end in (ends[0], ends[-1]):
            seen = (data.mask[row, 0, end] == 0).nonzero().flatten()
            ids = data.ids[row, seen][None]
            extra = {} if pixels is None else record.inputs(model, ids, pixels)
            speaker = record.alone(model) if pixels is None else model
            with torch.no_grad():
                alone = speaker(input_ids=ids, attention_mask=torch.ones_like(ids), **extra).logits[0]
            torch.testing.assert_close(logits[row, seen], alone, atol=1e-4, rtol=1e-4)
