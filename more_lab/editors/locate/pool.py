"""What locate-then-edit methods take from the calibration pool: keys, texts to ask behind, and neutral questions.

The published code reads 100,000 Wikipedia samples here. A vision-language model's keys lie elsewhere, so ours come from
corrections of the pool with their targets and from its locality questions; none of them is scored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from more_cli.editors.base import FitData
from more_cli.editors.draws import pick
from more_cli.inputs.edits import Edit, Probe
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
    without = [_query(probe) for probe in probes if probe.image is None]
    shown = [Query(edit.images, edit.question) for edit in edits if edit.images]
    drawn = [without[place] for place in pick(len(without), max(0, min(neutral - 1, len(without))), seed, _TEXTS)]
    drawn += [shown[place] for place in pick(len(shown), min(neutral - len(drawn), len(shown), 1), seed, _SHOWN)]
    return Material(behind, tuple(runtime.encode(query).followed_by([runtime.prompter.eos]) for query in drawn))


def second_moments(runtime: Runtime, paths: Sequence[str], data: FitData) -> tuple[dict[str, Tensor], int, int]:
    """Return the mean of k k^T over the pool's tokens for each Linear, (m, m) float64; how many tokens, and edits.

    Every token counts, those of images too, and those of a target as the model reads it. A fit that was interrupted
    continues to the same bytes; one whose time is over ends with the edits so far.
    """
    kept, started = data.load() or {}, time.monotonic()
    sums = {path: kept[f"sum.{path}"] for path in paths} if kept else {}
    tokens, done = int(kept.get("tokens", 0)), int(kept.get("done", 0))
    while done < len(data.edits) and (not done or time.monotonic() - started < data.seconds):
        chunk = data.edits[done : done + CHUNK]
        for keys in _keys(runtime, paths, chunk):
            tokens += len(keys[0])
            for path, key in zip(paths, keys, strict=True):
                wide = key.double().cpu()  # sums of squares: float32 would lose the small eigenvalues
                sums[path] = sums.get(path, 0) + wide.T @ wide
        done += len(chunk)
        data.progress(done, len(data.edits), f"{tokens:,} keys")
        data.save(lambda: _unfinished(sums, tokens, done))  # noqa: B023 (called at once)
    return {path: value / tokens for path, value in sums.items()}, tokens, done


def _unfinished(sums: Mapping[str, Tensor], tokens: int, done: int) -> dict[str, Tensor]:
    counts = {"tokens": torch.tensor(tokens), "done": torch.tensor(done)}
    return {f"sum.{path}": value for path, value in sums.items()} | counts


def _keys(runtime: Runtime, paths: Sequence[str], edits: Sequence[Edit]) -> Iterator[list[Tensor]]:
    """Return the inputs of the Linears, (T, m) each, for the corrections and then for the locality questions."""
    places = [(path, "input") for path in paths]
    told = [runtime.encode(Query(edit.images, edit.question), edit.target) for edit in edits]
    asked = [runtime.encode(_query(probe)) for edit in edits for probe in edit.locality]
    for samples in (told, asked):
        yield from runtime.read(samples, places)  # type: ignore[arg-type]


def _query(probe: Probe) -> Query:
    return Query((probe.image,) if probe.image else (), probe.question)
