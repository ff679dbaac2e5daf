"""WISE's side memories: copies of one weight that are edited, kept as what they differ by, and merged by TIES.

Wang et al., "WISE: Rethinking the Knowledge Memory for Lifelong Model Editing of Large Language Models" (2024), with
TIES-merging by Yadav et al. (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from more_cli.editors.draws import noise


@dataclass
class SideMemory:
    """One edited copy W' of a weight W."""

    delta: Tensor
    """W' - W, (d_out, d_in) float32."""
    least: float = math.inf
    """Smallest distance of an edit's own prompt, right after that edit; infinite before the first one."""

    def distance(self, inputs: Tensor) -> Tensor:
        """Return D of a prompt from its inputs a (T, d_in): the mean over its tokens of |W'a - Wa|, a scalar.

        The bias is on both sides and cancels, so that D is exactly zero before an edit. The published code leaves the
        bias out on one side, and applies an activation function to both although none follows an FFN's output.
        """
        found: Tensor = torch.linalg.vector_norm(inputs @ self.delta.T, dim=-1).mean()
        return found


def choose(memories: Sequence[SideMemory], inputs: Tensor, ratio: float) -> int | None:
    """Return the memory with the largest distance among those that reach `ratio` of their own least; None if none does.

    Prompts of every length are compared by the mean over their tokens, the statistic that `least` was recorded with;
    the published code takes the largest token's distance for prompts of more than 100 tokens.
    """
    distances = [float(memory.distance(inputs.to(memory.delta.device))) for memory in memories]
    passing = [n for n, memory in enumerate(memories) if distances[n] >= ratio * memory.least]
    return max(passing, key=distances.__getitem__, default=None)


def block_mask(shape: tuple[int, ...], share: float, seed: int, block: int) -> Tensor:
    """Return a random bool mask over a weight, true at about `share` of its entries; the same for a whole block."""
    drawn = torch.from_numpy(noise((seed, block), math.prod(shape)))
    return (drawn < share).reshape(shape)


def ties(deltas: Sequence[Tensor], density: float) -> Tensor:
    """Merge differences from one weight: trim each, elect a sign per entry, average what has this sign.

    TIES-merging with weight 1: of each delta the `density` largest magnitudes stay; the sign of an entry is that of
    their sum; where it is zero, so is the result.
    """
    trimmed = torch.stack([_trim(delta, density) for delta in deltas])
    sign = trimmed.sum(dim=0).sign()
    agreeing = (trimmed.sign() == sign) & (sign != 0)
    return (trimmed * agreeing).sum(dim=0) / agreeing.sum(dim=0).clamp(min=1)


def _trim(delta: Tensor, density: float) -> Tensor:
    kept = delta.abs().flatten().topk(max(1, round(density * delta.numel()))).indices
    trimmed = torch.zeros_like(delta).flatten()
    trimmed[kept] = delta.flatten()[kept]
    return trimmed.reshape(delta.shape)


def merged(memories: Sequence[SideMemory], density: float) -> SideMemory:
    """Return one memory for several; its least distance is the smallest of theirs, as published."""
    return SideMemory(ties([memory.delta for memory in memories], density), min(memory.least for memory in memories))
