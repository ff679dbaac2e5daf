"""One interface for every editor, so that commands and reports need not know which method runs.

A `Query` never holds the target, so no editor can see the answer when it decides how to act on an input.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.past import Past
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Encoded, Query
from more_cli.model.changes import Change
from more_cli.model.runtime import Runtime, Unended
from more_cli.progress import Progress, no_progress
from more_cli.recipe.schema import Recipe
from more_cli.recipe.tables import Teaching

Status = Literal["learnt", "not-learnt", "refused", "already-right"]


@dataclass(frozen=True)
class EditRequest:
    """One correction: after it, the model should answer `query` with `target`."""

    id: str
    query: Query
    target: str

    @classmethod
    def of(cls, edit: Edit) -> Self:
        """Return what an editor may see of an edit: no probe that scores it."""
        return cls(edit.id, Query.of(edit), edit.target)


def _no_past(number: int) -> EditRequest:
    raise KeyError(number)


@dataclass(frozen=True)
class EditContext:
    """What an editor may use beside the request: past edits, never a probe that scores it."""

    number: int = 1
    """Number of this edit in its stream; random draws are keyed by it, so that a replay draws the same."""
    past: Past = field(default_factory=lambda: Past.of({}))
    """The edits before it that stand."""
    recall: Callable[[int], EditRequest] = _no_past
    """Fetches a past edit."""
    settings: tuple[str, ...] = ()
    """Changes of the editor's recipe for this edit alone, as KEY=VALUE."""


@dataclass(frozen=True)
class Forced:
    """How the model answers an edit under teacher forcing: it sees the target up to each token that it predicts."""

    nll: float
    """Mean negative log-likelihood of the target tokens, in nats per token."""
    text: str
    """Most likely token at each target position."""
    right: bool
    """Every target token, the end of sequence included, is the most likely one."""


@dataclass(frozen=True)
class EditOutcome:
    """The result of one edit. An edit that could not be learnt is an outcome, never an exception."""

    status: Status
    before: Forced
    after: Forced
    writes: int
    passes: int
    """Samples sent forward, with or without a backward pass."""
    cost: float = 0.0
    """Samples sent forward and backward; a sample that is only sent forward counts a third."""
    margins: Mapping[int, float] = field(default_factory=dict)
    """Last margin of every edit that was scored, this one and past ones, by number."""
    drifts: Mapping[int, float] = field(default_factory=dict)
    """KL from the base of the watched anchors that were scored after it, nats per token, by place in their set."""
    reason: str = ""
    sites: tuple[str, ...] = ()
    """Names of the sites that were written."""


@dataclass(frozen=True)
class FitData:
    """What an editor may learn from before its first edit: records that no score is measured on."""

    edits: Sequence[Edit]
    """Corrections, with their rephrases, further images and locality questions."""
    held_out: Sequence[Edit] = ()
    """Other such corrections, to check what was learnt: nothing may be chosen on them."""
    watched: Sequence[Edit] = ()
    """Others again, which say when a training ends: no weight is trained on them."""
    load: Callable[[], dict[str, Tensor] | None] = lambda: None
    """Returns what an interrupted fit saved last."""
    save: Callable[[Callable[[], dict[str, Tensor]]], None] = lambda tensors: None
    """Saves an unfinished fit now and then: it calls the function for its tensors only when they are due."""
    seconds: float = math.inf
    """Time after which training ends, finished or not."""
    progress: Progress = no_progress


@dataclass(frozen=True)
class Footprint:
    """What an editor keeps."""

    fixed: int
    """Bytes that do not grow with the number of edits."""
    growing: int
    """Bytes of what is kept for the edits so far."""
    fitted: int
    """Parameters learnt before the first edit."""


Capability = Literal["anchors", "fit"]


