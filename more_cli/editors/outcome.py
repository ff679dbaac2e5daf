"""How the model answers an edit under teacher forcing, and the outcome that follows: shared by all editors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from more_cli.editors.base import EditOutcome, Forced, Status
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored


@dataclass(frozen=True)
class EditScore:
    """One edit's score in one forward pass."""

    nll: float
    """Mean negative log-likelihood of the target tokens, in nats per token."""
    margin: float
    """Lead of the least sure target token over the best other token, in logits; negative where it does not lead."""
    right: bool
    """Every target token, the end of sequence included, is the most likely one."""
    predicted: Tensor
    """(K,) most likely token at each target position."""
    loss: float
    """What a write decreases: the mean negative log-likelihood with a handicap, in nats per token."""


def edit_scores(scored: Scored, handicap: float = 0.0) -> list[EditScore]:
    """Return the score of every edit in a pass; `handicap` lowers the targets' logits in the loss."""
    columns = scored.nll(), scored.margins(), scored.all_right(), scored.nll(handicap)
    # One transfer for all: float64 holds each float32 and each token's id exactly.
    found = torch.cat([torch.stack([column.double() for column in columns], dim=1), scored.predicted(), scored.mask], 1)
    rows = found.detach().cpu()
    width = scored.mask.shape[1]
    numbers, tokens, mask = rows[:, : len(columns)].tolist(), rows[:, -2 * width : -width].long(), rows[:, -width:] > 0
    return [
        EditScore(nll, margin, bool(right), tokens[row, mask[row]], loss)
        for row, (nll, margin, right, loss) in enumerate(numbers)
    ]


def score_edit(runtime: Runtime, encoded: Encoded) -> EditScore:
    """Send one edit forward and return its score."""
    return edit_scores(runtime.score(runtime.batch([encoded])))[0]


def status_of(last: EditScore, writes: int) -> Status:
    """Return the status of an edit that was not refused."""
    if not last.right:
        return "not-learnt"
    return "learnt" if writes else "already-right"


def refused(first: EditScore, reason: str, *, passes: int, cost: float = 0.0) -> EditOutcome:
    """Return the outcome of an edit that changed nothing, with its only score."""
    score = Forced(first.nll, "", first.right)
    return EditOutcome("refused", score, score, 0, passes, cost=round(cost, 2), reason=reason)


def forced(runtime: Runtime, score: EditScore) -> Forced:
    """Return a score as an outcome keeps it."""
    return Forced(score.nll, runtime.prompter.text(score.predicted), score.right)


def outcome(
    runtime: Runtime, first: EditScore, last: EditScore, *, writes: int = 0, passes: int = 1, cost: float = 1 / 3
) -> EditOutcome:
    """Return the outcome of an edit with its first and last score; by default it was scored once and never written."""
    return EditOutcome(
        status=status_of(last, writes),
        before=forced(runtime, first),
        after=forced(runtime, last),
        writes=writes,
        passes=passes,
        cost=round(cost, 2),
    )
