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

from collections.abc import Iterable, Mapping

from torch import Tensor

from more_cli.editors.base import EditOutcome, EditRequest
from more_cli.editors.more.advice import Failure, explain
from more_cli.editors.more.passes import NOT_FINITE, Passes
from more_cli.editors.more.rehearsal import draw
from more_cli.editors.more.watch import Watch, Watched
from more_cli.editors.outcome import EditScore, forced, status_of

REWRITES = 2
"""Number of times that an edit beyond the harm budget is written again, each time with half the step."""


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
    refused = _write_within_budget(passes, keys, watch)
    last = passes.scores[new]
    if refused:
        sites.restore(passes.attempt.start)
        return outcome_of(passes, first, first, refused=_explained(passes, request, first, last, refused))
    if passes.recipe.absorb == "edit" and not known:
        sites.absorb(passes.absorbed(keys))
    passes.absorb_anchors()
    wrong, drifts = "" if last.right else _explained(passes, request, first, last, ""), watch.drifts if watch else {}
    return outcome_of(passes, first, last, wrong=wrong, drifts=drifts)


def _write_within_budget(passes: Passes, keys: Mapping[str, Tensor], watch: Watch | None) -> str:
    """Write a scored edit, and again with half the step if it harms an anchor; return why it must be refused, or ""."""
    refused = _write(passes, keys)
    for _ in range(REWRITES):
        if refused or watch is None or not watch.harm():
            return refused
        passes.begin(watch.harmed)
        refused = _write(passes, keys)
    return watch.sentence() if watch and not refused and watch.harm() else refused


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
        if stopped == NOT_FINITE:
            return "" if passes.scores[new].right else stopped
        if stopped and len(chosen) == 1:
            return ""
        if stopped:
            passes.scores = {new: passes.scores[new]}  # together with past edits no step works: write it alone
    return ""


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
    return draw(past, context.number, pass_, rehearsal.size, taken=set(chosen))


def _explained(passes: Passes, request: EditRequest, first: EditScore, last: EditScore, stopped: str) -> str:
    worsened = [passes.context.recall(number).id for number in passes.last.worsened]
    drifts = {question: float(drift) for question, drift in passes.last.drifts.items()}
    pictured = bool(request.query.images)
    return explain(Failure(passes.recipe, first, last, passes.tally.writes, stopped, worsened, drifts, pictured))


def outcome_of(
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
