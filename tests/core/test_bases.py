"""The bases of the ablations: their variance, their directions, and how much longer than B they make a product."""

import numpy as np
import pytest
import torch

from more_cli.core import basis


def inputs(count: int, d_in: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, d_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("kind", "variance"), [("gaussian", 1 / 400), ("xavier", 2 / 500)])
def test_random_rows_have_the_variance_of_the_authors_code(kind: basis.Kind, variance: float) -> None:
    A = basis.draw_basis(100, 400, seed=3, kind=kind)
    assert (A.shape, A.dtype) == ((100, 400), torch.float32)
    assert float(A.var()) == pytest.approx(variance, rel=0.03)
    assert float((A @ A.T - torch.eye(100)).abs().max()) > 0.05, "its rows are not orthonormal"
    assert torch.equal(A, basis.draw_basis(100, 400, seed=3, kind=kind))
    assert not torch.equal(A, basis.draw_basis(100, 400, seed=4, kind=kind))


def test_the_orthonormal_basis_spans_what_the_gaussian_one_does() -> None:
    """One stream for all kinds: what differs is the length and the angle of the rows."""
    gaussian, orthonormal = (basis.draw_basis(8, 40, 1, kind).double() for kind in ("gaussian", "orthonormal"))
    torch.testing.assert_close(gaussian @ orthonormal.T @ orthonormal, gaussian, atol=1e-6, rtol=0)


def test_the_first_rows_of_a_pca_are_the_principal_directions_of_the_data() -> None:
    drawn = basis.draw_basis(6, 30, seed=0)
    X = inputs(200, 30) * torch.linspace(3, 0.1, 30) + 5  # far from zero: the mean is no direction
    A = basis.principal(X, drawn).double()
    values, vectors = torch.linalg.eigh(torch.cov(X.T))
    for row, expected in zip(A, vectors.T.flip(0), strict=False):
        assert abs(float(row @ expected)) == pytest.approx(1.0, abs=1e-5)
    assert values[-1] > values[-7]
    torch.testing.assert_close(A @ A.T, torch.eye(6).double(), atol=1e-6, rtol=0)
    assert all(row[row.abs().argmax()] > 0 for row in A), "the sign does not depend on the library"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_pca_of_few_inputs_is_filled_up_with_drawn_directions(count: int) -> None:
    drawn, X = basis.draw_basis(6, 30, seed=0), inputs(count, 30)
    A = basis.principal(X, drawn).double()
    torch.testing.assert_close(A @ A.T, torch.eye(6).double(), atol=1e-6, rtol=0)
    centred = X - X.mean(dim=0)
    torch.testing.assert_close(centred @ A[: count - 1].T @ A[: count - 1], centred, atol=1e-5, rtol=0)


def test_rows_are_made_orthonormal_again_in_their_order_and_with_their_signs() -> None:
    """A moved A gets the rows that are nearest to where they were, so P still speaks of about the same coordinates."""
    before = basis.draw_basis(6, 30, seed=0).double()
    moved = before + 1e-3 * inputs(6, 30)
    L, Q = basis.lq(moved)
    torch.testing.assert_close(L @ Q, moved)
    torch.testing.assert_close(Q @ Q.T, torch.eye(6).double())
    assert torch.equal(L, L.tril())
    assert float((Q - before).abs().max()) < 5e-3
    torch.testing.assert_close(Q, basis.orthonormal(moved))
    assert not basis.lq(moved / 0)[1].isfinite().all(), "no error: the edit is refused"


def test_stretch_bounds_the_length_of_a_product() -> None:
    A = basis.draw_basis(20, 90, 0, "gaussian")
    longest = basis.stretch(A)
    assert longest == pytest.approx(float(torch.linalg.matrix_norm(A, 2)), rel=1e-5)
    for seed in range(5):
        B = inputs(7, 20, seed).float()
        assert float((B @ A).norm()) <= longest * float(B.norm()) * (1 + 1e-6)
    assert basis.stretch(basis.draw_basis(20, 90, 0)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("rank", "d_in"), [(1, 4), (96, 384), (512, 2048)])
def test_a_drawn_basis_is_householders_to_the_last_digits(rank: int, d_in: int) -> None:
    X = basis._normal(rank, d_in, seed=5)
    Q = basis._leading(rank, rank, d_in, 5, "orthonormal").double()
    torch.testing.assert_close(Q, basis.lq(X)[1], atol=1e-7, rtol=0)
    assert float((basis._cholesky_qr_(X.clone()) - basis.lq(X)[1]).abs().max()) < 1e-14


def test_numbers_drawn_in_parts_are_those_of_one_draw() -> None:
    whole = np.random.RandomState(7).standard_normal((2 * basis.PART + 3, 5))
    assert np.array_equal(basis._normal(*whole.shape, seed=7).numpy(), whole)
