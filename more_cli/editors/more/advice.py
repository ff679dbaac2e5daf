"""Why an edit was refused or not learnt, in words, and what may help: its `reason` in the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from more_cli.editors.outcome import EditScore
from more_cli.recipe.schema import Recipe
from more_cli.text import counted, shorten

UNSURE = 0.7
"""NLL of a target, nats per token, below which the base nearly gives it: ln 2, a probability of one half per token."""
FAR = 8.0
"""NLL of a target, nats per token, above which the base finds nothing like it likely."""
MOVED = 0.1
"""Drift of an anchor, nats per token, from which it counts as opposed to an edit."""
NAMED = 3
"""Largest number of edits or anchors that are named."""


@dataclass(frozen=True)
class Failure:
    """What is known about an edit that was refused or not learnt."""

    recipe: Recipe
    first: EditScore
    """Score before the first write."""
    last: EditScore
    writes: int
    stopped: str
    """Why all its writes were undone, so that it is refused; empty if it is still wrong after its last write."""
    worsened: Sequence[str]
    """Ids of past edits that the last write moved away from their targets."""
    drifts: Mapping[str, float]
    """KL of the anchors of the last write, nats per token, by question."""
    pictured: bool
    """Whether the edit's question is about a picture."""


def explain(failure: Failure) -> str:
    """Return why an edit was refused or not learnt, and what may help."""
    what = failure.stopped
    if not what:
        fall = f"NLL from {failure.first.nll:.3g} to {failure.last.nll:.3g} nats"
        what = f"still wrong after {counted(failure.writes, 'write')} ({fall})"
    return "; ".join([what, *_causes(failure), f"`--retry` with {_settings(failure)} may help"])


def _causes(failure: Failure) -> Iterator[str]:
    if failure.worsened:
        ids = ", ".join(f"`{id}`" for id in failure.worsened[:NAMED])
        verb = "pulls" if len(failure.worsened) == 1 else "pull"
        yield f"{ids} {verb} against it: check that they do not contradict each other"
    if moved := sorted((drift, question) for question, drift in failure.drifts.items() if drift >= MOVED):
        named = ", ".join(f"`{shorten(question)}`" for _, question in reversed(moved[-NAMED:]))
        yield f"{counted(len(moved), 'anchor')} pulled against it: {named}"
    if failure.first.nll < UNSURE:
        yield f"the base is unsure here: it gave the target NLL {failure.first.nll:.2g} before any write"
    if failure.first.nll > FAR:
        what = "picture, question" if failure.pictured else "question"
        yield f"the target is far from anything the model says here: check {what} and target"


def _settings(failure: Failure) -> str:
    recipe = failure.recipe
    if "finite" in failure.stopped:
        return f"`--set max_write={recipe.max_write / 4:g}`"
    if failure.stopped:
        return f"`--set anchors.max_drift={2 * recipe.anchors.max_drift:g}`"
    more = f"`--set max_steps={2 * recipe.max_steps}`"
    return more if failure.last.nll < failure.first.nll else f"`--set rho={recipe.rho / 2:g}` and {more}"
