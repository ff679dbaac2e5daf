"""What editors share that write a Delta W beside each of a few Linears, without an optimiser of their own."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import outcome, refused, score_edit
from more_cli.model.batches import Encoded
from more_cli.model.changes import Change
from more_cli.model.runtime import Runtime
from more_lab.editors.attached import WritingEditor
from more_lab.editors.deltas import Delta
from more_lab.editors.joint import JointEditor
from more_lab.editors.work import Work

WRITES = 10
"""Largest number of writes for one edit in M-ORE's loop."""


class WeightEditor(WritingEditor[dict[str, Delta]], JointEditor):
    """An editor whose effect is a Delta W beside each of some Linears."""

    writes_rest = False

    @abstractmethod
    def modules(self, runtime: Runtime) -> list[str]:
        """Return the paths of the Linears that are edited, in the order they run."""

    @abstractmethod
    def write(self, asked: Sequence[Encoded], work: Work) -> None:
        """Change `deltas` so that the model answers an edit, asked in these ways, and count the work."""

    def asked(self, request: EditRequest) -> list[Encoded]:
        """Return an edit as it is asked and, where an editor writes these too, in further ways."""
        return [self.runtime.encode(request.query, request.target)]

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put every Delta W into the model; on leaving, the model is restored."""
        deltas = {}
        for path in self.modules(runtime):
            linear = runtime.model.get_submodule(path)
            deltas[path] = Delta(path, (linear.out_features, linear.in_features), runtime.device_of(path))
            if path in self._values:
                deltas[path].value = self._values[path].to(deltas[path].value.device)
        with self.working_on(runtime, deltas), runtime.attached(list(deltas.values())):
            yield

    @property
    def deltas(self) -> dict[str, Delta]:
        """Delta W of every edited Linear of the attached model, by path."""
        return self.working[1]

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Write one correction; where that has no solution, or no finite one, it is refused and nothing changes."""
        asked, work = self.asked(request), Work()
        before = self.snapshot()
        first = score_edit(self.runtime, asked[0])
        work.forward()
        reason = ""
        try:
            self.write(asked, work)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            reason = "the system of the write has no solution"
        last = score_edit(self.runtime, asked[0])
        work.forward()
        finite = all(bool(torch.isfinite(delta.value).all()) for delta in self.deltas.values())
        if not finite or not math.isfinite(last.nll):
            reason = "a write is not finite"
        if reason:
            self.restore(before)
            return refused(first, reason, passes=work.passes, cost=work.cost)
        return outcome(self.runtime, first, last, writes=work.writes, passes=work.passes, cost=work.cost)

    def most_writes(self) -> int:
        """Return the largest number of writes for one edit: as many as M-ORE's default makes."""
        return WRITES

    def write_together(self, edits: Sequence[Encoded], anchors: Sequence[Anchor], work: Work) -> None:
        """Write the edits one after the other."""
        for encoded in edits:
            self.write([encoded], work)

    def snapshot(self) -> Any:
        """Return every Delta W."""
        return {path: delta.value for path, delta in self.deltas.items()}

    def restore(self, before: Any) -> None:
        for path, value in before.items():
            self.deltas[path].value = value

    def changes(self) -> dict[str, Change]:
        """Return every Delta W."""
        return {path: Change(delta.value) for path, delta in self.deltas.items()}

    def written(self, place: dict[str, Delta]) -> dict[str, Tensor]:
        """Return every Delta W that is not zero, by the path of its Linear."""
        return {path: delta.value.detach().cpu() for path, delta in place.items() if delta.written}
