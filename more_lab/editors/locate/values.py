"""What a layer should put out for an edit: the sum of its output and a delta that gradient descent finds.

Source: Meng et al. 2023 (MEMIT), section 4.3, with the constants of AlphaEdit's published code, except where a line
says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.model.taps import Rows, Tap
from more_cli.recipe.tables import Table
from more_lab.editors.work import Work


class ValueTuning(Table):
    """The numbers of the search for a value."""

    steps: int = Field(default=25, ge=1)
    """Steps of Adam for one correction, at most."""
    rate: float = Field(default=0.5, gt=0)
    """Learning rate, in root mean squares of the output it is added to: the published rates (0.1, 0.5) are absolute and
    belong to models of one scale."""
    stop: float = Field(default=0.05, ge=0)
    """Loss in nats per token; below it the search ends."""
    decay: float = Field(default=0.5, ge=0)
    """Weight of |delta| / |h|^2 in the loss."""
    kl: float = Field(default=0.0625, ge=0)
    """Weight, in the loss, of the divergence on neutral questions."""
    clamp: float = Field(default=0.75, gt=0)
    """Largest |delta|, in units of the norm |h| of the output that it is added to."""


@dataclass(frozen=True)
class Value:
    """What a module should put out."""

    delta: Tensor
    """(T, d) float32, to be added to its outputs."""
    loss: float
    """The last one, in nats."""
    steps: int


class _Shift:
    """Adds a delta to some positions of a module's output."""

    def __init__(self, where: Tensor) -> None:
        self.where = where
        """(N, T) bool."""
        self.delta: Tensor | None = None
        """(number of these positions, d); None adds nothing."""
        self.seen = torch.zeros(0)
        """What the module itself put out there in the last pass, in float32."""

    def __call__(self, hidden: Tensor, rows: Rows) -> Tensor:
        # OPT's feed-forward part takes all tokens of a batch in one dimension.
        where = self.where.to(hidden.device).reshape(hidden.shape[:-1])
        self.seen = hidden.detach()[where].float()
        if self.delta is None:
            return hidden
        added = torch.zeros_like(hidden, dtype=torch.float32)
        added[where] = self.delta.to(hidden.device)
        return (hidden.float() + added).to(hidden.dtype)


def find_value(
    runtime: Runtime,
    module: str,
    asked: Sequence[Encoded],
    neutral: Sequence[Encoded],
    tuning: ValueTuning,
    work: Work,
    *,
    last_prompt: bool,
    avoided: Tensor | None = None,
) -> Value:
    """Find the delta on a module's output with which the model answers an edit, and neutral questions as before.

    `asked` is the edit, first as it is and then behind other texts; its positions of all these share one delta each.
    The positions are those that predict the target or, with `last_prompt`, the last one of the prompt alone. `neutral`
    questions, each with one token behind it, get the first delta at the same place, the last of their prompt; without a
    subject in the data, no other place corresponds to it. There the divergence of the next token is counted.

    `avoided` are orthonormal directions (d, n) that no delta has a part in.
    """
    batch = runtime.batch([*asked, *neutral])
    where = batch.answer if not last_prompt else _first_of_row(batch.answer)
    shift, count = _Shift(where), int(where[0].sum())
    samples, device = len(batch), batch.targets.device
    with _inserted(runtime, Tap(module, shift)):
        reference = _neutral(runtime.score(batch), len(asked))
        work.forward(samples)
        norms = shift.seen[:count].to(device).norm(dim=1)
        delta = torch.zeros(count, shift.seen.shape[1], device=device, requires_grad=True)
        scale = float(norms.mean()) / math.sqrt(delta.shape[1])
        V = None if avoided is None else avoided.to(delta)
        optimiser, loss, steps = torch.optim.Adam([delta], lr=tuning.rate * scale), 0.0, 0
        while steps < tuning.steps:
            shift.delta = torch.cat([delta] * len(asked) + [delta[:1]] * len(neutral))
            scored = runtime.score(batch, record=True)
            objective = scored[: len(asked)].nll().mean() + tuning.decay * (_norms(delta) / norms**2).mean()
            if neutral:
                after = _neutral(scored, len(asked))
                objective = objective + tuning.kl * (after.exp() * (after - reference)).sum(-1).mean()
            loss = float(objective.detach())
            # Unlike in the published code, the last step counts: its result is used.
            if loss < tuning.stop or not math.isfinite(loss):
                work.forward(samples)
                break
            optimiser.zero_grad(set_to_none=True)
            runtime.backward(objective)
            work.both(samples)
            assert delta.grad is not None
            delta.grad /= runtime.loss_scale
            optimiser.step()
            steps += 1
            with torch.no_grad():
                if V is not None:
                    delta -= delta @ V @ V.T
                delta *= (tuning.clamp * norms / delta.norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)[:, None]
    return Value(delta.detach(), loss, steps)


def _neutral(scored: Scored, first: int) -> Tensor:
    """Return the log-probabilities of the next token after the neutral questions, (n, vocabulary)."""
    return scored[first:].log_probabilities()[:, -1]


def _norms(delta: Tensor) -> Tensor:
    """Return the norm of each row; its gradient at 0 is 0."""
    return (delta.square().sum(dim=1) + 1e-24).sqrt()


def _first_of_row(mask: Tensor) -> Tensor:
    return mask & (mask.cumsum(dim=1) == 1)


@contextmanager
def _inserted(runtime: Runtime, tap: Tap) -> Iterator[None]:
    """Put a tap into the model, behind what the editor itself put there."""
    remove = tap.insert(runtime.model)
    try:
        yield
    finally:
        remove()
