"""An unfinished joint write: what is kept of it now and then, so that the next call can continue it.

It ends with the same bytes as one that was never interrupted, so all that later rounds depend on is kept. What was
damaged, or cannot be of these sites and edits, is left aside: the write begins again. Not in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save
from torch import Tensor

from more_cli.editors.more.passes import Passes, Tally
from more_cli.editors.more.sites import Step, Weights
from more_cli.editors.outcome import EditScore
from more_cli.editors.past import LastScore
from more_cli.files import sha256_bytes
from more_cli.store.state import SiteRecord

FACTS, CHECK = "facts", "check"
"""Names of the tensors that have what is no tensor, as JSON in bytes, and the SHA-256 of all others."""
LARGEST = 1 << 31
Whole = Annotated[int, Field(ge=0, lt=LARGEST)]


class KeptScore(NamedTuple):
    """The score of an edit."""

    number: int
    nll: float
    margin: float
    right: bool
    predicted: list[Whole]
    loss: float

    @classmethod
    def of(cls, number: int, score: EditScore) -> Self:
        """Return the score of this edit as it is kept."""
        return cls(number, score.nll, score.margin, score.right, score.predicted.tolist(), score.loss)


class Kept(BaseModel):
    """What the tensors of the sites do not say."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    records: list[SiteRecord]
    tally: Tally


class KeptRounds(Kept):
    """The writes before one of a round of joint writes."""

    round: Whole
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
    done: Whole
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

        def tensors() -> dict[str, Tensor]:
            found = dict(_tensors(passes)) | {FACTS: _as_bytes(facts().model_dump_json())}
            return found | {CHECK: _as_bytes(_digest(found))}

        self.save(tensors)

    def resume(self, kind: type[KeptT], passes: Passes) -> KeptT | None:
        """Restore sites and passes as they were kept, and return the facts; None if none that fit were kept."""
        tensors = self.load()
        if _bytes_of(tensors.pop(CHECK, None)) != _digest(tensors).encode():
            return None
        try:
            kept = kind.model_validate_json(_bytes_of(tensors.get(FACTS)))
        except ValidationError:  # of the other kind
            return None
        if not _fits(kept, tensors, passes):
            return None
        sites = passes.model.sites
        devices = {site.record.name: site.P.device for site in sites}
        weights = {name: _weights(tensors, name, device) for name, device in devices.items()}
        P = {name: tensors[f"P.{name}"].to(device) for name, device in devices.items()}
        records = {record.name: record for record in kept.records}
        sites.restore(replace(sites.snapshot(), weights=weights, P=P, records=records))
        passes.tally = kept.tally
        if isinstance(kept, KeptRounds):
            passes.attempt.next_step, passes.last.edits = kept.next_step, kept.last
            passes.last.steps = {
                name: Step(**vars(_weights(tensors, f"step.{name}", devices[name])), slope=slope)
                for name, slope in kept.slopes.items()
            }
        return kept


NOWHERE = Unfinished()


def _fits(kept: Kept, tensors: Mapping[str, Tensor], passes: Passes) -> bool:
    """Return whether what was kept can be of the sites and edits of these passes."""
    records, context, slopes, moments = passes.model.sites.records, passes.context, dict[str, float](), list[int]()
    edits = set(kept.tally.margins)
    if isinstance(kept, KeptRounds):
        edits, slopes = edits.union(kept.left, kept.last, (one.number for one in kept.scores)), kept.slopes
    if isinstance(kept, KeptRest):
        edits, moments = edits.union(kept.failing, kept.memory), [one.at for one in kept.memory.values()]
    written, P = passes.model.sites.tensors()
    return (
        edits <= set(context.past)
        and all(0 <= at <= context.number for at in moments)
        and 0 <= kept.tally.writes < LARGEST
        and [one.name for one in kept.records] == [one.name for one in records]
        and all(map(_is_same_site, kept.records, records))
        and slopes.keys() <= written.keys()
        and all(
            name in tensors and _is_like(tensors[name], like)
            for name, like in _named(written | {f"step.{name}": written[name] for name in slopes}, P)
        )
    )


def _is_same_site(kept: SiteRecord, site: SiteRecord) -> bool:
    """Return whether a record is of this site, which may have absorbed other keys."""
    absorbed = {"ridge": kept.ridge, "keys": kept.keys, "energy": kept.energy}
    usable = math.isfinite(kept.energy + (kept.ridge or 0.0)) and kept.keys < LARGEST
    return usable and kept == site.model_copy(update=absorbed)


def _is_like(found: Tensor, like: Tensor) -> bool:
    same = (found.dtype, found.shape) == (like.dtype, like.shape)
    return same and bool(torch.isfinite(found).all())


def _tensors(passes: Passes) -> Iterator[tuple[str, Tensor]]:
    written, P = passes.model.sites.tensors()
    return _named(written | {f"step.{name}": step.cpu() for name, step in passes.last.steps.items()}, P)


def _named(weights: Mapping[str, Weights], P: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, one in weights.items():
        yield f"B.{name}", one.B.contiguous()
        if one.A is not None:
            yield f"A.{name}", one.A.contiguous()
    yield from ((f"P.{name}", value) for name, value in P.items())


def _weights(tensors: dict[str, Tensor], name: str, device: torch.device) -> Weights:
    A = tensors.get(f"A.{name}")
    return Weights(tensors[f"B.{name}"].to(device), None if A is None else A.to(device))


def _digest(tensors: dict[str, Tensor]) -> str:
    return sha256_bytes(save(tensors))


def _as_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _bytes_of(tensor: Tensor | None) -> bytes:
    return b"" if tensor is None or tensor.dtype != torch.uint8 else tensor.numpy().tobytes()
