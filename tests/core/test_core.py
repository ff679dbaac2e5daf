"""The paper's equations against closed forms in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from more_cli.core import basis, recursion, write
from support.equations import closed_form


def keys(count: int, rank: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(count, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("rank", "d_in"), [(1, 4), (16, 64), (96, 384), (128, 128), (384, 512), (128, 10240), (512, 11008)]
)
def test_basis_rows_are_orthonormal(rank: int, d_in: int) -> None:
    A = basis.draw_basis(rank, d_in, seed=42)
    assert A.shape == (rank, d_in)
    assert A.dtype == torch.float32
    torch.testing.assert_close(A.double() @ A.double().T, torch.eye(rank, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("rank", [24, 200])
def test_basis_is_the_unique_q_factor(rank: int) -> None:
    import numpy as np

    raw = np.random.RandomState(7).standard_normal((rank, 200))
    Q, R = np.linalg.qr(raw.T)
    theirs = (Q * np.sign(np.diag(R))).T
    ours = basis.draw_basis(rank, 200, seed=7)
    torch.testing.assert_close(ours.double(), torch.from_numpy(theirs), atol=1e-6, rtol=0)


def test_fingerprint_recognises_its_basis_and_no_other() -> None:
    A = basis.draw_basis(32, 256, seed=1)
    known = basis.fingerprint(A)
    assert len(known) == basis.FINGERPRINT_ENTRIES
    assert basis.close(basis.fingerprint(A + 1e-8), known)
    assert not basis.close(basis.drawn_fingerprint(32, 256, seed=2), known)
    swapped = A.clone()
    swapped[[0, 1]] = A[[1, 0]]
    assert not basis.close(basis.fingerprint(swapped), known)


def test_sites_draw_from_streams_of_their_own() -> None:
    assert basis.site_seed(42, "text.1.down_proj") != basis.site_seed(42, "text.2.down_proj")
    assert basis.site_seed(42, "a") != basis.site_seed(43, "a")


@pytest.mark.parametrize("normalisation", ["unit", "paper"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_recursion_equals_the_closed_form_after_10000_updates(normalisation, scale: float) -> None:
    Z = keys(10_000, 24, scale=scale)
    P = recursion.initial(24, 2.0, normalisation)
    for z in Z:
        P = recursion.absorb(P, z, 2.0, normalisation)
    expected = closed_form(Z, 2.0, normalisation)
    assert float((P - expected).norm() / expected.norm()) < 1e-9
    assert torch.equal(P, P.T)


@settings(max_examples=50, deadline=None)
@given(ridge=st.floats(0.01, 1e4), scale=st.floats(1e-3, 50), count=st.integers(0, 12), seed=st.integers(0, 999))
def test_recursion_stays_positive_definite_and_shrinks(ridge: float, scale: float, count: int, seed: int) -> None:
    P = recursion.initial(8, ridge, "unit")
    for z in keys(count, 8, seed, scale):
        smaller = recursion.absorb(P, z, ridge, "unit")
        assert float(z @ smaller @ z) <= float(z @ P @ z) * (1 + 1e-12)
        P = smaller
    assert float(torch.linalg.eigvalsh(P).min()) > 0


@pytest.mark.parametrize("normalisation", ["unit", "paper"])
@pytest.mark.parametrize("count", [1, 6, recursion.BLOCK, 576])
@pytest.mark.parametrize("length", [1.0, 40.0, 1e4])  # the last loses too many digits at once
@pytest.mark.parametrize("alike", [False, True])
def test_a_matrix_of_keys_is_absorbed_as_if_row_by_row(normalisation, count: int, length: float, alike: bool) -> None:
    Z = keys(count, 48, scale=length / 48**0.5)
    Z = Z[:1].expand(count, -1) + 1e-9 * Z if alike else Z
    P = rows = recursion.initial(48, 3.0, normalisation)
    P = recursion.absorb(P, Z.float(), 3.0, normalisation)  # keys of single tokens come as the model computes them
    for z in Z.float():
        rows = recursion.absorb(rows, z, 3.0, normalisation)
    torch.testing.assert_close(P, rows, atol=1e-9 * float(rows.diagonal().max()), rtol=0)
    if length < 1e4:  # beyond it the inversion is what loses digits
        torch.testing.assert_close(P, closed_form(Z.float(), 3.0, normalisation), atol=1e-9, rtol=0)
    assert not recursion.flaw(P, count, 3.0, normalisation)


def test_blocks_are_left_where_keys_are_too_long_for_them() -> None:
    P = recursion.initial(24, 1.0, "unit")
    assert recursion._absorb_block(P, keys(8, 24), 1.0) is not None
    assert recursion._absorb_block(P, keys(8, 24, scale=1e4), 1.0) is None
    assert recursion._absorb_block(P, keys(1, 24, scale=1e9).expand(8, -1), 1e-12) is None
    assert recursion._absorb_block(P, keys(8, 24) / 0, 1.0) is None


def test_both_normalisations_are_one_editor_once_eta_is_rescaled() -> None:
    """P_paper(lambda) = P_unit(1 + lambda) / (1 + lambda): method.md 2, checked on a whole stream of writes."""
    ridge, eta = 7.0, 0.3
    Z, G = keys(20, 6), keys(20, 30, seed=5).reshape(20, 5, 6)
    unit, paper = recursion.initial(6, 1 + ridge, "unit"), recursion.initial(6, ridge, "paper")
    B_unit, B_paper = torch.zeros(5, 6, dtype=torch.float64), torch.zeros(5, 6, dtype=torch.float64)
    for z, g in zip(Z, G, strict=True):
        B_unit = B_unit - eta * g @ unit
        B_paper = B_paper - eta * (1 + ridge) * g @ paper
        unit = recursion.absorb(unit, z, 1 + ridge, "unit")
        paper = recursion.absorb(paper, z, ridge, "paper")
    torch.testing.assert_close(B_unit, B_paper, atol=1e-12, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), d_out=st.integers(1, 40), r=st.integers(1, 16), seed=st.integers(0, 99))
def test_factored_write_equals_the_built_one(n: int, d_out: int, r: int, seed: int) -> None:
    D, Z = keys(n, d_out, seed).float(), keys(n, r, seed + 1).float()
    P = recursion.absorb(recursion.initial(r, 1.0, "unit"), keys(1, r, seed + 2)[0], 1.0, "unit")
    built = write.Gradient(2.0, built=2.0 * D.T @ Z)
    factored = write.Gradient(2.0, D=D, Z=Z)
    direction = built.preconditioned(P)
    torch.testing.assert_close(factored.preconditioned(P), direction, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(factored.dense(), built.dense(), atol=1e-4, rtol=1e-4)
    assert factored.inner(direction) == pytest.approx(float(built.inner(direction)), rel=1e-3, abs=1e-3)


def test_the_moment_weighs_keys_by_their_gradients_in_either_form_and_over_several_passes() -> None:
    D, Z = keys(7, 5).float(), keys(7, 4, 1).float()
    expected = sum(float(d @ d) * torch.outer(z, z) for d, z in zip(D, Z, strict=True))
    built = write.Gradient.of(D[:3], Z[:3], 2.0) + write.Gradient.of(D[3:], Z[3:], 2.0)
    assert built.built is not None
    torch.testing.assert_close(built.moment(), expected)
    few = keys(3, 400).float(), keys(3, 40, 1).float()
    factored = write.Gradient.of(few[0][:1], few[1][:1], 2.0) + write.Gradient.of(few[0][1:], few[1][1:], 2.0)
    assert factored.built is None
    torch.testing.assert_close(factored.moment(), write.Gradient(1.0, D=few[0], Z=few[1]).moment())


def test_damping_is_absorbing_the_write_s_own_keys_for_once() -> None:
    Z, D = keys(6, 4), keys(6, 5, 1)
    P = recursion.absorb(recursion.initial(4, 0.5, "unit"), keys(3, 4, 2), 0.5, "unit")
    M = write.Gradient.of(D, Z, 1.0).moment()
    for damping in (0.03, 1.0, 30.0):
        mu = damping * float(M.trace()) / 4
        weighted = Z * D.norm(dim=1, keepdim=True)
        absorbed = recursion.absorb(P, weighted, mu, "unit")
        torch.testing.assert_close(
            recursion.damped(P, M, damping, float(M.double().trace())), absorbed, atol=1e-6, rtol=1e-5
        )
    torch.testing.assert_close(recursion.damped(P, M, 1e12, float(M.double().trace())), P, atol=1e-9, rtol=0)
    for nothing in (0.0, float("inf"), float("nan")):
        assert recursion.damped(P, torch.full((4, 4), nothing), 1.0, 4 * nothing) is P


def test_few_tokens_are_kept_as_factors_and_many_are_built() -> None:
    assert write.Gradient.of(torch.ones(3, 4096), torch.ones(3, 512), 2.0).built is None
    assert write.Gradient.of(torch.ones(900, 64), torch.ones(900, 16), 2.0).built is not None


def test_polyak_step_predicts_the_whole_loss_and_ignores_the_scale_of_p() -> None:
    G, P = keys(4, 6).float(), recursion.initial(6, 1.0, "unit")
    gradient = write.Gradient(1.0, built=G)
    for factor in (1.0, 1e-3):
        direction = gradient.preconditioned(factor * P)
        eta = write.polyak_step(3.0, float(gradient.inner(direction)))
        assert eta * gradient.inner(direction) == pytest.approx(3.0, rel=1e-5)
        torch.testing.assert_close(eta * direction, G * 3.0 / float(G.square().sum()), atol=1e-5, rtol=1e-4)
    assert write.polyak_step(3.0, 0.0) == 0.0


@given(
    slope=st.floats(1e-3, 1e3),
    before=st.floats(-1e3, -1e-3),
    after=st.floats(-1e3, 1e3),
    part=st.floats(0.1, 1.0),
)
def test_a_conjugate_direction_descends_and_goes_on_by_a_bounded_part(
    slope: float, before: float, after: float, part: float
) -> None:
    beta = write.conjugacy(slope, before, after, part)
    assert slope - beta * after > 0  # <G, G P - beta s>
    assert 0 <= beta <= part * slope / -before * (1 + 1e-9)


def test_nothing_written_leaves_the_next_direction_alone() -> None:
    assert write.conjugacy(2.0, 0.0, 0.0, 1.0) == 0.0


def test_conjugate_writes_end_a_narrow_valley_in_as_many_steps_as_it_has_directions() -> None:
    """A quadratic loss 1/2 <B H, B>, 555 at first, with P in front and exact line searches."""
    H = torch.diag(torch.tensor([1.0, 10.0, 100.0, 1000.0], dtype=torch.float64))
    P = closed_form(keys(3, 4), 0.5, "unit")

    def inner(left: torch.Tensor, right: torch.Tensor) -> float:
        return float((left * right).sum())

    losses = []
    for conjugate in (False, True):
        B, step, before = torch.ones(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64), 0.0
        for _ in range(4):
            G = B @ H
            D = G @ P
            if conjugate:
                D = D - write.conjugacy(inner(G, D), before, inner(G, step), 1.0) * step
            step = -inner(G, D) / inner(D @ H, D) * D
            B, before = B + step, inner(G, step)
        losses.append(inner(B @ H, B) / 2)
    assert losses[0] > 1.0
    assert losses[1] < 1e-9


def test_a_long_step_is_shortened_and_a_short_one_left_alone() -> None:
    step = torch.full((3, 3), 2.0)
    norm = float(write.length(step))
    assert float(write.capped(step, 1.5, norm).norm()) == pytest.approx(1.5)
    assert write.capped(step, 100.0, norm) is step


def test_fold_equals_the_branch_and_leaves_rounding_to_the_end() -> None:
    A, B, W = basis.draw_basis(4, 32, 0), keys(8, 4).float(), keys(8, 32, 3).float()
    x = keys(5, 32, 9).float()
    torch.testing.assert_close(x @ write.fold(W, A, B, 2.0).T, x @ W.T + 2.0 * (x @ A.T) @ B.T)
    half = W.bfloat16()
    exact = write.fold(half, A, B, 2.0)
    assert exact.dtype == torch.float32
    torch.testing.assert_close(exact, half.float() + 2.0 * (B @ A))
