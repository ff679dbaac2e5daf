"""A training loop that can be stopped and resumed at any time: every batch depends only on its step number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

SAVE_EVERY = 200  # steps
REPORT_EVERY = 25  # steps


@dataclass(frozen=True)
class Schedule:
    """Linear warmup, then half a cosine down to a hundredth of `peak` at step `horizon`."""

    steps: int
    peak: float
    warmup: int = 150
    horizon: int = 0
    """Step at which the cosine ends; 0 means `steps`."""

    def rate(self, step: int) -> float:
        """The learning rate of this step."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, (self.horizon or self.steps) - self.warmup)
        return self.peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def fit(
    stage: str,
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    schedule: Schedule,
    folder: Path,
    check: Callable[[int], str] | None = None,
    check_every: int = 500,
) -> None:
    """Trains `model` in place with AdamW; resumes from `folder/<stage>.pt` if that file exists."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=schedule.peak, betas=(0.9, 0.98), fused=True)
    start = _resume(folder / f"{stage}.pt", model, optimizer, schedule.steps)
    began, smooth = time.monotonic(), math.nan
    for step in range(start, schedule.steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss = loss_of(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(decayed + others, 1.0)
        optimizer.step()
        smooth = loss.item() if math.isnan(smooth) else 0.95 * smooth + 0.05 * loss.item()
        if (step + 1) % REPORT_EVERY == 0:
            pace = (time.monotonic() - began) / (step + 1 - start)
            left = pace * (schedule.steps - step - 1) / 60
            print(
                f"{stage} {step + 1}/{schedule.steps} loss {smooth:.4f} {pace:.3f} s/step, {left:.1f} min left",
                flush=True,
            )
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == schedule.steps:
            _save(folder / f"{stage}.pt", model, optimizer, step + 1)
        if check is not None and ((step + 1) % check_every == 0 or step + 1 == schedule.steps):
            print(check(step + 1), flush=True)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
    part.replace(path)


def _resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> int:
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(saved["model"])
    if int(saved["step"]) < steps:  # a finished stage needs only its weights
        optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])
