"""The training loop of editors that are fitted: interrupted, it ends with the same bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from more_cli.editors.base import FitData
from more_cli.errors import StateError
from more_lab.editors.fitting import train


class Killed(Exception):
    """Stands for a signal."""


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
    return net, torch.optim.Adam(net.parameters(), 0.1)


def loss_of(net: nn.Module, iteration: int) -> Tensor:
    draw = torch.Generator().manual_seed(iteration)
    return ((net(torch.randn(3, 4, generator=draw)) - 1) ** 2).mean()


def test_it_is_adam_of_plain_torch() -> None:
    net, optimiser = fresh()
    facts = train(FitData([]), net, optimiser, 20, lambda n: loss_of(net, n), clip=0.5)
    other, again = fresh()
    for iteration in range(20):
        again.zero_grad()
        loss_of(other, iteration).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        again.step()
    assert all(map(torch.equal, net.parameters(), other.parameters()))
    assert (facts["iterations"], facts["of"]) == (20, 20)


@pytest.mark.parametrize("killed_at", [1, 7, 19])
def test_a_killed_training_ends_with_the_same_bytes(killed_at: int) -> None:
    whole, optimiser = fresh()
    expected = train(FitData([]), whole, optimiser, 20, lambda n: loss_of(whole, n))
    kept: dict[str, Tensor] = {}

    def dying(net: nn.Module, iteration: int) -> Tensor:
        if iteration == killed_at:
            raise Killed
        return loss_of(net, iteration)

    net, optimiser = fresh()
    data = FitData([], save=lambda make: kept.update({name: value.clone() for name, value in make().items()}))
    with pytest.raises(Killed):
        train(data, net, optimiser, 20, lambda n: dying(net, n))
    net, optimiser = fresh()
    assert train(FitData([], load=lambda: kept), net, optimiser, 20, lambda n: loss_of(net, n)) == expected
    assert all(map(torch.equal, net.parameters(), whole.parameters()))


def test_it_ends_when_its_time_is_over_and_says_how_far_it_came() -> None:
    net, optimiser = fresh()
    facts = train(FitData([], seconds=-1), net, optimiser, 20, lambda n: loss_of(net, n))
    assert (facts["iterations"], facts["of"]) == (0, 20)


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    net, optimiser = fresh()
    with pytest.raises(StateError, match="iteration 0"):
        train(FitData([]), net, optimiser, 2, lambda n: loss_of(net, n) * torch.inf)
