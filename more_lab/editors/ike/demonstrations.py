"""Worked examples of facts in a prompt, as text, and a bank of them to choose the most similar ones from.

Three per record, as in IKE (Zheng et al., 2023, arXiv:2305.12740): a fact and its own question (copy), the question in
other words (update), and a question that the fact is not about and that keeps its answer (retain).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from more_cli.inputs.edits import Edit
from more_cli.model.runtime import Runtime
from more_cli.text import canonical_json


def statement(question: str, target: str, asked: str) -> str:
    """Return a fact and a question, whose answer comes next."""
    return f"New Fact: {question} {target}\nPrompt: {asked}"


def demonstration(question: str, target: str, asked: str, answer: str) -> str:
    """Return a fact, a question and its answer."""
    return f"{statement(question, target, asked)} {answer}"


def demonstrations_of(edit: Edit) -> Iterator[str]:
    """Yield the demonstrations of one record: copy, update and retain, if it has questions for them."""
    yield demonstration(edit.question, edit.target, edit.question, edit.target)
    for asked in edit.rephrases[:1]:
        yield demonstration(edit.question, edit.target, asked, edit.target)
    kept = [probe for probe in edit.locality if not probe.images and probe.answer]
    for probe in kept[:1]:
        yield demonstration(edit.question, edit.target, probe.question, probe.answer or "")


@dataclass(frozen=True)
class Bank:
    """Demonstrations with their vectors.

    A vector is the mean of the base's input embeddings of the words, relative to the bank's mean. The published code
    has a sentence encoder of its own, all-MiniLM-L6-v2; this one needs no second model and serves every family.
    """

    texts: Sequence[str]
    vectors: Tensor
    """(M, d) float32, unit length."""
    centre: Tensor
    """(d,) float32."""

    @classmethod
    def of(cls, runtime: Runtime, edits: Sequence[Edit]) -> Bank:
        """Return the demonstrations of these records, without repetitions."""
        texts = list(dict.fromkeys(text for edit in edits for text in demonstrations_of(edit)))
        means = torch.stack([_mean(runtime, text) for text in texts])
        centre = means.mean(dim=0)
        return cls(texts, normalize(means - centre, dim=-1), centre)

    @classmethod
    def load(cls, tensors: dict[str, Tensor]) -> Bank:
        """Return the bank of `tensors`."""
        return cls(list(map(str, unpacked(tensors["bank.texts"]))), tensors["bank.vectors"], tensors["bank.centre"])

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors."""
        return {
            "bank.texts": packed(list(self.texts)),
            "bank.vectors": self.vectors,
            "bank.centre": self.centre,
        }

    def nearest(self, runtime: Runtime, text: str, count: int) -> list[int]:
        """Return the indices of the demonstrations most similar to a text, the most similar first."""
        similar = self.vectors @ normalize(_mean(runtime, text) - self.centre, dim=-1)
        return similar.sort(descending=True, stable=True).indices[:count].tolist()


def _mean(runtime: Runtime, text: str) -> Tensor:
    ids = runtime.prompter.tokenizer(runtime.prompter.inert(text), add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        embedded = runtime.model.get_input_embeddings()(torch.tensor(ids, device=runtime.device))
    # Of bf16 embeddings: a mean in bf16 would round away the differences between sentences.
    mean: Tensor = embedded.float().mean(dim=0).cpu()
    return mean


def packed(values: object) -> Tensor:
    """Return JSON values as bytes, (n,) uint8."""
    return torch.frombuffer(bytearray(canonical_json(values).encode()), dtype=torch.uint8)


def unpacked(tensor: Tensor) -> list[object]:
    """Return the list that `packed` made bytes of."""
    found: list[object] = json.loads(bytes(tensor.tolist()))
    return found
