"""One training loop, with one rule for its end, for what editors learn before their first edit.

A killed training continues to the same bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from more_cli.editors.base import FitData
from more_cli.errors import StateError

SMOOTH = 0.98
"""Weight of the earlier losses in the reported one."""
EVERY = 500
"""Iterations between two checks on the watched edits."""
PATIENCE = 4
"""Checks in a row that make a plateau where none of them gains."""
GAIN = 0.005
"""Share of the lowest loss before them by which one of these checks must be lower."""
FALL = 0.1
"""Factor on the learning rate at a plateau that is not the end."""
CHECKED = 16
"""Batches of watched edits whose mean loss `Watch.of_batches` takes, always the same ones."""


@dataclass
class Watch:
    """Ends a training where the loss on edits that it is not trained on no longer falls, and keeps its best weights.

    Every `EVERY` iterations these edits are scored. It is a plateau if the lowest of the last `PATIENCE` losses is not
    `GAIN` lower than the lowest before. At the first `falls` plateaus the learning rate falls; the next one is the end.
    """

    loss: Callable[[], float]
    """The loss of the network as it is on the watched edits: the same number for the same weights, whose gradients it
    leaves alone."""
    falls: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Iteration and loss of every check."""
    fallen: list[int] = field(default_factory=list)
    """Number of checks before each fall of the rate."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights of the check with the lowest loss."""

    @classmethod
    def of_batches(cls, loss_of: Callable[[int], Tensor], falls: int = 0) -> Self:
        """Watch a loss that is given for the batch of a number, from 0."""

        def mean() -> float:
            with torch.no_grad():
                return sum(float(loss_of(number)) for number in range(CHECKED)) / CHECKED

        return cls(mean, falls)

    def ended(self, iteration: int, net: nn.Module, optimiser: torch.optim.Optimizer) -> bool:
        """Check a network if a check is due, let the rate fall at a plateau, and return whether that was the last."""
        if iteration % EVERY:
            return False
        value = self.loss()
        if not self.curve or value < min(loss for _, loss in self.curve):
            self.best = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
        self.curve.append((iteration, value))
        since = self.fallen[-1] if self.fallen else 0
        # A fall starts a new count, against the lowest loss before it.
        if len(self.curve) - since <= PATIENCE or not stalled([loss for _, loss in self.curve]):
            return False
        if len(self.fallen) == self.falls:
            return True
        self.fallen.append(len(self.curve))
        lower(optimiser, FALL)
        return False

    def tensors(self) -> dict[str, Tensor]:
        """Return what a resumed training needs."""
        kept = {f"best.{name}": value for name, value in self.best.items()}
        curve = torch.tensor(self.curve, dtype=torch.float64).reshape(-1, 2)
        return kept | {"curve": curve, "fallen": torch.tensor(self.fallen, dtype=torch.int64)}

    def load(self, saved: dict[str, Tensor], optimiser: torch.optim.Optimizer) -> None:
        """Restore what `tensors` returned."""
        self.best = {name.removeprefix("best."): value for name, value in saved.items() if name.startswith("best.")}
        self.curve = [(int(iteration), loss) for iteration, loss in saved["curve"].tolist()]
        self.fallen = saved["fallen"].tolist()
        lower(optimiser, FALL ** len(self.fallen))

    def facts(self) -> dict[str, Any]:
        """Return the curve, and the iterations at which the rate fell."""
        fell = [self.curve[count - 1][0] for count in self.fallen]
        return {"curve": [[iteration, round(loss, 5)] for iteration, loss in self.curve], "rate_fell_at": fell}


def stalled(losses: Sequence[float]) -> bool:
    """Return whether the last `PATIENCE` losses gain nothing over those before them."""
    before, last = losses[:-PATIENCE], losses[-PATIENCE:]
    return bool(before) and min(last) > (1 - GAIN) * min(before)


def lower(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Multiply every learning rate of an optimiser."""
    for group in optimiser.param_groups:
        group["lr"] *= factor


def train(
    data: FitData,
    net: nn.Module,
    optimiser: torch.optim.Optimizer,
    iterations: int,
    loss_of: Callable[[int], Tensor],
    *,
    clip: float = math.inf,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Train a network, and return how far it came, why it ended and a running mean of its loss.

    `loss_of` gets the number of the iteration, from 0; its random draws must depend on nothing else. Gradients are
    clipped to the norm `clip`. It ends after `iterations`, or where `watch` says so, and then has the best weights.

    Raises:
        StateError: the loss is not finite.
    """
    first, mean = _resume(data, net, optimiser, watch)
    started, done, ended = time.monotonic(), first, "cap"
    while done < iterations:
        if time.monotonic() - started > data.seconds:
            ended = "time"
            break
        loss = loss_of(done)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise StateError(f"the loss is {value} in iteration {done}", "lower the editor's rate with --set")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
        mean = value if done == 0 else SMOOTH * mean + (1 - SMOOTH) * value
        done += 1
        if watch and watch.ended(done, net, optimiser):
            ended = "plateau"
            break
        data.progress(done, iterations, _text(mean, watch))
        data.save(lambda: _state(net, optimiser, done, mean, watch))  # noqa: B023 (called at once)
    if watch and watch.best:
        net.load_state_dict(watch.best)
    facts = {"iterations": done, "of": iterations, "ended": ended, "loss": round(mean, 4)}
    return facts | (watch.facts() if watch else {})


def _text(mean: float, watch: Watch | None) -> str:
    held = f", {watch.curve[-1][1]:.3f} on watched edits" if watch and watch.curve else ""
    return f"loss {mean:.3f}{held}"


def _state(
    net: nn.Module, optimiser: torch.optim.Optimizer, iteration: int, mean: float, watch: Watch | None
) -> dict[str, Tensor]:
    found = {f"net.{name}": value for name, value in net.state_dict().items()}
    for number, values in optimiser.state_dict()["state"].items():
        found |= {f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
    found |= watch.tensors() if watch else {}
    return found | {"iteration": torch.tensor(iteration), "mean": torch.tensor(mean, dtype=torch.float64)}


def _resume(data: FitData, net: nn.Module, optimiser: torch.optim.Optimizer, watch: Watch | None) -> tuple[int, float]:
    """Restore what an interrupted training saved; return its next iteration and its running mean of the loss."""
    saved = data.load()
    if saved is None:
        return 0, 0.0
    net.load_state_dict({name.removeprefix("net."): value for name, value in saved.items() if name.startswith("net.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in saved.items():
        if name.startswith("optimiser."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict(optimiser.state_dict() | {"state": state})
    if watch:
        watch.load(saved, optimiser)
    return int(saved["iteration"]), float(saved["mean"])
