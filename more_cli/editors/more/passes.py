"""The passes through the model during one edit, or one consolidation: scores, gradients, writes of the right length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from more_cli.clock import timed
from more_cli.editors.anchors import Anchor, drift
from more_cli.editors.base import EditContext
from more_cli.editors.more.rehearsal import EncodedEdits, draw_anchors
from more_cli.editors.more.site import Step
from more_cli.editors.more.sites import Sites, Snapshot
from more_cli.editors.outcome import EditScore, edit_scores
from more_cli.model.batches import Batch, Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.recipe.schema import Recipe

NOT_FINITE = "a write is not finite"
NO_STEP = "no shorter step decreases the loss"


@dataclass
class Passes:
    """The passes of one edit, or one consolidation, and their latest scores."""

    context: EditContext
    runtime: Runtime
    sites: Sites
    recipe: Recipe
    anchors: Sequence[Anchor]
    """The held ones: every write draws some of them."""
    encoded: EncodedEdits
    margin: float
    """Logits by which an edit must lead to hold, with the criterion `margin`."""
    alone: bool = False
    """Edits are scored and written one by one, so that one pass serves both."""
    wordings: Sequence[Encoded] = ()
    """The new edit under other prompts: each write is trained on one of them, in turn."""
    always: list[Anchor] = field(default_factory=list)
    """Anchors that take part in every write."""
    longest: float = 1.0
    """Largest share of a step that is written."""
    reach: float = 1.0
    """Share of the step at which the next write starts: the length that worked last."""
    scores: dict[int, EditScore] = field(default_factory=dict)
    """Scores of the last pass, by number of the edit."""
    margins: dict[int, float] = field(default_factory=dict)
    """Last margin of every edit that was scored."""
    writes: int = 0
    passes: int = 0
    """Samples sent forward; `cost` counts as in `EditOutcome`."""
    cost: float = 0.0
    last: tuple[Sequence[int], Mapping[str, Step]] = ((), {})
    """The edits and the steps of the last write; none before the first, and after one that failed."""
    written: set[str] = field(default_factory=set)
    """Names of the sites that were written."""
    against: list[int] = field(default_factory=list)
    """Past edits of the last write that it moved away from their targets."""
    drifts: dict[str, Tensor] = field(default_factory=dict)
    """KL of the anchors of the last write just before it, nats per token, by question."""
    scored: Scored = field(init=False)
    """The last pass."""
    start: Snapshot = field(init=False)
    """The sites before the edit."""

    def begin(self, again: Sequence[Look] = ()) -> None:
        """Score the new edit; to write it `again`, undo what was written, halve the steps and hold these anchors."""
        if again:
            self.sites.restore(self.start)
            self.always += [look.anchor for look in again]
            self.longest /= 2
            self.writes, self.margins, self.written = 0, {}, set()
        self.start, self.reach, self.last = self.sites.snapshot(), self.longest, ((), {})
        self.scores = self.score([self.context.number], record=True)

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """Run with the sites as they were before the edit."""
        written = self.sites.snapshot()
        self.sites.restore(self.start)
        try:
            yield
        finally:
            self.sites.restore(written)

    def failing(self) -> list[int]:
        """Return the edits of the last pass that do not hold."""
        return [number for number, score in self.scores.items() if not self.holds(score)]

    @property
    def handicap(self) -> float:
        """Logits by which the loss lowers every target token, so that it falls until the edit leads by the margin."""
        return self.margin if self.recipe.loss == "margin" else 0.0

    def holds(self, score: EditScore) -> bool:
        """Return whether an edit holds by the recipe's criterion."""
        if self.recipe.criterion == "margin":
            return score.margin >= self.margin
        return score.right and score.nll < self.recipe.target_nll

    def loss(self, numbers: Sequence[int]) -> float:
        """Return the mean loss of these edits in the last pass: what a write must decrease."""
        return sum(self.scores[number].loss for number in numbers) / len(numbers)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return edits as the tensors of one pass."""
        return self.runtime.batch([self.encoded.get(number, self.context) for number in numbers])

    @timed("look")
    def score(self, numbers: Sequence[int], *, record: bool = False) -> dict[int, EditScore]:
        """Send edits forward; `record`, for a single edit, keeps its keys and what a write needs."""
        rows: list[EditScore] = []
        for part in self.runtime.parts((self.encoded.get(number, self.context) for number in numbers), "forward"):
            both_ways = record and self.alone
            self.scored = self.runtime.score(self.runtime.batch(part), keys=record, record=both_ways)
            rows += edit_scores(self.scored, self.handicap)
        scores = dict(zip(numbers, rows, strict=True))
        self.margins |= {number: score.margin for number, score in scores.items()}
        self.passes += len(numbers)
        self.cost += len(numbers) / 3
        return scores

    @timed("look")
    def look(self, anchors: Sequence[Anchor]) -> list[Look]:
        """Send anchors forward and return how far each has moved."""
        looks: list[Look] = []
        for part in self.runtime.parts((anchor.encoded for anchor in anchors), "forward"):
            scored = self.runtime.score(self.runtime.batch(part))
            asked = anchors[len(looks) : len(looks) + len(part)]
            said = [row[-len(anchor.base) :] for row, anchor in zip(scored.predicted().cpu(), asked, strict=True)]
            looks += [Look(*row) for row in zip(asked, drift(scored, asked).tolist(), said, strict=True)]
        self.passes += len(anchors)
        self.cost += len(anchors) / 3
        return looks

    def count(self, other: Passes) -> None:
        """Take over what other passes cost and measured."""
        self.margins |= other.margins
        self.written |= other.written
        self.writes += other.writes
        self.passes += other.passes
        self.cost += other.cost

    def absorbed(self, before: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the new edit's keys that P absorbs: those `before` the write or, with `key_taken`, those after it."""
        if self.recipe.key_taken == "before":
            return before
        self.score([self.context.number], record=True)
        return self.sites.keys(self.batch([self.context.number]))

    def absorb_anchors(self) -> None:
        """Let P of the written sites absorb the keys of the next few anchors, where the recipe says so.

        The authors' code does this with the locality questions that score the edit; these never are.
        """
        size = min(self.recipe.anchors.per_edit, len(self.anchors))
        if not self.written:
            return
        for place in range(size * (self.context.number - 1), size * self.context.number):
            self.runtime.score(self.runtime.batch([self.anchors[place % len(self.anchors)].encoded]), keys=True)
            keys = self.sites.whole_keys()
            self.sites.absorb({name: key for name, key in keys.items() if name in self.written})
        self.passes += size
        self.cost += size / 3

    def steps(self, chosen: Sequence[int]) -> dict[str, Step]:
        """Return the steps of a write on these edits; conjugate to the last one only if that wrote the same edits."""
        before, last = self.last
        loss = self.gradient(chosen)
        return self.sites.steps(loss, self.recipe, last if before == chosen else {})

    @timed("gradient")
    def gradient(self, chosen: Sequence[int]) -> float:
        """Run the forward and backward pass of a write on these edits; return L = mean loss + KL(base || edited)."""
        if self.alone:
            self.cost += 2 / 3  # the forward pass was made and counted by `score`
            return self.runtime.backward(self.scored.nll(self.handicap).mean())
        key = self.recipe.rehearsal.seed, self.context.number, self.writes
        anchors = [*self.always, *draw_anchors(self.anchors, self.recipe.anchors.size, *key)]
        self.drifts = {}
        samples = [self.encoded.get(number, self.context) for number in chosen]
        if self.wordings and self.context.number in chosen:
            samples.append(self.wordings[(self.context.number + self.writes) % len(self.wordings)])
        targets = len(samples)
        samples += [anchor.encoded for anchor in anchors]
        total, start = 0.0, 0
        for part in self.runtime.parts(samples, "backward"):
            scored = self.runtime.score(self.runtime.batch(part), record=True, add=start > 0)
            edits = min(max(targets - start, 0), len(part))
            loss = scored[:edits].nll(self.handicap).sum() / targets
            if held := anchors[start + edits - targets :][: len(part) - edits]:
                moved = drift(scored[edits:], held)
                self.drifts |= dict(zip((anchor.question for anchor in held), moved.detach(), strict=True))
                loss = loss + moved.sum() / len(anchors)
            total += self.runtime.backward(loss)
            start += len(part)
        self.passes += len(samples)
        self.cost += len(samples)
        return total

    def write(self, chosen: Sequence[int], steps: Mapping[str, Step], also: Sequence[int] = ()) -> str:
        """Write steps computed for `chosen`, score these and `also` again, and return why it failed, or "".

        The paper accepts every step. Here one that does not decrease the loss of `chosen` is halved, at most `halvings`
        times, and the length that worked is where the next write starts. If none works, all is as before.
        """
        before, scores, loss = self.sites.snapshot(), self.scores, self.loss(chosen)
        self.last = (), {}
        again = [*chosen, *(number for number in also if number not in chosen)]
        self.writes += 1
        for halving in range(self.recipe.halvings + 1):
            share = self.reach / 2**halving
            self.sites.write(before, steps, share)
            self.scores = self.score(again, record=self.alone and self.writes < self.recipe.max_steps)
            finite = math.isfinite(self.loss(chosen)) and self.sites.finite()
            if finite and (self.loss(chosen) < loss or not self.recipe.halvings):
                self.reach = share if halving else min(2 * share, self.longest)
                self.written |= set(steps)
                self.last = chosen, steps
                past = (number for number in chosen if number != self.context.number)
                self.against = [number for number in past if self.scores[number].nll > scores[number].nll]
                return ""
        self.sites.restore(before)
        self.scores, self.writes = scores, self.writes - 1
        return NO_STEP if finite else NOT_FINITE


@dataclass(frozen=True)
class Look:
    """How far an anchor has moved."""

    anchor: Anchor
    drift: float
    """KL(base || edited), nats per token."""
    said: Tensor
    """(K,) most likely token at each position of its answer."""
