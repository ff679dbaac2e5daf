"""The closed forms of AlphaEdit, MEMIT and ROME, in float64: second moments have condition numbers beyond float32.

Shapes, for a Linear of m inputs and d outputs: keys K (m, T), wanted changes of its outputs R (d, T), results (d, m).
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-14
"""Share of the trace below which eigenvalues of a second moment are rounding errors."""


def leading(values: Tensor, vectors: Tensor, share: float, threshold: float | None) -> Tensor:
    """Return the eigenvectors, (m, n), that span what must not change; the rest spans the null space.

    `values` (m,) ascend, `vectors` (m, m) lie in columns. With a `threshold` those of larger eigenvalues are returned,
    as AlphaEdit prints it; without one, the fewest whose eigenvalues sum up to `share` of all.
    """
    if threshold is not None:
        return vectors[:, values >= threshold]
    falling = values.flip(0).clamp_min(0)
    before = falling.cumsum(0) - falling
    kept = int((before < min(share, 1 - ROUNDING) * falling.sum()).sum())
    return vectors[:, len(values) - kept :]


def outside(V: Tensor, X: Tensor) -> Tensor:
    """Return P X (m, T), with P = I - V V^T the projector on what is orthogonal to the orthonormal columns of V."""
    return X - V @ (V.T @ X)


def null_space_update(V: Tensor, C: Tensor, K: Tensor, R: Tensor, ridge: float) -> Tensor:
    """Return Delta with Delta^T = (P (K K^T + C) + ridge I)^-1 P K R^T, AlphaEdit's printed formula.

    C (m, m) is the sum of the second moments of the keys of earlier edits. P (K K^T + C) is not symmetric, so this
    takes a general solver. Source: Fang et al. 2025 (AlphaEdit).
    """
    A = outside(V, K @ K.T + C)
    A.diagonal().add_(ridge)
    # The solution lies in the null space; the solver's rounding errors do not.
    return outside(V, torch.linalg.solve(A, outside(V, K) @ R.T)).T


def null_space_update_low_rank(V: Tensor, past: Tensor, K: Tensor, R: Tensor, ridge: float) -> Tensor:
    """Return the same from the keys of earlier edits themselves, `past` (m, n) with C = past past^T.

    With Q = [K past], Delta^T = P Q (ridge I + Q^T P Q)^-1 [R 0]^T: a symmetric system of T + n unknowns.
    """
    Q = torch.cat([K, past], dim=1)
    projected = outside(V, Q)
    gram = projected.T @ projected
    gram.diagonal().add_(ridge)
    wanted = torch.cat([R, R.new_zeros(len(R), past.shape[1])], dim=1)
    return torch.cholesky_solve(wanted.T, torch.linalg.cholesky(gram)).T @ projected.T


def covariance_update(U: Tensor, K: Tensor, R: Tensor, weight: float) -> Tensor:
    """Return R K^T (weight C + K K^T)^-1 (d, m), from U = C^-1 K.

    By the push-through identity it is R (weight I + K^T U)^-1 U^T. Source: Meng et al. 2023 (MEMIT), eq. 14.
    """
    gram = K.T @ U
    gram.diagonal().add_(weight)
    shares: Tensor = torch.linalg.solve(gram, R, left=False)
    return shares @ U.T


def equality_update(U: Tensor, K: Tensor, R: Tensor) -> Tensor:
    """Return R (U^T K)^-1 U^T, which changes the outputs at K by exactly R.

    With one key it is ROME's rank-one update (Meng et al. 2022, eq. 2); of several keys, the same least-squares problem
    with as many equality constraints, which is our extension. Keys that depend on each other share what they ask for.
    """
    inverse: Tensor = torch.linalg.pinv(U.T @ K, rtol=1e-12)
    return R @ inverse @ U.T
