"""The check-then-write loop: score the new edit and the past edits most at risk, write those that fail.

Pass k of edit t; the recipe switches every part:

1. Working set: t, what failed in the last pass and, in the first passes, K past edits drawn by risk.
2. Forward once. An edit fails when its least sure target token leads by less than the margin.
3. Stop when nothing fails; after enough draws, when t holds; at the latest after `max_steps` writes.
4. One write on t and the failing edits, together with k_a anchors: L = mean NLL + KL(base || edited),
   B <- B - eta G P (Eq. closedform).
5. At the end P absorbs t's key (Eq. sm-update), once.

Without rehearsal and anchors this is the paper's loop. Not in the paper: the check before a write, past edits,
anchors, and the guard that undoes a write which raises the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from more_cli.clock import timed
from more_cli.editors.anchors import Anchor, drift
from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.more.advice import Failure, explain
from more_cli.editors.more.rehearsal import EncodedEdits, draw, draw_anchors
from more_cli.editors.more.sites import Sites
from more_cli.editors.outcome import EditScore, edit_scores, status_of
from more_cli.model.batches import Batch
from more_cli.model.runtime import Runtime, Scored
from more_cli.recipe import Joint, Recipe


def learn(request: EditRequest, passes: Passes) -> EditOutcome:
    """Write one edit until it holds, at most `max_steps` times, or undo the writes and refuse it."""
    new, recipe, sites = passes.context.number, passes.recipe, passes.sites
    passes.encoded.put(new, request)
    before, stopped = sites.snapshot(), ""
    # The key is taken alone, because padding from other edits in a batch would change it; and before any write,
    # because it must describe the edit to a model that has not drifted yet. The paper takes it after the write.
    passes.scores = passes.score([new], record=True)
    first, keys = passes.scores[new], sites.keys(passes.batch([new]))
    passes.scores |= passes.score(_drawn(passes))
    while passes.writes < recipe.max_steps and not _settled(passes):
        chosen = [new, *(number for number in passes.failing() if number != new)]
        steps = sites.steps(passes.gradient(chosen), recipe)
        if recipe.absorb == "write":
            fresh = sites.keys(passes.batch([new])) if passes.alone else keys
            sites.absorb({name: key for name, key in fresh.items() if name in steps})
        if stopped := passes.write(chosen, steps, _drawn(passes, chosen)):
            break
    last = passes.scores[new]
    if stopped and not last.right:
        sites.restore(before)
        return _outcome(passes, first, first, refused=_explained(passes, first, last, stopped))
    if recipe.absorb == "edit":
        sites.absorb(keys)
    return _outcome(passes, first, last, wrong="" if last.right else _explained(passes, first, last, ""))


def admit(request: EditRequest, passes: Passes) -> EditOutcome:
    """Score one edit and let P absorb its key, without a write: `consolidate` writes it together with others."""
    new = passes.context.number
    passes.encoded.put(new, request)
    passes.scores = passes.score([new], record=True)
    passes.sites.absorb(passes.sites.keys(passes.batch([new])))
    return _outcome(passes, passes.scores[new], passes.scores[new])


def consolidate(numbers: Iterable[int], passes: Passes, rules: Joint) -> list[int]:
    """Score all these edits and write those that fail together, round by round; `passes.margin` is the one to reach.

    O(T), meant for the end of a stream. Returns the edits that do not hold by the margin of a single edit.
    """
    numbers = list(numbers)
    for _ in range(rules.rounds):
        scores = passes.score(numbers)
        passes.scores = scores
        failing = sorted(passes.failing(), key=lambda number: scores[number].margin)
        if not failing:
            break
        for start in range(0, len(failing), rules.size):
            chosen = failing[start : start + rules.size]
            passes.scores = {number: scores[number] for number in chosen}
            passes.write(chosen, passes.sites.steps(passes.gradient(chosen), passes.recipe))
    else:
        passes.scores = passes.score(numbers)
    passes.margin = passes.recipe.margin
    return passes.failing()


@dataclass
class Passes:
    """The passes through the model during one edit, or one consolidation, and their latest scores."""

    context: EditContext
    runtime: Runtime
    sites: Sites
    recipe: Recipe
    anchors: Sequence[Anchor]
    encoded: EncodedEdits
    margin: float
    """Logits by which an edit must lead to hold, with the criterion `margin`."""
    alone: bool = False
    """Edits are scored and written one by one, so that one pass serves both."""
    scores: dict[int, EditScore] = field(default_factory=dict)
    """Scores of the last pass, by number of the edit."""
    margins: dict[int, float] = field(default_factory=dict)
    """Last margin of every edit that was scored."""
    writes: int = 0
    passes: int = 0
    """Samples sent forward; `cost` counts as in `EditOutcome`."""
    cost: float = 0.0
    written: set[str] = field(default_factory=set)
    """Names of the sites that were written."""
    against: list[int] = field(default_factory=list)
    """Past edits of the last write that it moved away from their targets."""
    drifts: dict[str, Tensor] = field(default_factory=dict)
    """KL of the anchors of the last write just before it, nats per token, by question."""
    scored: Scored = field(init=False)
    """The last pass."""

    def failing(self) -> list[int]:
        """Return the edits of the last pass that do not hold."""
        return [number for number, score in self.scores.items() if not self.holds(score)]

    def holds(self, score: EditScore) -> bool:
        """Return whether an edit holds by the recipe's criterion."""
        if self.recipe.criterion == "margin":
            return score.margin >= self.margin
        return score.right and score.nll < self.recipe.target_nll

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
            rows += edit_scores(self.scored)
        scores = dict(zip(numbers, rows, strict=True))
        self.margins |= {number: score.margin for number, score in scores.items()}
        self.passes += len(numbers)
        self.cost += len(numbers) / 3
        return scores

    @timed("gradient")
    def gradient(self, chosen: Sequence[int]) -> float:
        """Run the forward and backward pass of a write on these edits; return L = mean NLL + KL(base || edited)."""
        if self.alone:
            self.cost += 2 / 3  # the forward pass was made and counted by `score`
            return self.runtime.backward(self.scored.nll().mean())
        key = self.recipe.rehearsal.seed, self.context.number, self.writes
        anchors = draw_anchors(self.anchors, self.recipe.anchors.size, *key)
        self.drifts = {}
        samples = [self.encoded.get(number, self.context) for number in chosen] + [anchor.encoded for anchor in anchors]
        total, start = 0.0, 0
        for part in self.runtime.parts(samples, "backward"):
            scored = self.runtime.score(self.runtime.batch(part), record=True, add=start > 0)
            edits = min(max(len(chosen) - start, 0), len(part))
            loss = scored[:edits].nll().sum() / len(chosen)
            if held := anchors[start + edits - len(chosen) :][: len(part) - edits]:
                moved = drift(scored[edits:], held)
                self.drifts |= dict(zip((anchor.question for anchor in held), moved.detach(), strict=True))
                loss = loss + moved.sum() / len(anchors)
            total += self.runtime.backward(loss)
            start += len(part)
        self.passes += len(samples)
        self.cost += len(samples)
        return total

    def write(self, chosen: Sequence[int], steps: Mapping[str, Tensor], also: Sequence[int] = ()) -> str:
        """Write steps computed for `chosen`, score these and `also` again, and return why it failed, or "".

        A write that raises the mean NLL of `chosen` is undone and tried at half its length (the paper has no such
        guard). If that raises it too, model and scores are as before.
        """
        before, scores = self.sites.snapshot(), self.scores
        loss = mean_nll(scores, chosen)
        self.writes += 1
        for share in (1.0, 0.5) if self.recipe.guard else (1.0,):
            self.sites.write(before, steps, share)
            again = [*chosen, *(number for number in also if number not in chosen)]
            self.scores = self.score(again, record=self.alone and self.writes < self.recipe.max_steps)
            reached = mean_nll(self.scores, chosen)
            past = (number for number in chosen if number != self.context.number)
            self.against = [number for number in past if self.scores[number].nll > scores[number].nll]
            if not math.isfinite(reached) or not self.sites.finite():
                self.sites.restore(before)
                self.scores = scores
                return "a write is not finite"
            if not self.recipe.guard or reached <= loss or not self.failing():
                self.written |= set(steps)
                return ""
        self.sites.restore(before)
        self.scores, self.writes = scores, self.writes - 1
        return f"two writes raised the loss (from {loss:.3g} to {reached:.3g} nats)"


