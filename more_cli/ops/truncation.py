"""The update of a module at another rank: some servers take adapters of one rank alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def at_rank(B: Tensor, A: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """Return B' (d_out, rank) and A' (rank, d_in), float32, whose product is closest to B A, and the part they keep.

    Closest in the Frobenius norm is the truncated singular value decomposition (Eckart and Young, 1936). The part is
    |B' A'|_F / |B A|_F, in [0, 1]. A rank above that of B A is filled up with zeros.
    """
    # In float64: small singular values of a product are differences of large numbers. No matrix is d_out by d_in.
    Q_B, R_B = torch.linalg.qr(B.double())
    Q_A, R_A = torch.linalg.qr(A.double().T)
    U, lengths, V = torch.linalg.svd(R_B @ R_A.T)
    kept = lengths[:rank]
    part = float(kept.norm() / lengths.norm().clamp(min=torch.finfo(torch.float64).tiny))
    left, right = Q_B @ (U[:, : len(kept)] * kept), V[: len(kept)] @ Q_A.T
    missing = rank - len(kept)
    return pad(left, (0, missing)).float(), pad(right, (0, 0, 0, missing)).float(), part
