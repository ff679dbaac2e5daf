"""Records that a network is trained on: what an edit should change, and what it should leave as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from more_cli.evaluation.probes import other_pictures, other_wordings
from more_cli.inputs.edits import Edit
from more_cli.inputs.edits import Probe as Question
from more_cli.model.batches import Encoded, Query
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored

CACHED = 1 << 30
"""Bytes of hidden states that are kept from one epoch to the next."""
KEPT = 1024
"""Lessons that are kept with their tokens and images."""
ANSWER_TOKENS = 32
"""Longest answer of the base to a locality question without one, in tokens."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """One record, tokenised."""

    request: Encoded
    asked: tuple[Encoded, ...]
    """Rephrased questions and further images with the target, then the locality questions with their answers: the rows
    of one pass."""
    shares: Tensor
    """(rows,) weight of each row in the loss of its half."""
    changes: int
    """How many of the rows, the first ones, should have a new answer."""
    base: Tensor
    """(rows - changes, K, vocabulary) log-probabilities of the base at the locality questions."""


class Lessons:
    """The records of a fit, each tokenised when it is first needed. The attached editor has edited nothing.

    With `request`, the request itself is among what an edit should change.
    """

    def __init__(self, runtime: Runtime, edits: Sequence[Edit], *, request: bool = False) -> None:
        self._runtime, self._request = runtime, request
        self._edits = edits
        self._kept = lru_cache(KEPT)(self._made)

    def __len__(self) -> int:
        return len(self._edits)

    def __getitem__(self, number: int) -> Lesson:
        """Return one lesson."""
        return self._kept(number)

    def losses(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Return the two halves of a loss for the model as it is now, both in nats per token.

        The NLL of the target for rephrased questions plus that for further images, and the request's if it is asked;
        the KL from the base for locality questions without an image plus that for those with one. They can be
        differentiated.
        """
        scored = self._runtime.score(self._runtime.batch(lesson.asked), record=True)
        edit = (scored[: lesson.changes].nll() * lesson.shares[: lesson.changes]).sum()
        unrelated = scored[lesson.changes :]
        return edit, (_divergence(lesson.base, unrelated) * lesson.shares[lesson.changes :]).sum()

    def _made(self, number: int) -> Lesson:
        edit, encode = self._edits[number], self._runtime.encode
        request = encode(Query.of(edit), edit.target)
        rephrased = [encode(query, edit.target) for query in other_wordings(edit)]
        shown = [encode(query, edit.target) for query in other_pictures(edit)]
        told = [self._answered(question) for question in edit.locality if not question.images]
        seen = [self._answered(question) for question in edit.locality if question.images]
        groups = [[request]] if self._request or not (rephrased or shown) else []
        groups += [rephrased, shown]
        asked = tuple(row for group in (*groups, told, seen) for row in group)
        shares = [1 / len(group) for group in (*groups, told, seen) for _ in group]
        changes = sum(map(len, groups))
        with self._runtime.base(), torch.no_grad():
            base = self._runtime.score(self._runtime.batch(asked))[changes:].log_probabilities()
        return Lesson(request, asked, torch.tensor(shares, device=base.device), changes, base)

    def _answered(self, question: Question) -> Encoded:
        """Return a locality question with its answer or, without one, the base's."""
        query = Query.of(question)
        if question.answer is not None:
            return self._runtime.encode(query, question.answer)
        with self._runtime.base():
            (ids,) = self._runtime.generate([query], ANSWER_TOKENS)
        return self._runtime.encode(query).followed_by(ids)


def _divergence(base: Tensor, scored: Scored) -> Tensor:
    """Return KL(base || now) per row, (N,), the mean over the positions that predict its answer."""
    each = (base.exp() * (base - scored.log_probabilities())).sum(dim=-1)
    return (each * scored.mask).sum(dim=1) / scored.mask.sum(dim=1)
