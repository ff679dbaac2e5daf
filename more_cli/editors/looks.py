"""One edit looked at under teacher forcing, and what became of it: what editors without a loop of their own share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from more_cli.editors.base import EditOutcome, Status
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime


@dataclass(frozen=True)
class Seen:
    """What one pass over an edit's target showed."""

    nll: float
    """Mean negative log-likelihood of the target tokens, in nats per token."""
    right: bool
    """Every target token, the end of sequence included, is the most likely one."""
    said: Tensor
    """(K,) most likely tokens."""


def look(runtime: Runtime, encoded: Encoded) -> Seen:
    """Send one edit forward."""
    scored = runtime.score(runtime.batch([encoded]))
    return Seen(float(scored.nll()[0]), bool(scored.all_right()[0]), scored.predicted()[0][scored.mask[0]])


def outcome(
    runtime: Runtime, first: Seen, last: Seen, *, writes: int = 0, passes: int = 1, cost: float = 1 / 3
) -> EditOutcome:
    """Return what became of an edit; by default it was looked at and nothing else."""
    status: Status = "learnt" if last.right else "not-learnt"
    if writes == 0 and last.right:
        status = "already-right"
    return EditOutcome(
        status=status,
        nll_before=first.nll,
        nll_after=last.nll,
        answer_before=runtime.prompter.text(first.said),
        answer_after=runtime.prompter.text(last.said),
        right_after=last.right,
        writes=writes,
        passes=passes,
        cost=round(cost, 2),
    )
