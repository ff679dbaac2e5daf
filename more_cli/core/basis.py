"""The frozen orthonormal coordinates A of a site (Eq. freezeA: A A^T = I_r, A never updated)."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

VERSION = 1
"""Version of the stream and factorisation below; it goes into the state, since another A is another model."""

FINGERPRINT_ENTRIES = 16


def site_seed(seed: int, site: str) -> int:
    """Return the seed of one site's stream, in [0, 2^32), from the recipe's seed and the site's name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{site}".encode()).digest()[:4], "big")


def usable_rank(rank: int, d_in: int) -> int:
    """Return `rank`, at most d_in / 4, so that A and B together stay smaller than W; the paper has no such cap.

    The reason does not hold for every site. The first projector Linear of LLaVA-1.5 (1024 to 4096) has 4.2 million
    values in W, and A and B would have only 2.6 million at rank 512; the cap still makes it 256.
    """
    return max(1, min(rank, d_in // 4))


def draw_basis(rank: int, d_in: int, seed: int) -> Tensor:
    """Draw A, (rank, d_in) float32 with orthonormal rows, the same for the same seed on every machine.

    `RandomState` is numpy's frozen generator: its stream is guaranteed never to change. For a full-rank X the
    factorisation X^T = Q R with a positive diagonal of R is unique, so any stable algorithm gives this A = Q^T
    up to rounding. Cholesky-QR costs one d_in r^2 product; run twice it is as orthogonal as Householder's.
    """
    # The clone lies in torch's own, aligned memory: BLAS rounds differently at other addresses.
    X = torch.from_numpy(np.random.RandomState(seed).standard_normal((rank, d_in))).clone()
    for _ in range(2):
        L = torch.linalg.cholesky(X @ X.T)
        X = torch.linalg.solve_triangular(L, X, upper=False)
    # float32: A multiplies activations of at most that precision, and B is kept in float32 as well.
    return X.to(torch.float32)


def fingerprint(A: Tensor) -> list[float]:
    """Return the first 16 entries of A v for a fixed v, rounded to 1e-7, to recognise A without storing it."""
    v = torch.cos(torch.arange(A.shape[1], dtype=torch.float64))
    return [round(value, 7) for value in (A.double() @ v)[:FINGERPRINT_ENTRIES].tolist()]


def matches(A: Tensor, expected: list[float], tolerance: float = 1e-5) -> bool:
    """Return whether A is the basis that gave `expected`; another rounding passes, another basis does not."""
    actual = fingerprint(A)
    return len(actual) == len(expected) and all(abs(a - b) <= tolerance for a, b in zip(actual, expected, strict=True))
