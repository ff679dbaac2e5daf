"""What one edit changed in a weight: differences of changes, how alike two are, and their largest entries."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from more_cli.model.changes import Change

RANK = 32
"""Largest rank that `compact` looks for in a matrix."""
_EXACT = 1e-6
"""Share of a matrix's norm that its factors may miss: about what float32 rounds off."""


def minus(change: Change, earlier: Change) -> Change:
    """Return a change without an earlier one of the same weight.

    Exact in the factors: with equal right factors the left ones are subtracted, otherwise the ranks add up.
    """
    if change.right is None or earlier.right is None:
        return Change(change.dense() - earlier.dense())
    alike = change.right.shape == earlier.right.shape
    if change.right is earlier.right or (alike and torch.equal(change.right, earlier.right)):
        return Change(change.left - earlier.left, change.right)
    return Change(torch.cat([change.left, -earlier.left], dim=1), torch.cat([change.right, earlier.right]))


def compact(change: Change) -> Change:
    """Return the same change on the CPU in float32, as factors if it is a matrix of a rank up to `RANK`.

    The range of the matrix is found from `RANK` random directions (arXiv 0909.4061, alg. 4.1), then the factors are
    compared with it: what they miss is no more than float32 rounds off.
    """
    left = change.left.detach().float().cpu().clone()
    if change.right is not None:
        return Change(left, change.right.detach().float().cpu().clone())
    if RANK * sum(left.shape) >= left.numel() or not bool(left.any()):
        return Change(left)
    draws = torch.randn(left.shape[1], RANK, generator=torch.Generator().manual_seed(0))
    basis, _ = torch.linalg.qr(left @ draws)
    turned, sizes, right = torch.linalg.svd(basis.T @ left, full_matrices=False)
    rank = max(1, int((sizes > _EXACT * sizes[0]).sum()))
    found = Change(basis @ (turned[:, :rank] * sizes[:rank]), right[:rank])
    missed = torch.linalg.vector_norm(found.dense() - left) / torch.linalg.vector_norm(left)
    return found if float(missed) <= _EXACT * math.sqrt(RANK) else Change(left)


def inner(one: Change, other: Change) -> float:
    """Return the inner product of two changes of one weight, in float64.

    With factors, tr(R_2 R_1^T L_1^T L_2): no matrix of the weight's size is made. With one orthonormal right factor
    it is the inner product of the left ones.
    """
    if one.right is None:
        return _dot(other.dense(), one.left)
    if other.right is None:
        return _dot(other.left @ one.right.T, one.left)
    return _dot(one.right.double() @ other.right.double().T, one.left.double().T @ other.left.double())


def cosine(one: Change, other: Change) -> float:
    """Return the cosine between two changes of one weight, in [-1, 1]; NaN if one of them is zero."""
    norms = math.sqrt(inner(one, one)) * math.sqrt(inner(other, other))
    return inner(one, other) / norms if norms else math.nan


def largest(change: Change, count: int) -> Tensor:
    """Return the places of the `count` largest |entries|, in order; among equal entries the first ones count."""
    flat = change.dense().abs().flatten()
    # A stable sort would hold the whole matrix twice: only entries as large as the last one can be ties.
    least = flat.topk(count).values[-1]
    above = (flat > least).nonzero()[:, 0]
    ties = (flat == least).nonzero()[: count - len(above), 0]
    return torch.cat([above, ties]).sort().values


def _dot(first: Tensor, second: Tensor) -> float:
    return float((first.double() * second.double()).sum())
