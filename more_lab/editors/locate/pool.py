"""What locate-then-edit methods take from the calibration pool: keys, texts to ask behind, and neutral questions.

The published code reads 100,000 Wikipedia samples here. A vision-language model's keys lie elsewhere, so ours come from
corrections of the pool with their targets and from its locality questions; none of them is scored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from more_cli.editors.base import FitData
from more_cli.editors.draws import pick
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Encoded, Query, Span
from more_cli.model.runtime import Runtime

CHUNK = 16
"""Corrections whose keys are in memory at a time."""
_CONTEXTS, _TEXTS, _SHOWN, _RECORDS = range(4)
"""What a draw is for."""


@dataclass(frozen=True)
class Material:
    """Texts and questions from the pool."""

    contexts: tuple[str, ...]
    """Texts that a question can be asked behind."""
    neutral: tuple[Encoded, ...]
    """Questions with one token behind them, which is never read: only the logits that predict it are."""

    def tensors(self) -> dict[str, Tensor]:
        """Return it as tensors, to be kept in a file."""
        rows, found = [], {}
        for number, sequence in enumerate(self.neutral):
            found[f"neutral.{number}.ids"] = sequence.input_ids
            found |= {f"neutral.{number}.extras.{name}": value for name, value in sequence.extras.items()}
            span = [sequence.target.start, sequence.target.stop]
            rows.append([span, list(sequence.images), sequence.answer_type, sequence.decoder_start])
        text = json.dumps({"contexts": self.contexts, "neutral": rows}).encode()
        return found | {"texts": torch.tensor(list(text), dtype=torch.uint8)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Material:
        """Return what `tensors` made."""
        kept = json.loads(bytes(tensors["texts"].tolist()))
        neutral = []
        for number, (span, images, answer_type, start) in enumerate(kept["neutral"]):
            head = f"neutral.{number}.extras."
            extras = {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}
            ids = tensors[f"neutral.{number}.ids"]
            neutral.append(Encoded(ids, Span(*span), tuple(images), extras, answer_type, start))
        return cls(tuple(kept["contexts"]), tuple(neutral))


def drawn(edits: Sequence[Edit], count: int, seed: int) -> list[Edit]:
    """Return `count` corrections of the pool, in its order, or all if there are fewer."""
    return [edits[place] for place in pick(len(edits), min(count, len(edits)), seed, _RECORDS)]


def material(runtime: Runtime, edits: Sequence[Edit], contexts: int, neutral: int, seed: int) -> Material:
    """Draw texts and neutral questions from the pool: one question with an image, the others without if there are any.

    The published contexts are sentences that the model itself continues; a vision-language model has learnt to answer,
    so ours are questions of the pool with their targets.
    """
    texts = [f"{edit.question.rstrip(' .')}. {edit.target.rstrip(' .')}." for edit in edits]
    behind = tuple(texts[place] for place in pick(len(texts), min(contexts, len(texts)), seed, _CONTEXTS))
    probes = [probe for edit in edits for probe in edit.locality]
    without = [Query.of(probe) for probe in probes if not probe.images]
    shown = [Query.of(edit) for edit in edits if edit.images]
    drawn = [without[place] for place in pick(len(without), max(0, min(neutral - 1, len(without))), seed, _TEXTS)]
    drawn += [shown[place] for place in pick(len(shown), min(neutral - len(drawn), len(shown), 1), seed, _SHOWN)]
    return Material(behind, tuple(runtime.encode(query).followed_by([runtime.prompter.eos]) for query in drawn))


@dataclass
class Keys:
    """Keys of some Linears over many tokens, those of texts alone and those of questions about an image apart."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    """Sum of k k^T, (m, m) float64, by kind and path: `text.PATH`, `image.PATH`."""
    tokens: dict[str, int] = field(default_factory=dict)
    """By kind."""

    @property
    def paths(self) -> list[str]:
        """The Linears."""
        return list(dict.fromkeys(name.partition(".")[2] for name in self.sums))

    def add(self, kind: str, keys: Mapping[str, Tensor]) -> None:
        """Count the keys (T, m) of one sequence, by path."""
        self.tokens[kind] = self.tokens.get(kind, 0) + len(next(iter(keys.values())))
        for path, key in keys.items():
            wide = key.double().cpu()  # sums of squares: float32 would lose the small eigenvalues
            self.sums[f"{kind}.{path}"] = self.sums.get(f"{kind}.{path}", 0) + wide.T @ wide

    def apart(self, path: str) -> dict[str, Tensor]:
        """Return the mean of k k^T of a Linear over the tokens of each kind that there is."""
        return {kind: self.sums[f"{kind}.{path}"] / count for kind, count in self.tokens.items()}

    def together(self, path: str) -> Tensor:
        """Return the mean of k k^T of a Linear over all tokens."""
        return sum(self.sums[f"{kind}.{path}"] for kind in self.tokens) / sum(self.tokens.values())  # type: ignore[return-value]

    def halves(self, path: str) -> Tensor:
        """Return the mean over the kinds that there are of their means of k k^T: each counts as much."""
        apart = list(self.apart(path).values())
        return torch.stack(apart).mean(dim=0)

    def joined(self, other: Keys) -> Keys:
        """Return these and others, which count as much as all of these of their kind, however many they are."""
        found = Keys(dict(self.sums), self.tokens | {kind: n for kind, n in other.tokens.items() if n})
        for name, value in other.sums.items():
            kind = name.partition(".")[0]
            if own := self.tokens.get(kind):
                mean = (self.sums[name] / own + value / other.tokens[kind]) / 2
                found.sums[name], found.tokens[kind] = own * mean, own
            else:
                found.sums[name] = value
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return it as tensors, to be kept in a file."""
        sums = {f"sum.{name}": value for name, value in self.sums.items()}
        return sums | {f"tokens.{kind}": torch.tensor(count) for kind, count in self.tokens.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Keys:
        """Return what `tensors` made."""
        sums = {name.removeprefix("sum."): value for name, value in tensors.items() if name.startswith("sum.")}
        counts = {name: int(value) for name, value in tensors.items() if name.startswith("tokens.")}
        return cls(sums, {name.removeprefix("tokens."): count for name, count in counts.items()})


def keys_of(runtime: Runtime, paths: Sequence[str], samples: Sequence[Encoded], keys: Keys) -> None:
    """Count the keys of some sequences."""
    rows = runtime.read(samples, [(path, "input") for path in paths])
    for sample, row in zip(samples, rows, strict=True):
        keys.add("image" if sample.images else "text", dict(zip(paths, row, strict=True)))


def pool_keys(runtime: Runtime, paths: Sequence[str], data: FitData) -> tuple[Keys, int]:
    """Return the keys of the Linears over the pool's tokens, and how many edits they are of.

    Every token counts, those of images too, and those of a target as the model reads it. A fit that was interrupted
    continues to the same bytes; one whose time is over ends with the edits so far.
    """
    kept, started = data.load() or {}, time.monotonic()
    keys, done = Keys.of(kept), int(kept.get("done", 0))
    while done < len(data.edits) and (not done or time.monotonic() - started < data.seconds):
        chunk = data.edits[done : done + CHUNK]
        told = [runtime.encode(Query.of(edit), edit.target) for edit in chunk]
        asked = [runtime.encode(Query.of(probe)) for edit in chunk for probe in edit.locality]
        for samples in (told, asked):
            keys_of(runtime, paths, samples, keys)
        done += len(chunk)
        data.progress(done, len(data.edits), f"{sum(keys.tokens.values()):,} keys")
        data.save(lambda: keys.tensors() | {"done": torch.tensor(done)})  # noqa: B023 (called at once)
    return keys, done
