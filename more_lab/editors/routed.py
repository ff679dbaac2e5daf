"""What editors share that act at one Linear, the FFN output of one text layer, on the prompts that they recognise.

A route is decided from what the Linear takes in at the prompt's tokens. No edit changes these inputs, since nothing
before the Linear is edited, and no target is part of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field
from torch import Tensor

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import EditScore, outcome, refused, score_edit
from more_cli.errors import StateError
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.model.taps import Tap
from more_cli.recipe.tables import Table
from more_lab.editors.attached import AttachedEditor
from more_lab.editors.modules import ffn_outs
from more_lab.editors.work import Work


class RoutedTuning(Table):
    """Where an editor acts."""

    depth: float = Field(default=0.7, ge=0, lt=1)
    """The text layer whose FFN output is edited, as a share of the layers below it."""


class RoutedEditor(AttachedEditor[str]):
    """An editor of one FFN output that acts on some prompts only."""

    capabilities = frozenset({"fit"})
    grows = True
    tuning: RoutedTuning

    def __init__(self, tuning: RoutedTuning) -> None:
        self.tuning = tuning
        self._forced: int | None = None

    @abstractmethod
    def taps(self, path: str) -> list[Tap]:
        """Return the parts that change what the Linear puts out on routed rows."""

    @abstractmethod
    def route(self, inputs: Tensor) -> int | None:
        """Return what acts on a prompt, from the Linear's inputs at its tokens (T, d_in); None for nothing."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether nothing was written yet, so that no prompt has a route."""

    @abstractmethod
    def learn(self, encoded: Encoded, first: EditScore, context: EditContext, work: Work) -> bool:
        """Write one correction and count the work; return whether all numbers are finite. The caller undoes it."""

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put the editor's effect at the Linear; on leaving, the model is restored."""
        path = ffn_out_at(runtime, self.tuning.depth)
        with self.working_on(runtime, path), runtime.attached(self.taps(path), self):
            yield

    @property
    def path(self) -> str:
        """Path of the edited Linear of the attached model."""
        return self.working[1]

    def routes(self, prompts: Sequence[Encoded]) -> Sequence[int | None]:
        """Return what acts on each prompt, found in a pass without the editor that ends at the Linear."""
        if self._forced is not None:
            return [self._forced] * len(prompts)
        if self.empty:
            return [None] * len(prompts)
        return [self.route(inputs) for inputs in self.inputs(prompts)]

    @contextmanager
    def forced(self, route: int) -> Iterator[None]:
        """Act on every prompt in this way: while it is trained, an entry acts whether or not it would be chosen."""
        self._forced = route
        try:
            yield
        finally:
            self._forced = None

    def inputs(self, prompts: Sequence[Encoded]) -> list[Tensor]:
        """Return what the Linear takes in at the tokens of each prompt, (T, d_in) float32."""
        with self.runtime.base():
            return [inputs for (inputs,) in self.runtime.read([prompt.prompt for prompt in prompts], self.places[:1])]

    @property
    def places(self) -> list[tuple[str, Any]]:
        """The Linear's input and its output, for `Runtime.read`."""
        return [(self.path, "input"), (self.path, "output")]

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Learn one correction; if a number is not finite, it is refused and nothing changes."""
        encoded, work = self.runtime.encode(request.query, request.target), Work()
        first, before = score_edit(self.runtime, encoded), self.state_dict()
        work.forward()
        if not self.learn(encoded, first, context, work):
            self.load_state_dict(before)
            return refused(first, "a loss is not finite", passes=work.passes, cost=work.cost)
        work.forward()
        last = score_edit(self.runtime, encoded)
        return outcome(self.runtime, first, last, writes=work.writes, passes=work.passes, cost=work.cost)


def ffn_out_at(runtime: Runtime, depth: float) -> str:
    """Return the path of the Linear that ends the FFN of the text layer at a depth in [0, 1).

    Raises:
        StateError: that layer has no such Linear.
    """
    model, backbone = runtime.model, runtime.backbone
    layers = text_layers(model, backbone)
    paths = ffn_outs(model, backbone, [layers[int(depth * len(layers))]])
    if not paths:
        raise StateError(f"text layer {int(depth * len(layers))} has no FFN output to edit", "set another depth")
    return paths[-1]
