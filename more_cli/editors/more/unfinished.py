"""An unfinished joint write: what is kept of it now and then, so that the next call can continue it.

It ends with the same bytes as one that was never interrupted, so all that later rounds depend on is kept. Not in the
paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from more_cli.editors.more.passes import Passes, Tally
from more_cli.editors.more.sites import Snapshot, Step, Weights
from more_cli.editors.outcome import EditScore
from more_cli.editors.past import LastScore
from more_cli.store.state import SiteRecord

FACTS = "facts"
"""Name of the tensor that has what is no tensor, as JSON in bytes."""


class KeptScore(NamedTuple):
    """The score of an edit."""

    number: int
    nll: float
    margin: float
    right: bool
    predicted: list[int]
    loss: float

    @classmethod
    def of(cls, number: int, score: EditScore) -> Self:
        """Return the score of this edit as it is kept."""
        return cls(number, score.nll, score.margin, score.right, score.predicted.tolist(), score.loss)


class Kept(BaseModel):
    """What the tensors of the sites do not say."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    records: list[SiteRecord]
    tally: Tally


class KeptRounds(Kept):
    """The writes before one of a round of joint writes."""

    round: int
    scores: list[KeptScore]
    current: bool
    harmed: bool
    left: list[int]
    """Edits that the round has still to write."""
    trained_on: list[int]
    """Places of the watched anchors that take part in every write, in order."""
    before: dict[int, float]
    """How far watched anchors had moved before the first round, by place."""
    next_step: float
    last: list[int]
    """Edits of the last write."""
    slopes: dict[str, float]
    """Slope of the last write's steps, by name of the site."""

    def edit_scores(self) -> dict[int, EditScore]:
        """Return the scores by number of the edit."""
        return {
            one.number: EditScore(one.nll, one.margin, one.right, torch.tensor(one.predicted), one.loss)
            for one in self.scores
        }


class KeptRest(Kept):
    """The writes before one of the edits that are written one by one after the rounds."""

    failing: list[int]
    """Edits that did not hold after the rounds."""
    harmed: bool
    """Whether a watched anchor was too far then."""
    done: int
    """Number of edits that were written one by one."""
    memory: dict[int, LastScore]


KeptT = TypeVar("KeptT", bound=Kept)


@dataclass(frozen=True)
class Unfinished:
    """Where an unfinished joint write is kept; by default nowhere."""

    load: Callable[[], dict[str, Tensor]] = dict
    """Returns what was saved last, or nothing."""
    save: Callable[[Callable[[], dict[str, Tensor]]], None] = lambda tensors: None
    """Saves now and then: it calls the function for the tensors only when they are due."""

    def keep(self, passes: Passes, facts: Callable[[], Kept]) -> None:
        """Save the sites, the last steps and these facts, if it is time."""
        self.save(lambda: dict(_tensors(passes)) | {FACTS: _as_bytes(facts())})

    def resume(self, kind: type[KeptT], passes: Passes) -> KeptT | None:
        """Restore sites and passes as they were kept, and return the facts; None if none of this kind were kept."""
        tensors = self.load()
        if FACTS not in tensors:
            return None
        try:
            kept = kind.model_validate_json(bytes(tensors[FACTS].tolist()))
        except ValidationError:  # of the other kind
            return None
        sites = passes.model.sites
        devices = {site.record.name: site.P.device for site in sites}
        weights = {name: _weights(tensors, name, device) for name, device in devices.items()}
        P = {name: tensors[f"P.{name}"].to(device) for name, device in devices.items()}
        sites.restore(Snapshot(weights, sites.snapshot().A, P, {record.name: record for record in kept.records}))
        passes.tally = kept.tally
        if isinstance(kept, KeptRounds):
            passes.attempt.next_step, passes.last.edits = kept.next_step, kept.last
            passes.last.steps = {
                name: Step(**vars(_weights(tensors, f"step.{name}", devices[name])), slope=slope)
                for name, slope in kept.slopes.items()
            }
        return kept


NOWHERE = Unfinished()


def _tensors(passes: Passes) -> Iterator[tuple[str, Tensor]]:
    written, P = passes.model.sites.tensors()
    steps = {f"step.{name}": step.cpu() for name, step in passes.last.steps.items()}
    for name, weights in (written | steps).items():
        yield f"B.{name}", weights.B.contiguous()
        if weights.A is not None:
            yield f"A.{name}", weights.A.contiguous()
    yield from ((f"P.{name}", value) for name, value in P.items())


def _weights(tensors: dict[str, Tensor], name: str, device: torch.device) -> Weights:
    A = tensors.get(f"A.{name}")
    return Weights(tensors[f"B.{name}"].to(device), None if A is None else A.to(device))


def _as_bytes(facts: Kept) -> Tensor:
    return torch.frombuffer(bytearray(facts.model_dump_json().encode()), dtype=torch.uint8)
