"""Changes of a weight: what is computed from factors is what the dense matrices give."""

from __future__ import annotations

import math

import pytest
import torch

from more_cli.core.basis import draw_basis
from more_cli.model.changes import Change
from more_lab.experiments.updates import RANK, compact, cosine, largest, minus


def factors(seed: int, rank: int = 4, right: torch.Tensor | None = None) -> Change:
    generator = torch.Generator().manual_seed(seed)
    if right is None:
        right = torch.randn(rank, 60, generator=generator)
    return Change(torch.randn(50, len(right), generator=generator), right)


def dense(change: Change) -> torch.Tensor:
    assert change.right is not None
    return change.left.double() @ change.right.double()


@pytest.mark.parametrize("shared", [True, False])
def test_the_cosine_of_factors_is_that_of_the_matrices(shared: bool) -> None:
    one = factors(1)
    other = factors(2, right=one.right if shared else None)
    a, b = dense(one).flatten(), dense(other).flatten()
    assert cosine(one, other) == pytest.approx(float(a @ b / a.norm() / b.norm()), rel=1e-12)
    assert cosine(one, Change(dense(other).float())) == pytest.approx(cosine(one, other), rel=1e-5)
    assert cosine(Change(dense(one).float()), other) == pytest.approx(cosine(one, other), rel=1e-5)
    assert cosine(one, one) == pytest.approx(1.0, abs=1e-12)


def test_with_an_orthonormal_basis_the_written_matrices_suffice() -> None:
    A = draw_basis(8, 60, 3)
    one, other = factors(1, right=A), factors(2, right=A)
    a, b = one.left.double().flatten(), other.left.double().flatten()
    assert cosine(one, other) == pytest.approx(float(a @ b / a.norm() / b.norm()), rel=1e-5)


def test_the_cosine_of_nothing_is_unknown() -> None:
    assert math.isnan(cosine(factors(1), Change(torch.zeros(50, 60))))


@pytest.mark.parametrize("shared", [True, False])
def test_a_difference_is_exact_in_its_factors(shared: bool) -> None:
    one = factors(1)
    other = factors(2, right=one.right if shared else None)
    found = minus(one, other)
    assert found.right is not None
    assert len(found.right) == (4 if shared else 8)
    assert torch.allclose(dense(found), dense(one) - dense(other), atol=1e-5)
    assert torch.allclose(minus(one, Change(other.dense())).dense(), found.dense(), atol=1e-5)


def test_a_matrix_of_low_rank_is_kept_as_factors_and_others_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(300, 3, generator=generator) @ torch.randn(3, 200, generator=generator)
    found = compact(Change(low))
    assert found.right is not None
    assert found.left.shape == (300, 3)
    assert float((found.dense() - low).norm() / low.norm()) < 1e-5
    full = torch.randn(300, 200, generator=generator)
    assert compact(Change(full)).right is None
    assert torch.equal(compact(Change(full)).left, full)
    assert compact(Change(low[: RANK // 2])).right is None, "factors of a small matrix would be larger"


def test_the_largest_entries_are_those_of_a_stable_sort() -> None:
    matrix = torch.randint(-4, 5, (20, 30), generator=torch.Generator().manual_seed(0)).float()
    order = sorted(range(600), key=lambda place: (-abs(float(matrix.flatten()[place])), place))
    for count in (1, 7, 100, 600):
        assert largest(Change(matrix), count).tolist() == sorted(order[:count])
