"""The closed forms of locate-then-edit methods, compared with dense solves of the printed formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from more_lab.editors.locate.solve import (
    covariance_update,
    equality_update,
    leading,
    null_space_update,
    null_space_update_low_rank,
    outside,
)

M, D, T = 32, 12, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectrum(K0: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.eigh(K0 @ K0.T / K0.shape[1])


def disturbance(Delta: Tensor, K: Tensor) -> float:
    return float((Delta @ K).norm() / (Delta.norm() * K.norm()))


def test_the_null_space_update_is_the_printed_formula() -> None:
    K0, K, R, past = drawn(M, 20), drawn(M, T, seed=1), drawn(D, T, seed=2), drawn(M, 7, seed=3)
    values, vectors = spectrum(K0)
    V = leading(values, vectors, 1.0, None)
    P = vectors[:, : M - V.shape[1]] @ vectors[:, : M - V.shape[1]].T
    torch.testing.assert_close(outside(V, torch.eye(M).double()), P, atol=1e-12, rtol=0)
    A = P @ (K @ K.T + past @ past.T) + 0.3 * torch.eye(M).double()
    assert (A - A.T).norm() > 1, "a symmetric solver would be wrong"
    printed = (torch.linalg.inv(A) @ P @ K @ R.T).T
    torch.testing.assert_close(null_space_update(V, past @ past.T, K, R, 0.3), printed, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(null_space_update_low_rank(V, past, K, R, 0.3), printed, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("keys", [20, 31])
def test_keys_of_less_than_full_rank_are_protected_exactly(keys: int) -> None:
    K0 = drawn(M, keys)
    V = leading(*spectrum(K0), 1.0, None)
    assert V.shape[1] == keys
    Delta = null_space_update(V, torch.zeros(M, M).double(), drawn(M, T, seed=1), drawn(D, T, seed=2), 1e-3)
    assert Delta.norm() > 0.1
    assert disturbance(Delta, K0) < 1e-12


def test_of_keys_with_full_rank_the_dropped_directions_are_protected() -> None:
    K0 = torch.diag(torch.logspace(0, -2, M).double()) @ drawn(M, 500)
    V = leading(*spectrum(K0), 0.99, None)
    assert 0 < V.shape[1] < M
    Delta = null_space_update(V, torch.zeros(M, M).double(), drawn(M, T, seed=1), drawn(D, T, seed=2), 1e-3)
    assert disturbance(Delta, V) < 1e-12
    assert 1e-6 < disturbance(Delta, K0) < 0.2, "the keys themselves only up to the hundredth of the trace left out"


def test_the_share_and_the_threshold_choose_eigenvectors() -> None:
    values, vectors = torch.tensor([0.5, 1.0, 2.5, 6.0]).double(), torch.eye(4).double()
    for share, kept in ((0.5, 1), (0.6, 1), (0.61, 2), (0.85, 2), (0.9, 3), (0.96, 4), (1.0, 4)):
        assert torch.equal(leading(values, vectors, share, None), vectors[:, 4 - kept :]), share
    assert torch.equal(leading(values, vectors, 0.5, 1.0), vectors[:, 1:])


def test_with_the_earlier_keys_an_earlier_request_is_less_disturbed() -> None:
    V, first = leading(*spectrum(drawn(M, 12)), 1.0, None), drawn(M, T, seed=1)
    second, R = first + 0.3 * drawn(M, T, seed=2), drawn(D, T, seed=3)
    with_them = null_space_update(V, first @ first.T, second, R, 1e-2)
    without = null_space_update(V, torch.zeros(M, M).double(), second, R, 1e-2)
    assert (with_them @ first).norm() < 0.2 * (without @ first).norm()


def test_the_covariance_update_solves_the_normal_equations() -> None:
    K0, K, R = drawn(M, 200), drawn(M, T, seed=1), drawn(D, T, seed=2)
    C, weight = K0 @ K0.T / 200, 5.0
    Delta = covariance_update(torch.linalg.solve(C, K), K, R, weight)
    torch.testing.assert_close(Delta @ (weight * C + K @ K.T), R @ K.T, atol=1e-9, rtol=1e-9)


def test_the_equality_update_maps_keys_exactly_and_moves_others_least() -> None:
    K0, K, R = drawn(M, 200), drawn(M, T, seed=1), drawn(D, T, seed=2)
    C = K0 @ K0.T / 200
    Delta = equality_update(torch.linalg.solve(C, K), K, R)
    torch.testing.assert_close(Delta @ K, R, atol=1e-9, rtol=1e-9)
    # Any other solution differs by something that vanishes on K; it moves ordinary keys more.
    free = drawn(D, M, seed=4)
    other = Delta + free - free @ K @ torch.linalg.pinv(K)
    torch.testing.assert_close(other @ K, R, atol=1e-9, rtol=1e-9)
    assert (other @ C @ other.T).trace() > (Delta @ C @ Delta.T).trace()
    # With one key it is ROME's formula.
    k, r = K[:, :1], R[:, :1]
    u = torch.linalg.inv(C) @ k
    torch.testing.assert_close(equality_update(u, k, r), r @ u.T / float(k.T @ u), atol=1e-9, rtol=1e-9)
