"""What the check-then-write loop is made of: passes that look, one guarded write, and what they cost."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from more_cli.clock import timed
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.more.anchors import Anchor, draw_anchors, drift
from more_cli.editors.more.sites import Sites
from more_cli.editors.outcome import Found, found_in
from more_cli.editors.past import Past
from more_cli.errors import DataError, StateError
from more_cli.model.batches import Batch, Encoded
from more_cli.model.runtime import Runtime, Scored
from more_cli.recipe import Recipe

KEPT = 256 << 20
"""Bytes of past edits kept as tokens and pixels."""


class Shelf:
    """Past edits as tokens and pixels, the least recently used dropped first."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._encoded: OrderedDict[int, Encoded] = OrderedDict()
        self._bytes = 0

    def put(self, number: int, request: EditRequest) -> None:
        """Encode an edit.

        Raises:
            DataError: it does not fit into the model's context, or an image cannot be read.
        """
        encoded = self.runtime.encode(request.query, request.target)
        if number in self._encoded:
            self._bytes -= self._encoded.pop(number).bytes
        self._encoded[number] = encoded
        self._bytes += encoded.bytes
        while self._bytes > KEPT and len(self._encoded) > 1:
            self._bytes -= self._encoded.popitem(last=False)[1].bytes

    def drop_all_but(self, past: Past) -> None:
        """Forget edits that no longer stand: nothing asks for them again."""
        for number in np.setdiff1d(np.fromiter(self._encoded, np.int64), past.numbers).tolist():
            self._bytes -= self._encoded.pop(number).bytes

    def get(self, number: int, context: EditContext) -> Encoded:
        """Return a past edit, fetched anew if it was dropped.

        Raises:
            StateError: it cannot be had. The new edit is not at fault, so the run ends rather than refuse it.
        """
        if number not in self._encoded:
            request = context.recall(number)
            try:
                self.put(number, request)
            except DataError as error:
                hint = "put it back, or make a state that rehearses nothing: --set rehearsal.size=0"
                raise StateError(f"edit `{request.id}` cannot be rehearsed: {error.message}", hint) from None
        self._encoded.move_to_end(number)
        return self._encoded[number]


@dataclass
class Passes:
    """The passes made during one edit, or one consolidation, and where they have led."""

    context: EditContext
    runtime: Runtime
    sites: Sites
    recipe: Recipe
    anchors: Sequence[Anchor]
    shelf: Shelf
    alone: bool = False
    """Whether edits are checked and written one by one, so that a pass serves both."""
    found: dict[int, Found] = field(default_factory=dict)
    """What the last pass found, by number of the edit."""
    looks: dict[int, float] = field(default_factory=dict)
    """Every margin seen, the last one of each edit."""
    writes: int = 0
    passes: int = 0
    """Samples sent forward; `cost` counts as `EditOutcome` does."""
    cost: float = 0.0
    written: set[str] = field(default_factory=set)
    """Sites."""
    scored: Scored = field(init=False)
    """The last pass."""

    def failing(self) -> list[int]:
        """Return the edits that do not hold, as the last pass found them."""
        return [number for number, found in self.found.items() if not self.holds(found)]

    def holds(self, found: Found) -> bool:
        """Tell whether an edit holds, by the recipe's criterion."""
        if self.recipe.criterion == "margin":
            return found.margin >= self.recipe.margin
        return found.right and found.nll < self.recipe.target_nll

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return edits as the tensors of one pass."""
        return self.runtime.batch([self.shelf.get(number, self.context) for number in numbers])

    @timed("look")
    def look(self, numbers: Sequence[int], *, record: bool = False) -> dict[int, Found]:
        """Send edits forward; with `record`, which is for one edit, its keys are kept, and what a write needs."""
        rows: list[Found] = []
        for part in self.runtime.parts((self.shelf.get(number, self.context) for number in numbers), "forward"):
            both_ways = record and self.alone
            self.scored = self.runtime.score(self.runtime.batch(part), keys=record, record=both_ways)
            rows += found_in(self.scored)
        found = dict(zip(numbers, rows, strict=True))
        self.looks |= {number: seen.margin for number, seen in found.items()}
        self.passes += len(numbers)
        self.cost += len(numbers) / 3
        return found

    @timed("gradient")
    def gradient(self, chosen: Sequence[int]) -> float:
        """Run what a write on these edits needs, backward too, and return L = mean NLL + KL(base || edited)."""
        if self.alone:
            self.cost += 2 / 3  # it was sent forward when it was looked at
            return self.runtime.backward(self.scored.nll().mean())
        key = self.recipe.rehearsal.seed, self.context.number, self.writes
        anchors = draw_anchors(self.anchors, self.recipe.anchors.size, *key)
        samples = [self.shelf.get(number, self.context) for number in chosen] + [anchor.encoded for anchor in anchors]
        total, start = 0.0, 0
        for part in self.runtime.parts(samples, "both ways"):
            scored = self.runtime.score(self.runtime.batch(part), record=True, add=start > 0)
            edits = min(max(len(chosen) - start, 0), len(part))
            loss = scored[:edits].nll().sum() / len(chosen)
            if held := anchors[start + edits - len(chosen) :][: len(part) - edits]:
                loss = loss + drift(scored[edits:], held).sum() / len(anchors)
            total += self.runtime.backward(loss)
            start += len(part)
        self.passes += len(samples)
        self.cost += len(samples)
        return total

    def write(self, chosen: Sequence[int], steps: Mapping[str, Tensor], also: Sequence[int] = ()) -> str:
        """Write steps that were made for `chosen`, look again at these and at `also`, and return what went wrong.

        A write that raises the mean NLL of `chosen` is taken back and tried at half its length (the paper has no
        such guard). When that raises it too, the model and what was found are as before.
        """
        before, found = self.sites.snapshot(), self.found
        loss = mean_nll(found, chosen)
        self.writes += 1
        for share in (1.0, 0.5) if self.recipe.guard else (1.0,):
            self.sites.write(before, steps, share)
            again = [*chosen, *(number for number in also if number not in chosen)]
            self.found = self.look(again, record=self.alone and self.writes < self.recipe.max_steps)
            reached = mean_nll(self.found, chosen)
            if not math.isfinite(reached) or not self.sites.finite():
                self.sites.restore(before)
                self.found = found
                return "a write is not finite"
            if not self.recipe.guard or reached <= loss or not self.failing():
                self.written |= set(steps)
                return ""
        self.sites.restore(before)
        self.found, self.writes = found, self.writes - 1
        return f"two writes raised the loss (from {loss:.3g} to {reached:.3g} nats)"


def mean_nll(found: Mapping[int, Found], numbers: Sequence[int]) -> float:
    """Return the mean over these edits, in nats per token."""
    return sum(found[number].nll for number in numbers) / len(numbers)
