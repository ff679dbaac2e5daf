"""One interface for every editor, so that commands and reports need not know which method runs.

A `Query` never holds the target: whatever routes an input to an edit must not see the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from more_cli.editors.past import Past
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime

Status = Literal["learnt", "not-learnt", "refused", "already-right"]
Family = Literal["none", "finetune", "hypernet", "locate", "lowrank", "memory", "prompt", "experts"]


@dataclass(frozen=True)
class EditRequest:
    """One correction: after it, the model should answer `query` with `target`."""

    id: str
    query: Query
    target: str


def _no_past(number: int) -> EditRequest:
    raise KeyError(number)


@dataclass(frozen=True)
class EditContext:
    """What an editor may look at beside the request: past edits, never a probe that scores it."""

    number: int = 1
    """Of this edit in its stream; random draws are keyed by it, so that a replay draws the same."""
    past: Past = field(default_factory=lambda: Past.of({}))
    """The edits before it that stand."""
    recall: Callable[[int], EditRequest] = _no_past
    """Fetches a past edit."""


@dataclass(frozen=True)
class EditOutcome:
    """What became of one edit. "Could not learn it" is an outcome, never an exception."""

    status: Status
    nll_before: float
    """Mean negative log-likelihood of the target tokens, in nats per token."""
    nll_after: float
    answer_before: str
    """Most likely token at each target position under teacher forcing, as text."""
    answer_after: str
    right_after: bool
    """Every target token, the end of sequence included, is the most likely one."""
    writes: int
    passes: int
    """Samples sent forward, with or without a backward; likewise `cost`."""
    cost: float = 0.0
    """In samples sent forward and backward; one that is only sent forward counts a third."""
    looks: Mapping[int, float] = field(default_factory=dict)
    """Margin of every edit looked at, this one and past ones, by number, as last seen."""
    reason: str = ""
    sites: tuple[str, ...] = ()
    """Sites written to, by name."""


@dataclass(frozen=True)
class Route:
    """What an editor decided from a query alone; empty for editors that act on every input."""

    hit: bool = False


class Editor(ABC):
    """A way to correct a model. It holds the method's state; the model is lent to it by `attach`."""

    name: ClassVar[str]
    family: ClassVar[Family]
    capabilities: ClassVar[frozenset[str]] = frozenset()
    is_base: ClassVar[bool] = False
    """The model it is lent stays the base whatever it is told: what the base answered need not be asked again."""

    def fit(self, runtime: Runtime, pools: Any, budget: float, seed: int) -> None:  # noqa: B027 (most need none)
        """Learn what the method needs before its first edit, within `budget` seconds; nothing for most."""

    @abstractmethod
    def attach(self, runtime: Runtime) -> AbstractContextManager[None]:
        """Put the editor's effect into the model and, on leaving, take all of it out again, bit for bit."""

    @abstractmethod
    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Learn one correction."""

    def admit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Take note of a correction that is written later, together with others; most editors learn it at once."""
        return self.edit(request, context)

    def catch_up(self) -> float:
        """Do what was put off until the model is asked something; returns the cost, as in `EditOutcome`."""
        return 0.0

    def constants(self) -> dict[str, Any]:
        """Return every number that decides what the editor does, as JSON values."""
        return {}

    def prepare(self, query: Query) -> Route:
        """Decide, once and from the query alone, which edits apply."""
        return Route()

    @contextmanager
    def applied(self, route: Route) -> Iterator[None]:
        """Put a route into effect for one forward pass or a whole generation."""
        with nullcontext():
            yield

    def rewrite(self, query: Query, route: Route) -> Query:
        """Return the prompt to send to the model; editors that live in the prompt change it."""
        return query

    def logits(self, route: Route) -> Callable[[Tensor], Tensor] | None:
        """Return what replaces the model's logits on this route, if anything does."""
        return None

    @abstractmethod
    def reset(self) -> None:
        """Forget every edit."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that a state must keep."""

    @abstractmethod
    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take back the tensors of `state_dict`."""

    def notes(self) -> dict[str, Any]:
        """Return what must be kept beside the tensors to go on where a stream was left, as JSON values."""
        return {}

    def load_notes(self, notes: Mapping[str, Any]) -> None:  # noqa: B027 (most keep none)
        """Take back what `notes` returned; the editor must not be attached."""

    @abstractmethod
    def footprint(self) -> dict[str, int]:
        """Return bytes held whatever the number of edits (`fixed`) and bytes per edit (`per_edit`)."""
