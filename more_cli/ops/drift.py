"""How far a state's watched anchors have moved, edit by edit, as its ledger knows it; needs neither model nor torch.

After an edit only some anchors are scored, so an anchor's drift is the last one that was measured. Only edits in force
count: what was reverted moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from more_cli.ops.held import corrected, held_at
from more_cli.store.ledger import Ledger
from more_cli.store.state import StateMeta
from more_cli.text import counted, listed, nats, shorten

NAMED = 2
"""Largest number of anchors that a sentence names."""


class DriftAfter(NamedTuple):
    """Drift after so many edits, over the anchors that were scored so far, nats per token."""

    edits: int
    mean: float
    largest: float


@dataclass(frozen=True)
class Drift:
    """Drift of a state's watched anchors."""

    questions: Mapping[int, str]
    """Question of every watched anchor, by place in the set of anchors."""
    seen: Mapping[int, float]
    """Last known drift of the anchors that were scored, by place, nats per token."""
    curve: Sequence[DriftAfter]
    """One point for each edit after which anchors were scored, in order."""
    max_drift: float
    """Limit of the recipe, nats per token."""

    @property
    def watched(self) -> int:
        """Number of watched anchors."""
        return len(self.questions)

    @property
    def above(self) -> list[int]:
        """Places of the anchors that are above the limit, the farthest first."""
        return sorted((at for at, drift in self.seen.items() if drift > self.max_drift), key=lambda at: -self.seen[at])

    @property
    def summary(self) -> str:
        """The drift in numbers, on one line."""
        anchors = counted(self.watched, "watched anchor")
        if not self.curve:
            return f"{anchors}, none looked at yet (limit {nats(self.max_drift)})"
        part = f"{len(self.seen)} of " if len(self.seen) < self.watched else ""
        last = self.curve[-1]
        measured = f"mean {_short(last.mean)}, largest {_short(last.largest)} nats (limit {self.max_drift:g})"
        return f"{part}{anchors}: {measured}"

    @property
    def sentence(self) -> str:
        """The drift in numbers, and the questions of some anchors above the limit, on one line."""
        if not self.above:
            return self.summary
        names = listed([f"`{shorten(self.questions[at])}`" for at in self.above], NAMED)
        return f"{self.summary}, {len(self.above):,} above {self.max_drift:g}: {names}"


def known_drift(ledger: Ledger, meta: StateMeta) -> Drift | None:
    """Return what a ledger knows about the watched anchors of its state; None without watched anchors.

    Raises:
        StateError: the file of the anchors is missing or damaged.
    """
    from more_cli.editors.draws import watched_places

    rules = meta.recipe.anchors
    if not rules.watched:
        return None
    held = held_at(ledger, meta, len(ledger.history))
    anchors, gone = held.anchors, corrected(held, ledger)
    every = watched_places(len(anchors), rules.watched)
    questions = {place: anchors[place].question for place in every if place not in gone}
    if not questions:
        return None
    seen: dict[int, float] = {}
    after: dict[int, DriftAfter] = {}
    edits: set[str] = set()
    for entry in ledger.history:
        if entry.kind == "edit":
            edits.add(entry.id)
        if drifts := {at: drift for at, drift in entry.drifts if at in questions}:
            seen |= drifts
            mean = round(sum(seen.values()) / len(seen), 6)
            after[len(edits)] = DriftAfter(len(edits), mean, max(seen.values()))
    return Drift(questions, seen, list(after.values()), rules.max_drift)


def _short(drift: float) -> str:
    return f"{round(drift, 4):.2g}"
