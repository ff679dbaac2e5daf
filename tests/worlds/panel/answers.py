"""Greedy answers of a checkpoint of the panel, in float32, by the library."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from ..embedded import score
from .members import Member
from .shapes import family_of

MAX_ANSWER = 48  # tokens


class Answerer:
    """Answers questions in batches of similar length."""

    def __init__(self, folder: Path, member: Member) -> None:
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._one = score.Answerer(model, family_of(member), tokenizer, MAX_ANSWER)

    def answers(self, questions: list[str], pixels: Tensor | None, batch: int = 64) -> list[str]:
        """One answer per question, about one picture each or about none; one without an end has an ellipsis."""
        said = [""] * len(questions)
        order = sorted(range(len(questions)), key=lambda i: len(questions[i]))
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            shown = None if pixels is None else pixels[chosen]
            for i, text in zip(chosen, self._one.answers([questions[i] for i in chosen], shown), strict=True):
                said[i] = text
        return said
