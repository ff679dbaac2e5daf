"""The second-order statistic of past edits, P = (I + S)^-1, one per site (Eq. S-def, closedform, sm-update).

Two normalisations exist (see `Normalisation`). They are the same matrix up to a factor,
P_paper(lambda) = P_unit(1 + lambda) / (1 + lambda), and so the same editor once eta is scaled by 1 + lambda.

P is float64: in float32 the recursion loses two digits per tenfold growth of |z| when lambda is small, while an
O(r^2) update in float64 costs next to nothing beside the forward pass.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Normalisation = Literal["unit", "paper"]
"""`unit` (the authors' code): P_0 = I, denominator lambda + z^T P z, P = (I + sum z z^T / lambda)^-1.

`paper` (the text): P_0 = I / (1 + lambda), denominator 1 + z^T P z, P = ((1 + lambda) I + sum z z^T)^-1.
Deviation: `unit` is our default, because the printed eta = 0.1 with lambda = 2000 only learns in that form.
"""

BLOCK = 64
"""Keys absorbed at once: many, to save passes over P, but few enough that the work within a block stays small."""
CONDITION = 1e6
"""Condition number up to which keys are absorbed at once: at most six of 16 digits are lost."""
ROUNDING = 1e-9
"""Relative error of an eigenvalue of P after a long stream; float64 has 2e-16 per key."""


def initial(rank: int, ridge: float, normalisation: Normalisation, device: torch.device | str = "cpu") -> Tensor:
    """Return P_0, (r, r) float64; `ridge` is lambda, in units of |z|^2."""
    P = torch.eye(rank, dtype=torch.float64, device=device)
    return P if normalisation == "unit" else P / (1.0 + ridge)


def pool(Z: Tensor) -> Tensor:
    """Return the step's key, the mean of z over the relevant tokens (Eq. z): Z (n, r) -> (r,)."""
    # float64: the key goes into P, which is float64 for the reason above.
    return Z.double().mean(dim=0)


def absorb(P: Tensor, z: Tensor, ridge: float, normalisation: Normalisation) -> Tensor:
    """Return P after one more key z (Eq. sm-update), exactly symmetric: P (r, r), z (r,) -> (r, r).

    A (n, r) matrix of keys (`pooling = "none"`, one key per token) is absorbed in blocks, as if row by row.
    """
    floor = ridge if normalisation == "unit" else 1.0
    for Z in torch.split(z.reshape(-1, z.shape[-1]).double(), BLOCK):
        together = None if len(Z) == 1 else _absorb_block(P, Z, floor)
        P = _absorb_rows(P, Z, floor) if together is None else together
    return P


def _absorb_rows(P: Tensor, Z: Tensor, floor: float) -> Tensor:
    for key in Z:
        Pz = P @ key
        # outer(Pz, Pz) is symmetric to the bit, so P stays symmetric after any number of keys.
        P = P - torch.outer(Pz, Pz) / (floor + key @ Pz)
    return P


def _absorb_block(P: Tensor, Z: Tensor, floor: float) -> Tensor | None:
    """Eq. sm-update for several keys (Woodbury); None where long keys would cost too many digits."""
    PZ = P @ Z.T
    M = Z @ PZ + floor * torch.eye(len(Z), dtype=P.dtype, device=P.device)
    if not M.trace() <= CONDITION * floor:  # no eigenvalue is above the trace or below the floor; false of NaN too
        return None
    half: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(M), PZ.T, upper=False)
    change = half.T @ half
    return P - (change + change.T) / 2  # a product need not be symmetric to the bit


def damped(P: Tensor, M: Tensor, damping: float, trace: float) -> Tensor:
    """Return (P^-1 + M / mu)^-1 with mu = damping * trace / r, for P (r, r) and M (r, r), the moment of one write.

    `trace` is tr(M), summed in float64.

    Not in the paper, where only past edits limit the use of a direction. The keys of one write are nearly alike, so a
    plain gradient changes all its tokens in the same way and can hardly change one token alone.
    M is K-FAC's input factor (Martens and Grosse 2015) with each key weighted by its squared gradient; mu is its
    damping. The sum is what P would be had it absorbed the write's own keys with these weights; it is used once and not
    kept.
    """
    M = M.to(P)
    if not 0.0 < trace < math.inf:  # nothing to write; of what is not finite, a step says so
        return P
    # (I + P M / mu) X = P has no inverse of P, whose eigenvalues can be small.
    identity = torch.eye(len(P), dtype=P.dtype, device=P.device)
    # Not checked, because Python would have to wait for the GPU: if it fails, the write is not finite.
    X: Tensor = torch.linalg.solve_ex(identity + P @ M * (len(P) / (damping * trace)), P)[0]
    return X


def flaw(P: Tensor, keys: int, ridge: float, normalisation: Normalisation) -> str:
    """Return, in words, why P (r, r) cannot be the result of so many keys; empty if it can.

    A key lowers P in one direction and raises it in none: P is symmetric to the bit, 0 < P <= P_0, and at most one
    eigenvalue a key lies below that of P_0.
    """
    if not torch.equal(P, P.T):
        return "not symmetric"
    top = 1.0 if normalisation == "unit" else 1.0 / (1.0 + ridge)
    values = torch.linalg.eigvalsh(P)
    low, high = float(values[0]), float(values[-1])
    if not 0.0 < low <= high <= top * (1.0 + ROUNDING):
        return f"eigenvalues from {low:.3g} to {high:.3g}, not in (0, {top:.3g}]"
    lowered = int((values < top * (1.0 - ROUNDING)).sum())
    return f"{lowered} directions lowered by {keys} keys" if lowered > keys else ""
