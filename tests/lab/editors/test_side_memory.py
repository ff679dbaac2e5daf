"""WISE's side memories without a model: distances, masks, the choice among memories, and TIES."""

from __future__ import annotations

import pytest
import torch

from more_lab.editors.wise.side_memory import SideMemory, block_mask, choose, merged, ties


def test_a_distance_is_the_mean_over_the_tokens() -> None:
    memory = SideMemory(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    assert memory.distance(torch.tensor([[1.0, 9.0], [0.0, 5.0], [-2.0, 0.0]])).item() == pytest.approx(5.0)
    assert SideMemory(torch.zeros(2, 2)).distance(torch.ones(3, 2)).item() == 0.0


def test_ties_of_a_written_out_example() -> None:
    """Density 1/2 keeps two of four entries each; the signs of the sums are +, -, 0, +."""
    first = torch.tensor([[4.0, -2.0], [1.0, 0.5]])
    second = torch.tensor([[1.0, -3.0], [0.2, 6.0]])
    third = torch.tensor([[-1.0, 5.0], [-1.5, -2.0]])
    # Trimmed: [4 -2 0 0], [0 -3 0 6], [0 5 0 -2]. Sums: 4, 0, 0, 4.
    assert torch.equal(ties([first, second, third], 0.5), torch.tensor([[4.0, 0.0], [0.0, 6.0]]))
    # Untrimmed sums: 4, 0, -0.3, 4.5. Means of those that agree: (4 + 1) / 2, 0, -1.5, (0.5 + 6) / 2.
    assert torch.equal(ties([first, second, third], 1.0), torch.tensor([[2.5, 0.0], [-1.5, 3.25]]))


def test_ties_of_one_or_of_apart_ones_keeps_them() -> None:
    one, other = torch.tensor([[1.0, 0.0, -2.0, 0.0]]), torch.tensor([[0.0, 3.0, 0.0, 0.0]])
    assert torch.equal(ties([one], 0.5), one)
    assert torch.equal(ties([one, other], 0.5), one + other)
    assert merged([SideMemory(one, 2.0), SideMemory(other, 0.5)], 0.5).least == 0.5


def test_the_memory_that_is_changed_most_answers_if_it_reaches_its_own_threshold() -> None:
    memories = [SideMemory(torch.eye(2), 1.0), SideMemory(2 * torch.eye(2), 4.0), SideMemory(torch.zeros(2, 2))]
    chosen = [choose(memories, torch.tensor([[x, 0.0]]), ratio=0.5) for x in (0.4, 0.6, 0.9, 1.1)]
    assert chosen == [None, 0, 0, 1]
    assert choose([], torch.ones(1, 2), 0.5) is None


def test_a_mask_is_that_of_its_block() -> None:
    first = block_mask((40, 50), 0.2, 0, 0)
    assert 0.15 < first.float().mean() < 0.25
    assert torch.equal(first, block_mask((40, 50), 0.2, 0, 0))
    assert not torch.equal(first, block_mask((40, 50), 0.2, 0, 1))
