"""What a pass under teacher forcing gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scored:
    """A batch of targets under teacher forcing; (N, K) tensors are right-aligned as in `Batch`."""

    logits: Tensor
    """(N, K, vocabulary), as the model gave them."""
    targets: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, rows: slice) -> Scored:
        """Return some of the batch's rows."""
        return Scored(self.logits[rows], self.targets[rows], self.mask[rows])

    def log_probabilities(self) -> Tensor:
        """Return (N, K, vocabulary) log-probabilities in float32: a softmax over bf16 logits loses the tail."""
        return torch.log_softmax(self.logits.float(), dim=-1)

    def nll(self, handicap: float = 0.0) -> Tensor:
        """Return the mean negative log-likelihood per target, (N,), in nats per token.

        A `handicap` lowers the logit of every target token first (additive-margin cross-entropy).
        """
        logits, own = self.logits.float(), self.targets[..., None]
        if handicap:
            logits = logits.scatter_add(-1, own, logits.new_full(own.shape, -handicap))
        picked = torch.log_softmax(logits, dim=-1).gather(-1, own)[..., 0]
        return -(picked * self.mask).sum(dim=1) / self.mask.sum(dim=1)

    def predicted(self) -> Tensor:
        """Return the most likely token at each target position, (N, K)."""
        return self.logits.argmax(dim=-1)

    def right(self) -> Tensor:
        """Return (N, K) bool: the target token is the most likely one; false where there is no target."""
        return (self.predicted() == self.targets) & self.mask

    def margins(self) -> Tensor:
        """Return the margins, (N,) float32: the least lead of a target token's logit over the best other one."""
        logits = self.logits.float()
        own = logits.gather(-1, self.targets[..., None])
        others = logits.scatter(-1, self.targets[..., None], -torch.inf).amax(dim=-1)
        return (own[..., 0] - others).masked_fill(~self.mask, torch.inf).amin(dim=1)

    def all_right(self) -> Tensor:
        """Return (N,) bool: every target token, the end of sequence included, is the most likely one."""
        return (self.right() | ~self.mask).all(dim=1)
