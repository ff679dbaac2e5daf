"""The check-then-write loop: score the new edit and the past edits most at risk, write those that fail.

Pass k of edit t; the recipe switches every part:

1. Working set: t, what failed in the last pass and, in the first passes, K past edits drawn by risk.
2. Forward once. An edit fails when its least sure target token leads by less than the margin.
3. Stop when nothing fails; after enough draws, when t holds; at the latest after `max_steps` writes.
4. One write on t and the failing edits, together with k_a anchors: L = mean loss + KL(base || edited),
   B <- B - eta G P (Eq. closedform), halved until the mean loss of these edits decreases.
5. Score the watched anchors nearest to t's key. If t moved one too far, write t again with shorter steps.
6. At the end P absorbs t's key (Eq. sm-update), once; by default a key of each of its tokens.

The recipe `paper` switches the loop off: one write of length eta, then P absorbs the mean key. Not in the paper: the
check before a write, several writes, Polyak and conjugate steps, damping, past edits, anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.more.advice import Failure, explain
from more_cli.editors.more.passes import NOT_FINITE, Passes
from more_cli.editors.more.rehearsal import draw
from more_cli.editors.more.sites import Snapshot
from more_cli.editors.more.watch import Watch, Watched
from more_cli.editors.outcome import EditScore, forced, status_of
from more_cli.editors.past import LastScore, Past
from more_cli.progress import Progress, no_progress
from more_cli.recipe.tables import Joint

REWRITES = 2
"""Number of times that an edit beyond the harm budget is written again, each time with half the step."""
FEW = 1 / 3
"""Largest share of a batch that is written one by one after the joint writes; if more is left, the joint writes are
undone. On three small models a share of a quarter did no harm. Of corrections about new objects most are left, and
fewer of them are learnt if the joint writes stay."""
LOOK = 3
"""Rounds of joint writes after which all edits are scored, not only those that were written."""
EARLY, MOST = 6, 0.9
"""Joint writes of more edits than one write takes end after this many rounds of whole steps if more than this share
still fails. On a weak small model all failed after 6 rounds and 79 % after 16; on two models where at most 15 % failed
in the end, 77 and 70 % did after 6."""
ANEW = 0.5
"""Largest share of a step that is written when all edits are written anew. On three small models with 1,000 edits it
kept answers without a picture at 97 % or more, where whole steps fell to 92 % on one; it costs a third more."""
TOO_FEW = "fewer edits are right than before"
HARM = "it moved a watched anchor too far"


def learn(request: EditRequest, passes: Passes, watched: Watched | None = None, *, known: bool = False) -> EditOutcome:
    """Write one edit until it holds, at most `max_steps` times; refuse it if it breaks the harm budget.

    P then absorbs its keys, unless they are `known` to it.
    """
    new, sites = passes.context.number, passes.model.sites
    passes.model.encoded.put(new, request)
    # The key is taken alone, because padding from other edits in a batch would change it; and before any write,
    # because it must describe the edit to a model that has not drifted yet. The paper absorbs it as it is after the
    # write (`key_taken`).
    passes.begin()
    first, keys = passes.scores[new], sites.keys(passes.batch([new]))
    watch = Watch.over(watched, passes, keys) if watched else None
    refused = _write(passes, keys)
    for _ in range(REWRITES):
        if refused or watch is None or not watch.harm():
            break
        passes.begin(watch.harmed)
        refused = _write(passes, keys)
    else:
        if watch and not refused and watch.harm():
            refused = watch.sentence()
    last = passes.scores[new]
    if refused:
        sites.restore(passes.attempt.start)
        return _outcome(passes, first, first, refused=_explained(passes, first, last, refused))
    if passes.recipe.absorb == "edit" and not known:
        sites.absorb(passes.absorbed(keys))
    passes.absorb_anchors()
    drifts = watch.drifts if watch else {}
    return _outcome(passes, first, last, wrong="" if last.right else _explained(passes, first, last, ""), drifts=drifts)


def _write(passes: Passes, keys: Mapping[str, Tensor]) -> str:
    """Write a scored edit until it holds, at most `max_steps` times; return why it must be refused, or ""."""
    new, recipe, sites = passes.context.number, passes.recipe, passes.model.sites
    passes.scores |= passes.score(_rehearsed(passes))
    while passes.tally.writes < recipe.max_steps and not _done(passes):
        chosen = [new, *(number for number in passes.failing() if number != new)]
        steps = passes.steps(chosen)
        fresh = sites.keys(passes.batch([new])) if passes.one_pass and recipe.absorb == "write" else keys
        stopped = passes.write(chosen, steps, _rehearsed(passes, chosen))
        if recipe.absorb == "write":
            sites.absorb({name: key for name, key in passes.absorbed(fresh).items() if name in steps})
        if stopped:
            if stopped == NOT_FINITE or len(chosen) == 1:
                return stopped if stopped == NOT_FINITE and not passes.scores[new].right else ""
            passes.scores = {new: passes.scores[new]}  # together with past edits no step works: write it alone
    return ""


def admit(request: EditRequest, passes: Passes) -> EditOutcome:
    """Score one edit, without a write: `JointWrites.write` writes it together with others."""
    new = passes.context.number
    passes.model.encoded.put(new, request)
    passes.scores = passes.score([new])
    return _outcome(passes, passes.scores[new], passes.scores[new])


def consolidate(
    numbers: Iterable[int],
    passes: Passes,
    rules: Joint,
    scores: Mapping[int, EditScore] | None = None,
    watch: Watch | None = None,
    progress: Progress = no_progress,
) -> list[int]:
    """Write these edits together where they fail, round by round, until all hold by the margin of `rules`.

    A round writes the edits that failed when each was scored last: its own write scores it, and every `LOOK` rounds, or
    when none seems to fail, all are scored. O(T), meant for the end of a stream. It gives up early where nearly all
    edits go on failing. An anchor that `watch` finds moved too far takes part in every write from then on. Where one is
    too far still, the least sure edits are written with it: in rounds in which none fails, and in up to `LOOK` rounds
    after the last. `scores` are those of the model as it is, if they are known. Returns the edits that do not hold by
    the margin of a single edit.
    """
    numbers, passes.margin = list(numbers), rules.margin
    least = MOST * len(numbers) if len(numbers) > rules.size else len(numbers)
    early = EARLY / passes.attempt.max_step
    found, current, harmed = dict(scores or passes.score(numbers)), True, False
    for round in range(rules.rounds + LOOK):
        failing, mending = _unsure(found, passes), round >= rules.rounds
        if not current and (not failing or mending or round % LOOK == 0):
            found, current = passes.score(numbers), True
            failing = _unsure(found, passes)
            harmed = watch is not None and watch.harm()
            if watch and harmed:
                passes.attempt.train_on(moved.anchor for moved in watch.harmed)
        if (not harmed and (mending or not failing)) or (round == early and len(failing) > least):
            break
        holding = len(numbers) - len(failing)
        written = _least_sure(found)[: LOOK * rules.size] if mending or not failing else failing
        for start in range(0, len(written), rules.size):
            progress(min(holding + start, len(numbers)), len(numbers), f"writing edits together, round {round + 1}")
            chosen = written[start : start + rules.size]
            passes.write(chosen, passes.steps(chosen, fresh=True))
            found, current = found | passes.scores, False
    passes.margin = passes.recipe.margin
    passes.scores = found if current else passes.score(numbers)
    return passes.failing()


def _unsure(scores: Mapping[int, EditScore], passes: Passes) -> list[int]:
    """Return the edits that do not hold, the least sure first."""
    return [number for number in _least_sure(scores) if not passes.holds(scores[number])]


def _least_sure(scores: Mapping[int, EditScore]) -> list[int]:
    """Return all edits, the least sure first."""
    return sorted(scores, key=lambda number: scores[number].margin)


@dataclass
class JointWrites:
    """Past edits that are written together."""

    numbers: Sequence[int]
    new: Sequence[int]
    """Those of them that were only admitted: P does not know their keys yet."""
    passes: Passes
    rules: Joint
    passes_of: Callable[[EditRequest, EditContext], Passes]
    """Returns the passes of one edit."""
    progress: Progress
    watched: Watched | None = None

    def write(self) -> list[int]:
        """Write the edits together, and return those that do not hold.

        New edits that do not hold then are written one by one. If these are more than `FEW` of the new edits, or a
        watched anchor was moved too far, all writes are undone first, so the result is that of a stream.
        """
        passes, new = self.passes, self.new
        start, past = passes.model.sites.snapshot(), passes.context.past
        self._absorb_new()
        failing, harmed = self._together(start)
        left = [number for number in failing if number in new]
        if not left and not harmed:
            return failing
        known = len(left) <= FEW * len(new) and not harmed
        if known:
            past = past.updated(passes.tally.margins, left[0])
        else:
            passes.model.sites.restore(start)
            left = list(new)
        return self._one_by_one(left, past, known=known)

    def write_anew(self, start_over: Callable[[], Watched | None]) -> tuple[list[int], str]:
        """Write the edits together from B = 0, as if all had come at once; undo that if it does harm.

        That is, if fewer edits are right than before, or more watched anchors are beyond the budget. `start_over` takes
        out what was written, leaves only the anchors' keys in P, and returns the watched anchors. O(T). Returns the
        edits that do not hold, and why it was undone, or "".
        """
        passes = self.passes
        self._absorb_new()
        self._failing()
        passes.attempt.limit(ANEW)
        written, failed = passes.model.sites.snapshot(), self._wrong()
        self.watched, self.new = start_over(), self.numbers
        scores = self._absorb_new()
        failing, harmed = self._together(written, scores)
        if 0 < len(failing) <= FEW * len(self.numbers) and not harmed:
            past = passes.context.past.updated(passes.tally.margins, failing[0])
            failing = self._one_by_one(failing, past, known=True)
        undone = HARM if harmed else TOO_FEW if self._wrong() > failed else ""
        if undone:
            passes.model.sites.restore(written)
            failing = self._failing()
        return failing, undone

    def _together(self, before: Snapshot, scores: Mapping[int, EditScore] | None = None) -> tuple[list[int], bool]:
        """Write the edits together; return those that do not hold, and whether a watched anchor was moved too far.

        Too far is meant from where it was `before`.
        """
        passes, watched = self.passes, self.watched
        passes.attempt.start = before
        watch = Watch(watched, passes, list(watched.anchors), joint=True) if watched else None
        failing = consolidate(self.numbers, passes, self.rules, scores, watch, self.progress)
        return failing, watch is not None and watch.harm()

    def _absorb_new(self) -> dict[int, EditScore]:
        """Let P absorb the keys of the new edits, and return their scores."""
        sites, scores = self.passes.model.sites, dict[int, EditScore]()
        for done, number in enumerate(self.new):
            self.progress(done, len(self.new), "absorbing the keys of edits")
            scores |= self.passes.score([number], record=True)  # alone, and before any write, as in `learn`
            sites.absorb(sites.keys(self.passes.batch([number])))
        return scores

    def _one_by_one(self, left: Sequence[int], past: Past, *, known: bool) -> list[int]:
        """Write the edits that are `left` one by one, and return which of all edits do not hold."""
        context, memory = self.passes.context, dict(past.without(left))
        for done, number in enumerate(left):
            self.progress(done, len(left), "writing the rest one by one")
            request = context.recall(number)
            one = self.passes_of(request, replace(context, number=number, past=Past.of(memory)))
            outcome = learn(request, one, self.watched, known=known)
            if outcome.status != "refused":
                memory[number] = LastScore(0.0, number)
            memory |= {seen: LastScore(margin, number) for seen, margin in outcome.margins.items() if seen in memory}
            self.passes.tally.add(one.tally)
        return self._failing()

    def _wrong(self) -> int:
        """Return how many edits were wrong when all were scored last."""
        return sum(not score.right for score in self.passes.scores.values())

    def _failing(self) -> list[int]:
        """Score all edits, and return those that do not hold by the margin of a single edit."""
        self.passes.scores = self.passes.score(self.numbers)
        return self.passes.failing()


def _done(passes: Passes) -> bool:
    """Return whether nothing fails or, once past edits were drawn often enough, the new edit holds."""
    failing = passes.failing()
    enough = passes.tally.writes + 1 >= passes.recipe.rehearsal.draws
    return passes.recipe.stop_early and (not failing or (enough and passes.context.number not in failing))


def _rehearsed(passes: Passes, chosen: Iterable[int] = ()) -> list[int]:
    """Return the past edits to score in the next pass; none once enough were drawn."""
    context, rehearsal = passes.context, passes.recipe.rehearsal
    pass_ = passes.tally.writes + bool(chosen)
    if rehearsal.size == 0 or pass_ >= rehearsal.draws:
        return []
    past = context.past.updated(passes.tally.margins, context.number)
    return draw(past, context.number, pass_, rehearsal, taken=set(chosen))


def _explained(passes: Passes, first: EditScore, last: EditScore, stopped: str) -> str:
    worsened = [passes.context.recall(number).id for number in passes.last.worsened]
    drifts = {question: float(drift) for question, drift in passes.last.drifts.items()}
    return explain(Failure(passes.recipe, first, last, passes.tally.writes, stopped, worsened, drifts))


def _outcome(
    passes: Passes,
    first: EditScore,
    last: EditScore,
    *,
    refused: str = "",
    wrong: str = "",
    drifts: Mapping[int, float] | None = None,
) -> EditOutcome:
    """Return the outcome of an edit; `refused` and `wrong` say why it does not stand."""
    tally, runtime = passes.tally, passes.model.runtime
    return EditOutcome(
        status="refused" if refused else status_of(last, tally.writes),
        before=forced(runtime, first),
        after=forced(runtime, last),
        writes=0 if refused else tally.writes,
        passes=tally.passes,
        cost=round(tally.cost, 2),
        # Three digits: the ledger stores a margin as text, and it must be read back as the same number.
        margins={} if refused else {number: round(margin, 3) for number, margin in tally.margins.items()},
        drifts=drifts or {},
        reason=refused or wrong,
        sites=() if refused else tuple(sorted(tally.written)),
    )
