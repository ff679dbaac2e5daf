"""The training loop of editors that are fitted: interrupted, it ends with the same bytes."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from more_cli.editors.base import FitData
from more_cli.errors import StateError
from more_lab.editors import fitting
from more_lab.editors.fitting import FALL, Watch, stalled, train


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


def watched(net: nn.Module, falls: int = 0) -> Watch:
    """The loss of one fixed draw: with a rate of 0.1 it soon gains nothing."""
    return Watch(lambda: float(loss_of(net, 10_000).detach()), falls)


@pytest.mark.parametrize(
    ("losses", "ended"),
    [
        ([3.0, 2.0, 2.0, 2.0, 2.0], False),
        ([2.0, 2.0, 2.0, 2.0, 2.0], True),
        ([2.0, 2.1, 2.2, 2.3, 1.995], True),
        ([2.0, 2.1, 2.2, 2.3, 1.98], False),
        ([2.0, 2.0, 2.0, 2.0], False),
    ],
)
def test_a_plateau_is_four_checks_of_which_none_gains(losses: list[float], ended: bool) -> None:
    assert stalled(losses) is ended


def test_it_ends_at_a_plateau_with_the_best_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "EVERY", 5)
    net, optimiser = fresh()
    watch = watched(net)
    facts = train(FitData([]), net, optimiser, 10_000, lambda n: loss_of(net, n), watch=watch)
    curve = facts["curve"]
    assert (facts["ended"], curve[-1][0]) == ("plateau", facts["iterations"])
    assert [iteration for iteration, _ in curve] == list(range(5, facts["iterations"] + 1, 5))
    assert watch.loss() == pytest.approx(min(loss for _, loss in curve), abs=1e-5)
    assert stalled([loss for _, loss in curve])


def test_the_rate_falls_at_each_plateau_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "EVERY", 5)
    net, optimiser = fresh()
    facts = train(FitData([]), net, optimiser, 10_000, lambda n: loss_of(net, n), watch=watched(net, falls=2))
    assert (facts["ended"], len(facts["rate_fell_at"])) == ("plateau", 2)
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.1 * FALL**2)


@pytest.mark.parametrize("killed_at", [3, 42, 60, 95])
def test_a_killed_training_that_is_watched_ends_with_the_same_bytes(
    killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "EVERY", 5)
    whole, optimiser = fresh()
    expected = train(FitData([]), whole, optimiser, 10_000, lambda n: loss_of(whole, n), watch=watched(whole, 1))
    assert expected["iterations"] > 60
    kept: dict[str, Tensor] = {}

    def dying(net: nn.Module, iteration: int) -> Tensor:
        if iteration == killed_at:
            raise Killed
        return loss_of(net, iteration)

    net, optimiser = fresh()
    data = FitData([], save=lambda make: kept.update({name: value.clone() for name, value in make().items()}))
    with suppress(Killed):
        train(data, net, optimiser, 10_000, lambda n: dying(net, n), watch=watched(net, 1))
    net, optimiser = fresh()
    again = FitData([], load=lambda: kept)
    assert train(again, net, optimiser, 10_000, lambda n: loss_of(net, n), watch=watched(net, 1)) == expected
    assert all(map(torch.equal, net.parameters(), whole.parameters()))


def test_it_ends_when_its_time_is_over_and_says_how_far_it_came() -> None:
    net, optimiser = fresh()
    facts = train(FitData([], seconds=-1), net, optimiser, 20, lambda n: loss_of(net, n))
    assert (facts["iterations"], facts["of"]) == (0, 20)


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    net, optimiser = fresh()
    with pytest.raises(StateError, match="iteration 0"):
        train(FitData([]), net, optimiser, 2, lambda n: loss_of(net, n) * torch.inf)
