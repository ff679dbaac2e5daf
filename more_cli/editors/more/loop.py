"""The check-then-write loop: look whether the new edit and the past ones most at risk hold, write what does not.

Pass k of edit t, every part switched by the recipe:

1. Working set: t, what failed in the pass before and, in the first passes, K past edits drawn by risk.
2. Forward once. An edit fails when its least sure target token leads by less than the margin.
3. Stop when nothing fails; after enough draws, when t holds; at the latest after `max_steps` writes.
4. One write on t and what fails, together with k_a anchors: L = mean NLL + KL(base || edited), B <- B - eta G P.
5. At the end P absorbs t's key (Eq. sm-update), once.

The paper's loop is the case without rehearsal and anchors. What it has not: the check before a write, past edits,
anchors, and the guard that takes back a write which raises the loss.
"""

from __future__ import annotations

from collections.abc import Iterable

from more_cli.editors.base import EditOutcome, EditRequest
from more_cli.editors.more.passes import Passes
from more_cli.editors.more.rehearsal import draw
from more_cli.editors.outcome import Found, status_of
from more_cli.recipe import Joint


def learn(request: EditRequest, passes: Passes) -> EditOutcome:
    """Write one edit until it holds, at most `max_steps` times, or take it back and refuse it."""
    new, recipe, sites = passes.context.number, passes.recipe, passes.sites
    passes.shelf.put(new, request)
    before, reason = sites.snapshot(), ""
    # By itself: in a batch, what P absorbs would depend on the padding the others bring. And before any write: the
    # key is what the edit looks like to a model that has not drifted yet.
    passes.found = passes.look([new], record=True)
    first, keys = passes.found[new], sites.keys(passes.batch([new]))
    passes.found |= passes.look(_drawn(passes))
    while passes.writes < recipe.max_steps and not _settled(passes):
        chosen = [new, *(number for number in passes.failing() if number != new)]
        steps = sites.steps(passes.gradient(chosen))
        if recipe.absorb == "write":
            fresh = sites.keys(passes.batch([new])) if passes.alone else keys
            sites.absorb({name: key for name, key in fresh.items() if name in steps})
        if reason := passes.write(chosen, steps, _drawn(passes, chosen)):
            break
    if reason and not passes.found[new].right:
        sites.restore(before)
        return _outcome(passes, first, first, reason)
    if recipe.absorb == "edit":
        sites.absorb(keys)
    return _outcome(passes, first, passes.found[new])


def admit(request: EditRequest, passes: Passes) -> EditOutcome:
    """Look at one edit and let P absorb its key, without a write: `consolidate` writes it together with others."""
    new = passes.context.number
    passes.shelf.put(new, request)
    passes.found = passes.look([new], record=True)
    passes.sites.absorb(passes.sites.keys(passes.batch([new])))
    return _outcome(passes, passes.found[new], passes.found[new])


def consolidate(numbers: Iterable[int], passes: Passes, rules: Joint) -> list[int]:
    """Look at all these edits and write those below the margin of `rules` together, until none is.

    O(T), meant for the end of a stream. Returns the edits that do not hold by the margin of a single edit.
    """
    numbers = list(numbers)
    single, passes.recipe = passes.recipe, passes.recipe.model_copy(update={"margin": rules.margin})
    for _ in range(rules.rounds):
        found = passes.look(numbers)
        passes.found = found
        failing = sorted(passes.failing(), key=lambda number: found[number].margin)
        if not failing:
            break
        for start in range(0, len(failing), rules.size):
            chosen = failing[start : start + rules.size]
            passes.found = {number: found[number] for number in chosen}
            passes.write(chosen, passes.sites.steps(passes.gradient(chosen)))
    else:
        passes.found = passes.look(numbers)
    passes.recipe = single
    return passes.failing()


def _settled(passes: Passes) -> bool:
    """Tell whether nothing fails or, once past edits were drawn often enough, the new one holds."""
    failing = passes.failing()
    enough = passes.writes + 1 >= passes.recipe.rehearsal.draws
    return passes.recipe.stop_early and (not failing or (enough and passes.context.number not in failing))


def _drawn(passes: Passes, chosen: Iterable[int] = ()) -> list[int]:
    """Return the past edits to look at in the next pass, none once enough were drawn."""
    context, rehearsal = passes.context, passes.recipe.rehearsal
    pass_ = passes.writes + bool(chosen)
    if rehearsal.size == 0 or pass_ >= rehearsal.draws:
        return []
    past = context.past.seen(passes.looks, context.number)
    return draw(past, context.number, pass_, rehearsal, taken=set(chosen))


def _outcome(passes: Passes, first: Found, last: Found, refused: str = "") -> EditOutcome:
    text = passes.runtime.prompter.text
    return EditOutcome(
        status="refused" if refused else status_of(last, passes.writes),
        nll_before=first.nll,
        nll_after=last.nll,
        answer_before=text(first.said),
        answer_after=text(last.said),
        right_after=last.right,
        writes=0 if refused else passes.writes,
        passes=passes.passes,
        cost=round(passes.cost, 2),
        # Three digits: a margin goes through the ledger and must come back as the same number.
        looks={} if refused else {number: round(margin, 3) for number, margin in passes.looks.items()},
        reason=refused,
        sites=() if refused else tuple(sorted(passes.written)),
    )
