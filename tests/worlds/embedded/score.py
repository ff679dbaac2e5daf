"""Accuracy of an embedded model per kind of question: greedy answers that are exact, with the end token."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from .families import FAMILIES
from .family import Family
from .perception import pixels
from .world.episodes import KINDS, episode, episode_dice
from .world.facts import facts
from .world.language import ask, kinds_for
from .world.phrases import CAPTION_PROMPT, PICTURE_KINDS
from .world.pools import Dice, Pool, Purpose
from .world.scenes import Scene, scene

BATCH = 64
MAX_ANSWER = 24  # tokens


@dataclass(frozen=True)
class Probe:
    """A question to score; `shown` is its scene, drawn in this variant, or None for text alone."""

    group: str
    prompt: str
    answer: str
    shown: Scene | None = None
    variant: int = 0


def probes(scenes: int, pool: Pool = Pool.SCORE) -> Iterator[Probe]:
    """For each of the first `scenes` scenes one question of every suitable kind, in a trained and an unseen wording."""
    for index in range(scenes):
        about, dice = scene(pool, index), Dice(Purpose.QUESTIONS, pool, index)
        for kind in kinds_for(about):
            question = ask(about, kind, dice)
            if question is None:
                continue
            prompt = CAPTION_PROMPT if kind == "caption" else question.trained(index)
            yield Probe(kind, prompt, question.answer, about)
            yield Probe(f"{kind}, unseen wording", question.unseen(index), question.answer, about)
        for number, kind in enumerate(KINDS):
            item = episode(episode_dice(pool, index * 3 + number), pool, kind, about if index % 2 else None)
            yield Probe(f"episode {kind}", item.prompt, item.answer, about if index % 2 else None)
    for fact in facts():
        for number in range(5):
            yield Probe("fact", fact.trained(number), fact.answer)
        for number in range(2):
            yield Probe("fact, unseen wording", fact.unseen(number), fact.answer)


def decoded(tokenizer: PreTrainedTokenizerFast, rows: Tensor) -> list[str]:
    """Generated token ids (N, T) as text; an answer without an end token gets a trailing ellipsis."""
    said = []
    for row in rows.tolist():
        ended = tokenizer.eos_token_id in row
        kept = row[: row.index(tokenizer.eos_token_id)] if ended else row
        said.append(tokenizer.decode(kept).strip() + ("" if ended else "..."))
    return said


class Answerer:
    """Greedy answers in batches, padded on the left."""

    def __init__(
        self, model: PreTrainedModel, family: Family, tokenizer: PreTrainedTokenizerFast, longest: int = MAX_ANSWER
    ) -> None:
        self.model = model.eval()
        self.family = family
        self.tokenizer = tokenizer
        self.longest = longest

    @classmethod
    def load(cls, path: Path, dtype: torch.dtype) -> Answerer:
        """The checkpoint in a directory; its configuration says which family it is."""
        model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype)
        (family,) = (each for each in FAMILIES.values() if each.model_type == model.config.model_type)
        return cls(model, family, AutoTokenizer.from_pretrained(path))

    @cached_property
    def image(self) -> str:
        """A picture's placeholder tokens."""
        token = self.tokenizer.convert_ids_to_tokens(self.model.config.image_token_id)
        return str(token) * len(self.family.image_places(self.model, 0)[0])

    @torch.no_grad()
    def answers(self, questions: list[str], images: Tensor | None) -> list[str]:
        """One answer per question, as `decoded` has it."""
        tokenizer, image = self.tokenizer, "" if images is None else self.image
        prompts = [self.family.prompt.rendered(question, image) for question in questions]
        inputs = tokenizer(
            prompts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt"
        ).to(self.model.device)
        speaker, extra = self.family.alone(self.model), {}
        if images is not None:
            drawn = images.to(self.model.device, self.model.dtype)
            speaker, extra = self.model, self.family.inputs(self.model, inputs["input_ids"], drawn)
        out = speaker.generate(**inputs, **extra, max_new_tokens=self.longest, do_sample=False)
        return decoded(tokenizer, out[:, inputs["input_ids"].shape[1] :])

    def score(self, items: list[Probe]) -> list[str]:
        """The answers to `items` in their order; each batch has prompts of similar length."""
        order = sorted(range(len(items)), key=lambda i: (items[i].shown is None, len(items[i].prompt)))
        said = [""] * len(items)
        while order:
            pictured = items[order[0]].shown is not None
            chosen = [i for i in order[:BATCH] if (items[i].shown is not None) == pictured]
            order = order[len(chosen) :]
            images = None
            if pictured:
                shown = [items[i].shown for i in chosen]
                variants = iter([items[i].variant for i in chosen])
                images = pixels([s for s in shown if s is not None], lambda _, v=variants: next(v))
            for i, answer in zip(chosen, self.answers([items[i].prompt for i in chosen], images), strict=True):
                said[i] = answer
        return said


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a proportion."""
    z, p = 1.959964, right / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def table(items: list[Probe], said: list[str]) -> dict[str, tuple[int, int]]:
    """Right answers and questions per group, in a fixed order; "overall" is over trained wordings about pictures."""
    counts: dict[str, tuple[int, int]] = {"overall": (0, 0)}
    groups = [*PICTURE_KINDS, "fact", *[f"episode {kind}" for kind in KINDS]]
    groups += [f"{kind}, unseen wording" for kind in (*PICTURE_KINDS, "fact")]
    for group in groups:
        pairs = [(item, answer) for item, answer in zip(items, said, strict=True) if item.group == group]
        right = sum(item.answer == answer for item, answer in pairs)
        counts[group] = (right, len(pairs))
        if group in PICTURE_KINDS:
            counts["overall"] = (counts["overall"][0] + right, counts["overall"][1] + len(pairs))
    return {group: count for group, count in counts.items() if count[1]}


def markdown(counts: dict[str, tuple[int, int]]) -> str:
    """The counts as a table for the model card."""
    lines = ["| question | exact answers, % | n | 95 % interval |", "|---|---|---|---|"]
    for group, (right, n) in counts.items():
        low, high = wilson(right, n)
        lines.append(f"| {group} | {100 * right / n:.1f} | {n} | {100 * low:.1f}-{100 * high:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the accuracy table of a checkpoint directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    answerer = Answerer.load(arguments.model, getattr(torch, arguments.dtype))
    items = list(probes(arguments.scenes))
    print(markdown(table(items, answerer.score(items))))


if __name__ == "__main__":
    main()
