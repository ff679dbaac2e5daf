"""A change of one weight as an analysis reads it: a product of two factors where there is one, else the matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

RANK = 32
"""Largest rank that `Change.compact` looks for in a matrix."""
_EXACT = 1e-6
"""Share of a matrix's norm that its factors may miss: about what float32 rounds off."""


@dataclass(frozen=True)
class Change:
    """Delta W (d_out, d_in): `left @ right`, or `left` alone where `right` is None."""

    left: Tensor
    """(d_out, rank), or (d_out, d_in) without `right`."""
    right: Tensor | None = None
    """(rank, d_in)."""

    @property
    def shape(self) -> tuple[int, int]:
        """d_out and d_in."""
        return self.left.shape[0], (self.left if self.right is None else self.right).shape[1]

    def minus(self, earlier: Change) -> Change:
        """Return this change without an earlier one of the same weight.

        Exact in the factors: with equal right factors the left ones are subtracted, otherwise the ranks add up.
        """
        if self.right is None or earlier.right is None:
            return Change(self.dense() - earlier.dense())
        alike = self.right.shape == earlier.right.shape
        if self.right is earlier.right or (alike and torch.equal(self.right, earlier.right)):
            return Change(self.left - earlier.left, self.right)
        return Change(torch.cat([self.left, -earlier.left], dim=1), torch.cat([self.right, earlier.right]))

    def dense(self) -> Tensor:
        """Return Delta W (d_out, d_in)."""
        return self.left if self.right is None else self.left @ self.right

    def inner(self, other: Change) -> float:
        """Return the inner product of two changes of one weight, in float64.

        With factors, tr(R_2 R_1^T L_1^T L_2): no matrix of the weight's size is made. With one orthonormal right factor
        it is the inner product of the left ones.
        """
        if self.right is None:
            return _dot(other.dense(), self.left)
        if other.right is None:
            return _dot(other.left @ self.right.T, self.left)
        return _dot(self.right.double() @ other.right.double().T, self.left.double().T @ other.left.double())

    def cosine(self, other: Change) -> float:
        """Return the cosine between two changes of one weight, in [-1, 1]; NaN if one of them is zero."""
        norms = math.sqrt(self.inner(self)) * math.sqrt(other.inner(other))
        return self.inner(other) / norms if norms else math.nan

    def compact(self) -> Change:
        """Return the same change on the CPU in float32, as factors if it is a matrix of a rank up to `RANK`.

        The range of the matrix is found from `RANK` random directions (arXiv 0909.4061, alg. 4.1), then the factors are
        compared with it: what they miss is no more than float32 rounds off.
        """
        left = self.left.detach().float().cpu().clone()
        if self.right is not None:
            return Change(left, self.right.detach().float().cpu().clone())
        if RANK * sum(left.shape) >= left.numel() or not bool(left.any()):
            return Change(left)
        draws = torch.randn(left.shape[1], RANK, generator=torch.Generator().manual_seed(0))
        basis, _ = torch.linalg.qr(left @ draws)
        turned, sizes, right = torch.linalg.svd(basis.T @ left, full_matrices=False)
        rank = max(1, int((sizes > _EXACT * sizes[0]).sum()))
        found = Change(basis @ (turned[:, :rank] * sizes[:rank]), right[:rank])
        missed = torch.linalg.vector_norm(found.dense() - left) / torch.linalg.vector_norm(left)
        return found if float(missed) <= _EXACT * math.sqrt(RANK) else Change(left)

    def largest(self, count: int) -> Tensor:
        """Return the places of the `count` largest |entries|, in order; among equal entries the first ones count."""
        flat = self.dense().abs().flatten()
        # A stable sort would hold the whole matrix twice: only entries as large as the last one can be ties.
        least = flat.topk(count).values[-1]
        above = (flat > least).nonzero()[:, 0]
        ties = (flat == least).nonzero()[: count - len(above), 0]
        return torch.cat([above, ties]).sort().values


def _dot(first: Tensor, second: Tensor) -> float:
    return float((first.double() * second.double()).sum())
