"""The harm budget: watched anchors, which no write trains on, and what an edit did to those nearest to its key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.draws import watched_places
from more_cli.editors.more.passes import Moved, Passes
from more_cli.editors.more.sites import Sites
from more_cli.text import counted, shorten

TOLERANCE = 0.1
"""Share of the budget by which an edit may move an anchor that was beyond the budget before."""
NEAR = 8
"""Number of watched anchors that are scored after an edit: those whose keys are most like the edit's."""
SWEEP = 32
"""Number of edits after which all watched anchors are scored."""
NAMED = 2
"""Largest number of anchors that a refusal names."""


def split(anchors: Sequence[Anchor], every: int, start: int = 0) -> tuple[dict[int, Anchor], dict[int, Anchor]]:
    """Return the held and the watched anchors by place, of those from place `start` on.

    One of `every` in a row is watched, drawn at random.
    """
    new = dict(enumerate(anchors, start))
    watched = {place: new[place] for place in watched_places(start + len(new), every) if place in new}
    return {place: anchor for place, anchor in new.items() if place not in watched}, watched


@dataclass(frozen=True)
class Watched:
    """The watched anchors, each with the direction of its keys: an edit with a similar direction is near it."""

    anchors: Mapping[int, Anchor]
    """By place in the set of anchors."""
    directions: Tensor
    """(n, R) the keys at all text sites, each of unit length, side by side."""

    def without(self, places: Collection[int]) -> Watched | None:
        """Return those that are not at these places; None if none are left."""
        kept = [i for i, place in enumerate(self.anchors) if place not in places]
        left = {place: anchor for place, anchor in self.anchors.items() if place not in places}
        return Watched(left, self.directions[kept]) if left else None

    def joined(self, anchors: Mapping[int, Anchor], directions: Tensor) -> Self:
        """Return these and further ones, with their directions."""
        joined = torch.cat([self.directions, directions]) if self.anchors else directions
        return type(self)({**self.anchors, **anchors}, joined)

    def nearest(self, direction: Tensor, size: int) -> list[int]:
        """Return the places of the `size` anchors whose keys are most like this one, the nearest first."""
        likeness = self.directions @ direction
        order = torch.argsort(likeness, descending=True, stable=True)[:size].tolist()
        places = list(self.anchors)
        return [places[i] for i in order]

    def moved(self, passes: Passes, places: Sequence[int]) -> dict[int, Moved]:
        """Return how far the anchors at these places have moved, by place."""
        return dict(zip(places, passes.moved([self.anchors[place] for place in places]), strict=True))

    def drifts(self, passes: Passes) -> dict[int, float]:
        """Return how far every watched anchor has moved, nats per token, by place."""
        return {place: round(moved.drift, 4) for place, moved in self.moved(passes, list(self.anchors)).items()}


def direction(keys: Mapping[str, Tensor], sites: Sites) -> Tensor:
    """Return the keys of one input at the text sites, (R,), each of unit length; a site that did not run counts 0."""
    parts = []
    for site in sites:
        if site.record.modality == "text":
            key = keys.get(site.record.name)
            rank = site.record.rank
            mean = site.P.new_zeros(rank) if key is None else key.reshape(-1, rank).mean(dim=0).double()
            parts.append(torch.nn.functional.normalize(mean, dim=0))
    # Joined on one device first, so that one transfer fetches them.
    return torch.cat([part.to(parts[0].device) for part in parts]).cpu() if parts else torch.zeros(0).double()


@dataclass
class Watch:
    """What one edit does to the watched anchors."""

    watched: Watched
    passes: Passes
    places: Sequence[int]
    """Those that are scored after the edit."""
    joint: bool = False
    """Whether many edits were written: then as many anchors may be beyond the budget as were before them."""
    moved: dict[int, Moved] = field(default_factory=dict)
    """How far they have moved after the edit, by place."""
    before: dict[int, float] = field(default_factory=dict)
    """How far they had moved before the edit, nats per token, by place; only of those for which it was asked."""
    harmed: list[Moved] = field(default_factory=list)
    """Those that the edit moved beyond the budget, the farthest first."""

    @classmethod
    def over(cls, watched: Watched, passes: Passes, keys: Mapping[str, Tensor]) -> Self:
        """Return the watch over an edit with these keys: the nearest anchors or, every `SWEEP` edits, all."""
        if passes.context.number % SWEEP == 0:
            return cls(watched, passes, list(watched.anchors))
        return cls(watched, passes, watched.nearest(direction(keys, passes.model.sites), NEAR))

    @property
    def drifts(self) -> dict[int, float]:
        """How far each anchor that was scored has moved, nats per token, by place."""
        return {place: round(moved.drift, 4) for place, moved in self.moved.items()}

    def harm(self) -> bool:
        """Score the anchors, and return whether the edit moved any of them beyond the budget."""
        self.moved, self.harmed = {}, []
        if not self.passes.tally.written:
            return False
        budget = self.passes.recipe.anchors.max_drift
        self.moved = self.watched.moved(self.passes, self.places)
        over = [place for place, moved in self.moved.items() if moved.drift > budget]
        before = self._before(self.places if self.joint else over)
        by_edit = [place for place in over if self.moved[place].drift > before[place] + TOLERANCE * budget]
        if self.joint and len(over) <= sum(drift > budget for drift in before.values()):
            return False
        self.harmed = sorted((self.moved[place] for place in by_edit), key=lambda moved: -moved.drift)
        return bool(by_edit)

    def _before(self, places: Sequence[int]) -> dict[int, float]:
        """Return how far the anchors at these places had moved before the edit, by place; each is scored once."""
        if unknown := [place for place in places if place not in self.before]:
            with self.passes.before_edit():
                moved = self.watched.moved(self.passes, unknown)
            self.before |= {place: one.drift for place, one in moved.items()}
        return {place: self.before[place] for place in places}

    def sentence(self) -> str:
        """Return which answers the edit would have changed, and how."""
        named = ", ".join(map(self._change, self.harmed[:NAMED]))
        rest = f" and {counted(len(self.harmed) - NAMED, 'more anchor')}" if len(self.harmed) > NAMED else ""
        return f"it would change {named}{rest}"

    def _change(self, moved: Moved) -> str:
        text = self.passes.model.runtime.prompter.text
        before, after = text(moved.anchor.tokens), text(moved.said)
        change = f"from `{shorten(before)}` to `{shorten(after)}` (" if before != after else f"(`{shorten(before)}`, "
        return f"the answer to `{shorten(moved.anchor.question)}` {change}by {moved.drift:.2g} nats)"
