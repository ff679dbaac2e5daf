"""What SERAC is trained on: the input embeddings of every record's questions, and the base's answers; read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from more_cli.editors.base import FitData
from more_cli.editors.draws import noise
from more_cli.evaluation.probes import other_pictures, other_wordings
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Encoded, Query
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.model.structure import text_layers
from more_lab.editors.serac.nets import Words
from more_lab.editors.serac.tuning import SeracTuning

LEAST_LONGEST = 24
"""Random targets have up to so many tokens, or as many as the pool's longest target."""

_Asked = tuple[Query, str, Sequence[Sequence[int]]]
"""A question, its answer and random answers as tokens."""


@dataclass(frozen=True)
class Question:
    """A question with the same answers, the record's own first, as every other question of its record."""

    prompt: Tensor
    """(L, d) input embeddings."""
    answers: Sequence[Tensor]
    """(K, d) each, the end-of-sequence token included."""
    targets: Sequence[Tensor]
    """(K,) token ids each."""

    def words(self, variant: int = 0) -> Words:
        """Return the question with one of its answers."""
        return Words(torch.cat([self.prompt, self.answers[variant]]), len(self.answers[variant]))


@dataclass(frozen=True)
class Record:
    """One correction of the pool."""

    questions: Sequence[Question]
    """The correction itself, then its rephrases and further images."""
    locality: Sequence[tuple[Question, Tensor]]
    """With the base's log-probabilities at the positions that predict the answer, (K, vocabulary)."""


def input_embeddings(runtime: Runtime, samples: Sequence[Encoded]) -> list[Tensor]:
    """Return what the first text layer takes in for each sample, (T, d) float32: words and image features."""
    first = text_layers(runtime.model, runtime.backbone)[0]
    found: list[Tensor] = [torch.empty(0)] * len(samples)
    with runtime.base():
        for rows in _like(samples):
            read = runtime.read([samples[row] for row in rows], [(first, "input")])
            for row, (embeddings,) in zip(rows, read, strict=True):
                found[row] = embeddings.to(runtime.device, copy=True)  # a slice would keep its whole batch
    return found


def read_records(runtime: Runtime, data: FitData, pool: Sequence[Edit], tuning: SeracTuning) -> list[Record]:
    """Return the records of a pool, each with random targets beside its own.

    Random targets stand in for the pretraining of the published counterfactual network, which could repeat any word.
    They are tokens of the model's own vocabulary: nothing of the evaluation is in them.
    """
    targets = [runtime.prompter.tokenizer(edit.target, add_special_tokens=False)["input_ids"] for edit in pool]
    longest, records = max([LEAST_LONGEST, *map(len, targets)]), list[Record]()
    for start in range(0, len(pool), TOGETHER):
        edits = pool[start : start + TOGETHER]
        drawn = [
            [random_target(runtime, tuning.seed, number, variant, longest) for variant in range(tuning.variants)]
            for number in range(start, start + len(edits))
        ]
        records += _records(runtime, edits, drawn)
        data.progress(len(records), len(pool), "reading the pool")
    return records


TOGETHER = 16
"""Records that are read together."""


def _records(runtime: Runtime, edits: Sequence[Edit], drawn: Sequence[Sequence[Sequence[int]]]) -> list[Record]:
    """Return these edits' records, with the random targets that were drawn for each."""
    asked = [(query, edit.target, ids) for edit, ids in zip(edits, drawn, strict=True) for query in _queries(edit)]
    # A question without a known answer is compared at its first token: the target is the end of the sequence.
    probes = [(Query.of(probe), probe.answer or "", ()) for edit in edits for probe in edit.locality]
    near, far = iter(_questions(runtime, asked)), _questions(runtime, probes)
    kept = iter(zip(far, _base_log_probabilities(runtime, probes), strict=True))
    return [Record([next(near) for _ in _queries(edit)], [next(kept) for _ in edit.locality]) for edit in edits]


def _queries(edit: Edit) -> list[Query]:
    return [Query.of(edit), *other_wordings(edit), *other_pictures(edit)]


def _questions(runtime: Runtime, asked: Sequence[_Asked]) -> list[Question]:
    """Return questions with their answers, each read in one pass: the answers lie one behind the other.

    That gives the embeddings of each alone, except in a model that adds learnt positions to them (OPT): there those of
    random answers have the codes of some tokens further on.
    """
    own = [runtime.encode(query, target) for query, target, _ in asked]
    answers = [
        [sample.input_ids[sample.target.start :].tolist(), *ids] for sample, (_, _, ids) in zip(own, asked, strict=True)
    ]
    samples = [sample.prompt.followed_by([*chain(*ids)]) for sample, ids in zip(own, answers, strict=True)]
    found = []
    for embeddings, sample, ids in zip(input_embeddings(runtime, samples), own, answers, strict=True):
        prompt, *parts = torch.split(embeddings, [sample.target.start, *map(len, ids)])
        found.append(Question(prompt, parts, [torch.tensor(part, device=runtime.device) for part in ids]))
    return found


def _base_log_probabilities(runtime: Runtime, asked: Sequence[_Asked]) -> list[Tensor]:
    """Return the base's log-probabilities at the positions that predict each answer, (K, vocabulary)."""
    samples = [runtime.encode(query, answer) for query, answer, _ in asked]
    found = [torch.empty(0)] * len(samples)
    with runtime.base():
        for rows in _like(samples):
            scored = [one for part in runtime.score_all(samples[row] for row in rows) for one in _rows(part)]
            for row, values in zip(rows, scored, strict=True):
                found[row] = values
    return found


def _rows(scored: Scored) -> list[Tensor]:
    return [row[mask] for row, mask in zip(scored.log_probabilities(), scored.mask, strict=True)]


def random_target(runtime: Runtime, seed: int, record: int, variant: int, longest: int) -> list[int]:
    """Return 1 to `longest` ordinary tokens of the model's vocabulary and the end of the sequence."""
    tokenizer = runtime.prompter.tokenizer
    # BLIP2's `<image>` is one of the second kind only: in an answer it would stand for features that there are not.
    added = {token for token, content in tokenizer.added_tokens_decoder.items() if content.special}
    control = added | set(tokenizer.all_special_ids)
    ordinary = [token for token in range(len(tokenizer)) if token not in control]
    length, *tokens = noise((seed, record, variant), longest + 1)
    picked = [ordinary[int(value * len(ordinary))] for value in tokens[: 1 + int(length * (longest - 1))]]
    return [*picked, runtime.prompter.eos]


def _like(samples: Sequence[Encoded]) -> list[list[int]]:
    """Return the rows with images and those without, apart: some models answer text alone by a part of themselves."""
    shown = [row for row, sample in enumerate(samples) if sample.images]
    return [rows for rows in (shown, sorted({*range(len(samples))} - {*shown})) if rows]