def mean_nll(scores: Mapping[int, EditScore], numbers: Sequence[int]) -> float:
    """Return the mean over these edits, in nats per token."""
    return sum(scores[number].nll for number in numbers) / len(numbers)


def _settled(passes: Passes) -> bool:
    """Return whether nothing fails or, once past edits were drawn often enough, the new edit holds."""
    failing = passes.failing()
    enough = passes.writes + 1 >= passes.recipe.rehearsal.draws
    return passes.recipe.stop_early and (not failing or (enough and passes.context.number not in failing))


def _drawn(passes: Passes, chosen: Iterable[int] = ()) -> list[int]:
    """Return the past edits to score in the next pass; none once enough were drawn."""
    context, rehearsal = passes.context, passes.recipe.rehearsal
    pass_ = passes.writes + bool(chosen)
    if rehearsal.size == 0 or pass_ >= rehearsal.draws:
        return []
    past = context.past.updated(passes.margins, context.number)
    return draw(past, context.number, pass_, rehearsal, taken=set(chosen))


def _explained(passes: Passes, first: EditScore, last: EditScore, stopped: str) -> str:
    against = [passes.context.recall(number).id for number in passes.against]
    drifts = {question: float(moved) for question, moved in passes.drifts.items()}
    return explain(Failure(passes.recipe, first, last, passes.writes, stopped, against, drifts))


def _outcome(passes: Passes, first: EditScore, last: EditScore, *, refused: str = "", wrong: str = "") -> EditOutcome:
    """Return the outcome of an edit; `refused` and `wrong` say why it does not stand."""
    text = passes.runtime.prompter.text
    return EditOutcome(
        status="refused" if refused else status_of(last, passes.writes),
        nll_before=first.nll,
        nll_after=last.nll,
        forced_before=text(first.predicted),
        forced_after=text(last.predicted),
        right_after=last.right,
        writes=0 if refused else passes.writes,
        passes=passes.passes,
        cost=round(passes.cost, 2),
        # Three digits: the ledger stores a margin as text, and it must be read back as the same number.
        looks={} if refused else {number: round(margin, 3) for number, margin in passes.margins.items()},
        reason=refused or wrong,
        sites=() if refused else tuple(sorted(passes.written)),
    )
