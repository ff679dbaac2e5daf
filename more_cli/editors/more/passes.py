"""The passes through the model during one edit, or one consolidation: scores, gradients, writes of the right length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from more_cli.clock import timed
from more_cli.editors.anchors import Anchor, drift
from more_cli.editors.base import EditContext
from more_cli.editors.more.rehearsal import EncodedEdits, draw_anchors
from more_cli.editors.more.sites import Sites, Snapshot, Step
from more_cli.editors.outcome import EditScore, edit_scores
from more_cli.model.batches import Batch, Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.recipe.schema import Recipe

NOT_FINITE = "a write is not finite"
NO_STEP = "no shorter step decreases the loss"


@dataclass(frozen=True)
class Attached:
    """The model, the sites in it, and the encoded edits, while the editor is attached."""

    runtime: Runtime
    sites: Sites
    encoded: EncodedEdits


@dataclass
class Attempt:
    """One attempt at an edit; the next one takes half the step and trains on the anchors that this one harmed."""

    harmed: list[Anchor] = field(default_factory=list)
    """Anchors that earlier attempts harmed: they take part in every write."""
    max_step: float = 1.0
    """Largest share of a step that is written."""
    next_step: float = 1.0
    """Share of the step that the next write tries first: the share that worked last."""
    start: Snapshot = field(init=False)
    """The sites before the edit."""

    def train_on(self, harmed: Iterable[Anchor]) -> None:
        """Let these anchors take part in every write from now on."""
        known = {id(anchor) for anchor in self.harmed}
        self.harmed += [anchor for anchor in harmed if id(anchor) not in known]

    def limit(self, share: float) -> None:
        """Take at most this share of every step from now on."""
        self.max_step = self.next_step = share


@dataclass
class LastWrite:
    """The last write that succeeded."""

    edits: Sequence[int] = ()
    """Numbers of the edits that it wrote; none before the first write, and after one that failed."""
    steps: Mapping[str, Step] = field(default_factory=dict)
    """By name of the site; none where `edits` is empty."""
    worsened: list[int] = field(default_factory=list)
    """Past edits among them whose targets became less likely."""
    drifts: dict[str, Tensor] = field(default_factory=dict)
    """KL of its anchors just before it, nats per token, by question; also of a write that failed."""

    def forget_steps(self) -> None:
        """Let the next write follow no other one."""
        self.edits, self.steps = (), {}


@dataclass
class Tally:
    """What the passes cost and measured so far."""

    writes: int = 0
    written: set[str] = field(default_factory=set)
    """Names of the sites that were written."""
    margins: dict[int, float] = field(default_factory=dict)
    """Last margin of every edit that was scored."""
    passes: int = 0
    """Samples sent forward."""
    cost: float = 0.0
    """As in `EditOutcome`."""

    def undo_writes(self) -> None:
        """Forget the writes and what they led to; the passes were made, and count."""
        self.writes, self.written, self.margins = 0, set(), {}

    def add(self, other: Tally) -> None:
        """Take over what other passes cost and measured."""
        self.writes += other.writes
        self.written |= other.written
        self.margins |= other.margins
        self.passes += other.passes
        self.cost += other.cost


@dataclass
class Passes:
    """The passes of one edit, or one consolidation, and their latest scores."""

    context: EditContext
    model: Attached
    recipe: Recipe
    anchors: Sequence[Anchor]
    """The held ones: every write draws some of them."""
    margin: float
    """Logits by which an edit must lead to hold, with the criterion `margin`."""
    one_pass: bool = False
    """Whether the pass that scores an edit also serves its write: nothing else takes part in a write."""
    wordings: Sequence[Encoded] = ()
    """The new edit under other prompts: each write is trained on one of them, in turn."""
    attempt: Attempt = field(default_factory=Attempt)
    last: LastWrite = field(default_factory=LastWrite)
    tally: Tally = field(default_factory=Tally)
    scores: dict[int, EditScore] = field(default_factory=dict)
    """Scores of the last pass, by number of the edit."""
    scored: Scored = field(init=False)
    """The last pass itself."""

    def begin(self, harmed: Sequence[Moved] = ()) -> None:
        """Score the new edit; if an attempt `harmed` anchors, undo it first, halve the steps and train on these."""
        attempt = self.attempt
        if harmed:
            self.model.sites.restore(attempt.start)
            attempt.train_on(moved.anchor for moved in harmed)
            attempt.limit(attempt.max_step / 2)
            self.tally.undo_writes()
        attempt.start, attempt.next_step = self.model.sites.snapshot(), attempt.max_step
        self.last.forget_steps()
        self.scores = self.score([self.context.number], record=True)

    @contextmanager
    def before_edit(self) -> Iterator[None]:
        """Run with the sites as they were before the edit."""
        with self.model.sites.undone():
            self.model.sites.restore(self.attempt.start)
            yield

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
        return self.model.runtime.batch([self._encoded(number) for number in numbers])

    def _encoded(self, number: int) -> Encoded:
        return self.model.encoded.get(number, self.context)

    @timed("look")
    def score(self, numbers: Sequence[int], *, record: bool = False) -> dict[int, EditScore]:
        """Send edits forward; `record`, for a single edit, keeps its keys and what a write needs."""
        rows: list[EditScore] = []
        runtime = self.model.runtime
        for part in runtime.parts(map(self._encoded, numbers), "forward"):
            self.scored = runtime.score(runtime.batch(part), keys=record, record=record and self.one_pass)
            rows += edit_scores(self.scored, self.handicap)
        scores = dict(zip(numbers, rows, strict=True))
        self.tally.margins |= {number: score.margin for number, score in scores.items()}
        self.tally.passes += len(numbers)
        self.tally.cost += len(numbers) / 3
        return scores

    @timed("look")
    def moved(self, anchors: Sequence[Anchor]) -> list[Moved]:
        """Send anchors forward and return how far each has moved."""
        found: list[Moved] = []
        for scored in self.model.runtime.score_all(anchor.encoded for anchor in anchors):
            asked = anchors[len(found) : len(found) + len(scored)]
            said = [row[-len(anchor.base) :] for row, anchor in zip(scored.predicted().cpu(), asked, strict=True)]
            found += [Moved(*row) for row in zip(asked, drift(scored, asked).tolist(), said, strict=True)]
        self.tally.passes += len(anchors)
        self.tally.cost += len(anchors) / 3
        return found

    def absorbed(self, before: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the new edit's keys that P absorbs: those `before` the write or, with `key_taken`, those after it."""
        if self.recipe.key_taken == "before":
            return before
        self.score([self.context.number], record=True)
        return self.model.sites.keys(self.batch([self.context.number]))

    def absorb_anchors(self) -> None:
        """Let P of the written sites absorb the keys of the next few anchors, where the recipe says so.

        The authors' code does this with the locality questions that score the edit; these never are.
        """
        size = min(self.recipe.anchors.per_edit, len(self.anchors))
        if not self.tally.written:
            return
        runtime, sites = self.model.runtime, self.model.sites
        for place in range(size * (self.context.number - 1), size * self.context.number):
            runtime.score(runtime.batch([self.anchors[place % len(self.anchors)].encoded]), keys=True)
            keys = sites.mean_keys()
            sites.absorb({name: key for name, key in keys.items() if name in self.tally.written})
        self.tally.passes += size
        self.tally.cost += size / 3

    def steps(self, chosen: Sequence[int], *, rescore: bool = False) -> dict[str, Step]:
        """Return the steps of a write on these edits; conjugate to the last one only if that wrote the same edits.

        `rescore` takes their scores from the pass that the gradient needs.
        """
        if rescore:
            self.scores = {}
        loss = self.gradient(chosen, rescore=rescore)
        return self.model.sites.steps(loss, self.recipe, self.last.steps if self.last.edits == chosen else {})

    @timed("gradient")
    def gradient(self, chosen: Sequence[int], *, rescore: bool = False) -> float:
        """Run the forward and backward pass of a write on these edits; return L = mean loss + KL(base || edited)."""
        runtime, tally = self.model.runtime, self.tally
        if self.one_pass:
            tally.cost += 2 / 3  # the forward pass was made and counted by `score`
            return runtime.backward(self.scored.nll(self.handicap).mean())
        key = self.context.number, tally.writes
        anchors = [*self.attempt.harmed, *draw_anchors(self.anchors, self.recipe.anchors.size, *key)]
        self.last.drifts = {}
        edits = [self._encoded(number) for number in chosen]
        if self.wordings and self.context.number in chosen:
            edits.append(self.wordings[(self.context.number + tally.writes) % len(self.wordings)])
        samples = [*edits, *(anchor.encoded for anchor in anchors)]
        anchor_of: list[Anchor | None] = [*(None for _ in edits), *anchors]
        total, start = 0.0, 0
        for part in runtime.parts(samples, "backward"):
            scored = runtime.score(runtime.batch(part), record=True, add=start > 0)
            held = [anchor for anchor in anchor_of[start : start + len(part)] if anchor]
            own = len(part) - len(held)  # edits come first
            if rescore and own:
                rows = edit_scores(scored[:own], self.handicap)
                self.scores |= dict(zip(chosen[start : start + own], rows, strict=True))
            loss = scored[:own].nll(self.handicap).sum() / len(edits)
            if held:
                moved = drift(scored[own:], held)
                self.last.drifts |= dict(zip((anchor.question for anchor in held), moved.detach(), strict=True))
                loss = loss + moved.sum() / len(anchors)
            total += runtime.backward(loss)
            start += len(part)
        tally.passes += len(samples)
        tally.cost += len(samples)
        return total

    def write(self, chosen: Sequence[int], steps: Mapping[str, Step], also: Sequence[int] = ()) -> str:
        """Write steps computed for `chosen`, score these and `also` again, and return why it failed, or "".

        The paper accepts every step. Here a step that does not decrease the loss of `chosen` is halved, at most
        `halvings` times, and the next write starts at the length that worked. If no length works, nothing is written.
        """
        sites, attempt, last, tally = self.model.sites, self.attempt, self.last, self.tally
        before, scores, loss = sites.snapshot(), self.scores, self.loss(chosen)
        margins = dict(tally.margins)
        last.forget_steps()
        again = [*chosen, *(number for number in also if number not in chosen)]
        tally.writes += 1
        for halving in range(self.recipe.halvings + 1):
            share = attempt.next_step / 2**halving
            sites.write(before, steps, share)
            self.scores = self.score(again, record=self.one_pass and tally.writes < self.recipe.max_steps)
            finite = math.isfinite(self.loss(chosen)) and sites.finite()
            if finite and (self.loss(chosen) < loss or not self.recipe.halvings):
                attempt.next_step = share if halving else min(2 * share, attempt.max_step)
                tally.written |= set(steps)
                last.edits, last.steps = chosen, steps
                past = (number for number in chosen if number != self.context.number)
                last.worsened = [number for number in past if self.scores[number].nll > scores[number].nll]
                return ""
        sites.restore(before)
        self.scores, tally.margins, tally.writes = scores, margins, tally.writes - 1
        return NO_STEP if finite else NOT_FINITE


@dataclass(frozen=True)
class Moved:
    """How far an anchor has moved."""

    anchor: Anchor
    drift: float
    """KL(base || edited), nats per token."""
    said: Tensor
    """(K,) most likely token at each position of its answer."""