class Editor(ABC):
    """A way to correct a model. It keeps the method's state; `attach` gives it the model to work on."""

    name: ClassVar[str]
    capabilities: frozenset[Capability] = frozenset()
    """`anchors`: this editor holds anchors to the base's behaviour, see `hold`. `fit`: it is fitted before its first
    edit, see `fit`."""
    grows: ClassVar[bool] = False
    """Its state grows with the number of edits."""
    tuning: BaseModel | None = None
    """The method's numbers, for an editor without a recipe."""
    recipe: Recipe | None = None
    """For one that uses anchors: the recipe that chooses them."""
    teaching: Teaching = Teaching()
    """How it asks and is taught, for an editor without a recipe."""
    notices: Sequence[str] = ()
    """What a reader of its scores should know, one line each, such as a difference from what was published."""
    is_base: ClassVar[bool] = False
    """Never changes the model, so cached base answers stay valid."""

    @abstractmethod
    def attach(self, runtime: Runtime) -> AbstractContextManager[None]:
        """Put the editor's effect into the model and, on leaving, restore the model bit for bit."""

    @abstractmethod
    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Learn one correction."""

    def fit(self, data: FitData) -> dict[str, Any]:
        """Learn what the method needs before its first edit, and return facts about it; the editor is attached.

        A fact `obstacle` says in words what in the base keeps the method from working, if anything does.
        Only editors with the capability `fit` implement it, `fitted` and `load_fitted`.
        """
        raise NotImplementedError(f"editor `{self.name}` is not fitted")

    def fitted(self) -> dict[str, Tensor]:
        """Return the tensors that `fit` made."""
        return {}

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027 (most need none)
        """Restore the tensors of `fitted`; the editor must not be attached."""

    def fit_constants(self) -> dict[str, Any]:
        """Return the numbers of `constants` that decide what `fit` makes."""
        return self.constants()

    def rewrite(self, query: Query) -> Query:
        """Return the question that the model is asked instead; editors that write prompts change it."""
        return query

    def routes(self, prompts: Sequence[Encoded]) -> Sequence[Any]:
        """Return how the editor acts on each of these prompts, which hold no target; None for not at all.

        Asked once for a score or a whole generation. `attach` passes the editor to `Runtime.attached` as its router.
        """
        return [None] * len(prompts)

    def footprint(self) -> Footprint:
        """Return the bytes of the editor's state and the number of its fitted parameters."""
        state = sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())
        fitted = sum(tensor.numel() for tensor in self.fitted().values())
        return Footprint(0, state, fitted) if self.grows else Footprint(state, 0, fitted)

    def changes(self) -> dict[str, Change]:
        """Return how each weight that it may change differs from the base's now, by module path; it is attached.

        Always of the same modules. Empty for editors that change no weights: they act on some prompts only.
        """
        return {}

    def admit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Accept a correction that is written later, together with others. By default it is learnt at once."""
        return self.edit(request, context)

    def catch_up(self) -> float:
        """Do the work that was postponed until the model is asked; returns its cost, as in `EditOutcome`."""
        return 0.0

    def hold(self, anchors: Sequence[Anchor], *, fresh: bool) -> None:
        """Hold these inputs to the base's behaviour from now on; `fresh` says that no edit came before.

        Only editors with the capability `anchors` implement it.
        """
        raise NotImplementedError(f"editor `{self.name}` does not use anchors")

    def constants(self) -> dict[str, Any]:
        """Return every number of the method that decides what the editor does, as JSON values."""
        return {} if self.tuning is None else self.tuning.model_dump(mode="json")

    def facts(self) -> dict[str, Any]:
        """Return `constants`, and how the editor is taught where that was changed."""
        return self.constants() | self.teaching.changed

    @contextmanager
    def taught(self, runtime: Runtime) -> Iterator[None]:
        """Attach the editor to a model on which it is taught as `teaching` says."""
        with self.attach(runtime if self.teaching.end_of_sequence else Unended(runtime)):
            yield

    @abstractmethod
    def reset(self) -> None:
        """Forget every edit."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that a state must keep."""

    @abstractmethod
    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors of `state_dict`."""

    def notes(self) -> dict[str, Any]:
        """Return what must be kept beside the tensors to continue a stream, as JSON values."""
        return {}

    def load_notes(self, notes: Mapping[str, Any]) -> None:  # noqa: B027 (most keep none)
        """Restore what `notes` returned; the editor must not be attached."""
