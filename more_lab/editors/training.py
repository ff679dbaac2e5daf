"""What editors that run gradient descent on each correction share.

The loss is the mean NLL of the target, as everywhere; a fresh AdamW runs for every correction, in float32 and with the
model in evaluation mode. Nothing protects what earlier corrections or the base had learnt.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import outcome, refused, score_edit
from more_cli.model.batches import Encoded
from more_cli.model.changes import Change
from more_cli.model.runtime import Runtime
from more_cli.recipe.tables import Table
from more_lab.editors.attached import WritingEditor
from more_lab.editors.joint import JointEditor, joint_loss
from more_lab.editors.trained import Trained
from more_lab.editors.work import Work


class Tuning(Table):
    """The numbers of one training."""

    steps: int = Field(default=25, ge=1)
    """Steps of AdamW for one correction, at most."""
    rate: float = Field(default=1e-3, gt=0)
    """Learning rate."""
    decay: float = Field(default=0.0, ge=0)
    """Weight decay."""
    stop: float = Field(default=0.01, ge=0)
    """Mean NLL in nats per token; below it the training ends without another step."""


class TrainedEditor(WritingEditor[list[Trained]], JointEditor):
    """An editor whose effect is a set of trained weights."""

    tuning: Tuning

    def __init__(self, tuning: Tuning) -> None:
        super().__init__()
        self.tuning = tuning
        self._optimiser: torch.optim.Optimizer | None = None

    @abstractmethod
    def parts(self, runtime: Runtime) -> list[Trained]:
        """Return the parts of the model that are trained, with the base's weights."""

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put the trained weights into the model; on leaving, the model is restored."""
        parts = self.parts(runtime)
        _load(parts, self._values)
        with self.working_on(runtime, parts), runtime.attached(parts):
            yield

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Train on one correction until its loss is low, at most `steps` times."""
        runtime, parts = self.working
        encoded = runtime.encode(request.query, request.target)
        before = self.snapshot()
        first = score_edit(runtime, encoded)
        steps = descend(runtime, parts, [[encoded]] * self.tuning.steps, self.tuning)
        last = score_edit(runtime, encoded)
        # The pass that stopped the training had no backward pass.
        cost = steps + (1 + (steps < self.tuning.steps)) / 3
        if not math.isfinite(last.nll):
            self.restore(before)
            return refused(first, "a loss is not finite", passes=steps + 2, cost=cost)
        return outcome(runtime, first, last, writes=steps, passes=steps + 2, cost=cost)

    def most_writes(self) -> int:
        """Return the largest number of steps for one correction."""
        return self.tuning.steps

    def begin(self) -> None:
        """Start a fresh optimiser."""
        self._optimiser = optimiser_of(self.working[1], self.tuning)

    def write_together(self, edits: Sequence[Encoded], anchors: Sequence[Anchor], work: Work) -> None:
        """Make one step of AdamW on all of them."""
        assert self._optimiser is not None, "begin first"
        runtime, parts = self.working
        step(runtime, parts, self._optimiser, joint_loss(runtime, edits, anchors))
        work.both(len(edits) + len(anchors))
        work.writes += 1

    def snapshot(self) -> Any:
        """Return every trained weight, by its module."""
        return {part.module: part.values() for part in self.working[1]}

    def restore(self, before: Any) -> None:
        for part in self.working[1]:
            part.load(before[part.module])

    def changes(self) -> dict[str, Change]:
        """Return how every trained matrix differs from the base's; vectors, such as biases, are left out."""
        return {path: change for part in self.working[1] for path, change in part.changes().items()}

    def written(self, place: list[Trained]) -> dict[str, Tensor]:
        """Return every trained weight."""
        trained = [part for part in place if part.written]
        return {f"{part.module}.{name}": value for part in trained for name, value in part.values().items()}


def descend(runtime: Runtime, parts: Sequence[Trained], batches: Sequence[Sequence[Encoded]], tuning: Tuning) -> int:
    """Make one step of AdamW per batch, until a loss is low or not finite; return the number of steps."""
    optimiser = optimiser_of(parts, tuning)
    for steps, batch in enumerate(batches):
        objective = joint_loss(runtime, batch, ())
        loss = float(objective.detach())
        if loss < tuning.stop or not math.isfinite(loss):
            return steps
        step(runtime, parts, optimiser, objective)
    return len(batches)


def optimiser_of(parts: Sequence[Trained], tuning: Tuning) -> torch.optim.Optimizer:
    """Return a fresh AdamW of everything that is trained."""
    parameters = [parameter for part in parts for parameter in part.parameters().values()]
    return torch.optim.AdamW(parameters, lr=tuning.rate, weight_decay=tuning.decay)


def step(runtime: Runtime, parts: Sequence[Trained], optimiser: torch.optim.Optimizer, objective: Tensor) -> None:
    """Make one step of an optimiser down an objective."""
    optimiser.zero_grad(set_to_none=True)
    runtime.backward(objective)
    for part in parts:
        for parameter in part.parameters().values():
            if parameter.grad is not None:
                parameter.grad /= runtime.loss_scale
        part.written = True
    optimiser.step()


def _load(parts: Sequence[Trained], values: dict[str, Tensor]) -> None:
    for part in parts:
        own = {name: values[key] for name in part.parameters() if (key := f"{part.module}.{name}") in values}
        if own:
            part.load(own)
