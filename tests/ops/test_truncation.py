"""Updates at another rank, against the singular value decomposition of the whole product."""

from __future__ import annotations

import pytest
import torch

from more_cli.ops.export import at_rank


def drawn(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(12, rank, generator=generator), torch.randn(rank, 20, generator=generator)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_the_product_is_the_closest_of_its_rank(rank: int) -> None:
    B, A = drawn(6)
    left, right, part = at_rank(B, A, rank)
    U, lengths, V = torch.linalg.svd(B.double() @ A.double())
    closest = (U[:, :rank] * lengths[:rank]) @ V[:rank]
    assert (left.shape, right.shape) == ((12, rank), (rank, 20))
    torch.testing.assert_close(left.double() @ right.double(), closest, atol=1e-5, rtol=1e-5)
    assert part == pytest.approx(float(closest.norm() / lengths.norm()), abs=1e-9)


def test_a_higher_rank_adds_zeros_and_loses_nothing() -> None:
    B, A = drawn(6)
    left, right, part = at_rank(B, A, 16)
    assert (left.shape, right.shape) == ((12, 16), (16, 20))
    assert not left[:, 6:].any() and not right[6:].any()  # noqa: PT018
    torch.testing.assert_close(left @ right, B @ A, atol=1e-4, rtol=1e-4)
    assert part == pytest.approx(1)


def test_an_update_that_is_zero_stays_zero() -> None:
    left, right, part = at_rank(torch.zeros(12, 6), drawn(6)[1], 2)
    assert not (left @ right).any()
    assert part == 0
