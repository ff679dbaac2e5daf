"""Edits looked at under teacher forcing, and what became of one: what all editors share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from more_cli.editors.base import EditOutcome, Status
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime, Scored


@dataclass(frozen=True)
class Found:
    """What a pass found about one edit."""

    nll: float
    """Mean negative log-likelihood of the target tokens, in nats per token."""
    margin: float
    """By how much the least sure target token's logit leads the best other one."""
    right: bool
    """Every target token, the end of sequence included, is the most likely one."""
    said: Tensor
    """(K,) most likely tokens."""


def found_in(scored: Scored) -> list[Found]:
    """Return what a pass found, edit by edit."""
    columns = scored.nll().tolist(), scored.margins().tolist(), scored.all_right().tolist()
    said = [row[mask] for row, mask in zip(scored.predicted(), scored.mask, strict=True)]
    return [Found(*row) for row in zip(*columns, said, strict=True)]


def look(runtime: Runtime, encoded: Encoded) -> Found:
    """Send one edit forward."""
    return found_in(runtime.score(runtime.batch([encoded])))[0]


def status_of(last: Found, writes: int) -> Status:
    """Return what an edit is that was not refused."""
    if not last.right:
        return "not-learnt"
    return "learnt" if writes else "already-right"


def outcome(
    runtime: Runtime, first: Found, last: Found, *, writes: int = 0, passes: int = 1, cost: float = 1 / 3
) -> EditOutcome:
    """Return what became of an edit; by default it was looked at and nothing else."""
    return EditOutcome(
        status=status_of(last, writes),
        nll_before=first.nll,
        nll_after=last.nll,
        answer_before=runtime.prompter.text(first.said),
        answer_after=runtime.prompter.text(last.said),
        right_after=last.right,
        writes=writes,
        passes=passes,
        cost=round(cost, 2),
    )
