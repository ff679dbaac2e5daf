"""Running statistics of rows, compared with those of all rows at once."""

from __future__ import annotations

import pytest
import torch

from more_lab.editors.moments import Moments


def rows(count: int, width: int = 5) -> torch.Tensor:
    draw = torch.Generator().manual_seed(count)
    return 3 + torch.randn(count, width, generator=draw) * torch.tensor([1e-4, 1e-2, 1, 10, 1e3])[:width]


@pytest.mark.parametrize("sizes", [[2, 1, 1, 7], [1] * 11, [11], [4, 0, 7]])
def test_streaming_std_equals_batch_std(sizes: list[int]) -> None:
    moments, whole = Moments(5), rows(11)
    for part in whole.split(sizes):
        moments.add(part)
    torch.testing.assert_close(moments.mean, whole.double().mean(dim=0))
    torch.testing.assert_close(moments.std, whole.double().std(dim=0))
    assert moments.count == 11


def test_normalised_rows_have_mean_0_and_spread_1() -> None:
    moments, whole = Moments(5), rows(40)
    moments.add(whole)
    found = moments.normalised(whole).double()
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(5, dtype=torch.float64), atol=1e-5, rtol=0)
    # The smallest spread, 1e-4, is divided by itself plus 1e-7.
    torch.testing.assert_close(found.std(dim=0), torch.ones(5, dtype=torch.float64), atol=2e-3, rtol=0)


def test_what_never_varied_gives_zeros() -> None:
    moments = Moments(2)
    moments.add(torch.tensor([[0.0, 4.0]]))
    assert moments.normalised(torch.tensor([[0.0, 4.0]])).tolist() == [[0.0, 0.0]], "one row says nothing of spread"
    moments.add(torch.tensor([[0.0, 6.0]]))
    assert moments.normalised(torch.tensor([[9.0, 5.0]])).tolist() == [[0.0, 0.0]]


def test_statistics_are_in_the_saved_state() -> None:
    moments, again = Moments(5), Moments(5)
    moments.add(rows(6))
    again.load_state_dict(moments.state_dict())
    moments.add(rows(3))
    again.add(rows(3))
    assert torch.equal(moments.std, again.std)
