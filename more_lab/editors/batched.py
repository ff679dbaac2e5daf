"""AlphaEdit, MEMIT and UltraEdit in batches, as published: corrections wait, and many are written in one go.

Fang et al. 2025 (AlphaEdit) and Gu et al. 2025 (UltraEdit) write 100 at a time; Meng et al. 2023 (MEMIT) up to 10,000.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import edit_scores, outcome, score_edit
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_lab.editors.joint import JointEditor
from more_lab.editors.work import Work
from more_lab.editors.wrapped import Wrapped, register

SIZE = 100
"""Corrections of a full batch."""


class Batched(Wrapped[None]):
    """A rival that writes when a batch is full, or when the model is asked.

    A correction before the batch is full is not learnt. Scores after each correction would make batches of one.
    """

    def __init__(self, inner: JointEditor, size: int = SIZE) -> None:
        super().__init__(inner)
        self.size = size
        self._waiting: dict[int, Encoded] = {}
        self._number, self._written = 0, 0

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put the rival's effect into the model; on leaving, the model is restored."""
        with self.working_on(runtime, None), self.inner.attach(runtime):
            yield

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Let a correction wait, and write all that wait if they fill a batch."""
        for number in range(self._written + 1, context.number):
            if number in context.past and number not in self._waiting:
                self._waiting[number] = self._encoded(context.recall(number))
        self._waiting = {number: encoded for number, encoded in self._waiting.items() if number in context.past}
        encoded = self._waiting[context.number] = self._encoded(request)
        self._number = context.number
        first = score_edit(self.runtime, encoded)
        if len(self._waiting) < self.size:
            return outcome(self.runtime, first, first)
        cost = self.catch_up()
        return outcome(self.runtime, first, score_edit(self.runtime, encoded), writes=1, cost=cost)

    def catch_up(self) -> float:
        """Write what waits in one go, and return the samples sent forward and backward.

        Nothing changes where that has no solution, or no finite one.
        """
        waiting, work, before = list(self._waiting.values()), Work(), self.inner.snapshot()
        self._waiting, self._written = {}, self._number
        if not waiting:
            return 0.0
        try:
            self.inner.write_together(waiting, (), work)
            scores = [score for scored in self.runtime.score_all(waiting) for score in edit_scores(scored)]
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            scores = []
        if not scores or not all(math.isfinite(score.nll) for score in scores):
            self.inner.restore(before)
        return work.cost

    def constants(self) -> dict[str, Any]:
        """Return the rival's numbers, and the size of a batch."""
        return super().constants() | {"batch": self.size}

    def reset(self) -> None:
        super().reset()
        self._waiting, self._number, self._written = {}, 0, 0

    def notes(self) -> dict[str, Any]:
        """Return the number of the last correction, and of the last one that was written."""
        return {"number": self._number, "written": self._written}

    def load_notes(self, notes: Mapping[str, Any]) -> None:
        """Restore what `notes` returned; corrections that wait are fetched when they are needed."""
        self._number, self._written = notes["number"], notes["written"]

    def _encoded(self, request: EditRequest) -> Encoded:
        return self.runtime.encode(request.query, request.target)


alphaedit = register("alphaedit", "batch", Batched)
memit = register("memit", "batch", Batched)
ultraedit = register("ultraedit", "batch", Batched)
