"""The coordinates A of a site: frozen and orthonormal (Eq. freezeA: A A^T = I_r, A never updated), or an ablation."""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import torch
from torch import Tensor

VERSION = 1
"""Version of the stream and factorisation below; it goes into the state, since another A is another model."""

FINGERPRINT_ENTRIES = 16
PART = 256
"""Rows or columns of A that are computed at a time, so that memory holds little more than A itself."""

Kind = Literal["orthonormal", "gaussian", "xavier", "pca"]
"""How A is chosen: the paper's and the others of its Table basis_init. `pca` is drawn as `orthonormal` until there is
data (see `principal`)."""


def site_seed(seed: int, site: str) -> int:
    """Return the seed of one site's stream, in [0, 2^32), from the recipe's seed and the site's name."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{site}".encode()).digest()[:4], "big")


def draw_basis(rank: int, d_in: int, seed: int, kind: Kind = "orthonormal") -> Tensor:
    """Draw A, (rank, d_in) float32, the same for the same seed on every machine; by default its rows are orthonormal.

    `RandomState` is numpy's frozen generator: its stream is guaranteed never to change. For a full-rank X the
    factorisation X^T = Q R with a positive diagonal of R is unique, so any stable algorithm gives this A = Q^T
    up to rounding.

    The paper does not say how long the rows of the others are. As in the authors' code `gaussian` has the variance
    1 / d_in, so that a row is about 1 long, and `xavier` 2 / (rank + d_in), so that it is up to sqrt(2) long.
    """
    return _leading(rank, rank, d_in, seed, kind)


def _leading(rows: int, rank: int, d_in: int, seed: int, kind: Kind) -> Tensor:
    """Return the first rows of A, which do not depend on the others: the stream of numbers goes row by row."""
    if kind == "gaussian":
        X = _normal(rows, d_in, seed) / d_in**0.5
    elif kind == "xavier":
        X = _normal(rows, d_in, seed) * (2 / (rank + d_in)) ** 0.5
    else:
        X = _normal(rows, d_in, seed)
        # With nearly as many rows as columns X is ill conditioned, and only Householder's Q is the same everywhere.
        X = _cholesky_qr_(X) if 4 * rows <= d_in else lq(X)[1].contiguous()
    # float32: A multiplies activations of at most that precision, and B is kept in float32 as well.
    A: Tensor = X.to(torch.float32)
    return A


def _normal(rows: int, d_in: int, seed: int) -> Tensor:
    # In torch's own, aligned memory: BLAS rounds differently at other addresses.
    X = torch.empty(rows, d_in, dtype=torch.float64)
    stream = np.random.RandomState(seed)
    for part in torch.split(X, PART):  # the numbers of one draw are those of several: X is held once
        part.copy_(torch.from_numpy(stream.standard_normal(part.shape)))
    return X


def orthonormal(X: Tensor) -> Tensor:
    """Return Q (r, d_in) with orthonormal rows, whose first n span the first n rows of X (r, d_in), of rank r.

    Cholesky-QR costs one d_in r^2 product; run twice it is as orthogonal as Householder's, if X has a condition number
    below 1e7.
    """
    return _cholesky_qr_(_cholesky_qr_(X.clone()))


def _cholesky_qr_(X: Tensor) -> Tensor:
    """Overwrite X (r, d_in) with Q of X = L Q, L lower triangular; errors of about 2e-16 k^2, k the condition number.

    Normal numbers with r <= d_in / 4 have k of at most about 3: singular values lie within sqrt(d_in) +- sqrt(r).
    """
    L = torch.linalg.cholesky(X @ X.T)
    for part in torch.split(X, PART, dim=1):
        part.copy_(torch.linalg.solve_triangular(L, part, upper=False))
    return X


def lq(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return L (r, r), lower triangular with a positive diagonal, and Q (r, d_in) with orthonormal rows, of A = L Q.

    By Householder's algorithm, which takes any A: of one that is not finite L and Q are not finite, without an error.
    """
    V, R = torch.linalg.qr(A.T)
    signs = torch.where(R.diagonal() < 0, -1.0, 1.0).to(A)
    return (signs[:, None] * R).T, (V * signs).T


VARIES = 1e-6
"""The inputs vary in a direction if its singular value is above this share of the largest one."""


def principal(inputs: Tensor, drawn: Tensor) -> Tensor:
    """Return A of the kind `pca`, (r, d_in) float32: the first principal directions of a site's inputs (n, d_in).

    If the inputs vary in fewer than r directions, rows of `drawn` (r, d_in), made orthogonal to them, fill A up. The
    paper only says "activation statistics collected from the training set"; this is the authors' `pca`.
    """
    X = inputs.double()
    _, lengths, V = torch.linalg.svd(X - X.mean(dim=0), full_matrices=False)
    V = V[lengths > VARIES * lengths[0]][: len(drawn)]
    # The sign of a principal direction is arbitrary: its largest entry is made positive.
    V = V * V.gather(1, V.abs().argmax(dim=1, keepdim=True)).sign()
    rest = drawn[: len(drawn) - len(V)].double()
    return orthonormal(torch.cat([V, rest - rest @ V.T @ V])).float().contiguous()


def stretch(A: Tensor) -> float:
    """Return the largest |B A|_F / |B|_F over all B: the largest singular value of A (r, d_in)."""
    A = A.double()
    return float(torch.linalg.eigvalsh(A @ A.T)[-1].clamp(min=0.0).sqrt())


def fingerprint(A: Tensor) -> list[float]:
    """Return the first 16 entries of A v for a fixed v, rounded to 1e-7, to recognise A without storing it."""
    v = torch.cos(torch.arange(A.shape[1], dtype=torch.float64))
    return [round(value, 7) for value in (A.double() @ v)[:FINGERPRINT_ENTRIES].tolist()]


def drawn_fingerprint(rank: int, d_in: int, seed: int, kind: Kind = "orthonormal") -> list[float]:
    """Return the fingerprint of the A that `draw_basis` draws; only the rows that it is made of are drawn."""
    return fingerprint(_leading(min(rank, FINGERPRINT_ENTRIES), rank, d_in, seed, kind))


def close(actual: list[float], expected: list[float]) -> bool:
    """Return whether two fingerprints are of one basis: another rounding passes, another basis does not."""
    return len(actual) == len(expected) and all(abs(a - b) <= 1e-5 for a, b in zip(actual, expected, strict=True))
