"""One training loop for what editors learn before their first edit; a killed one continues to the same bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from more_cli.editors.base import FitData
from more_cli.errors import StateError

SMOOTH = 0.98
"""Weight of the earlier losses in the reported one."""


def train(
    data: FitData,
    net: nn.Module,
    optimiser: torch.optim.Optimizer,
    iterations: int,
    loss_of: Callable[[int], Tensor],
    *,
    clip: float = math.inf,
) -> dict[str, Any]:
    """Train a network, and return how far it came and a running mean of its loss.

    `loss_of` gets the number of the iteration, from 0; its random draws must depend on nothing else. Gradients are
    clipped to the norm `clip`.

    Raises:
        StateError: the loss is not finite.
    """
    first, mean = _resume(data, net, optimiser)
    started, done = time.monotonic(), iterations
    for iteration in range(first, iterations):
        if time.monotonic() - started > data.seconds:
            done = iteration
            break
        loss = loss_of(iteration)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise StateError(f"the loss is {value} in iteration {iteration}", "lower the editor's rate with --set")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
        mean = value if iteration == 0 else SMOOTH * mean + (1 - SMOOTH) * value
        data.progress(iteration + 1, iterations, f"loss {mean:.3f}")
        data.save(lambda: _state(net, optimiser, iteration + 1, mean))  # noqa: B023 (called at once)
    return {"iterations": done, "of": iterations, "loss": round(mean, 4)}


def _state(net: nn.Module, optimiser: torch.optim.Optimizer, iteration: int, mean: float) -> dict[str, Tensor]:
    found = {f"net.{name}": value for name, value in net.state_dict().items()}
    for number, values in optimiser.state_dict()["state"].items():
        found |= {f"optimiser.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
    return found | {"iteration": torch.tensor(iteration), "mean": torch.tensor(mean, dtype=torch.float64)}


def _resume(data: FitData, net: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[int, float]:
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
    return int(saved["iteration"]), float(saved["mean"])
