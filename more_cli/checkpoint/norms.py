"""The norm of a weight, from its file."""

from __future__ import annotations

import math

from more_cli.checkpoint.quantised import matrix
from more_cli.checkpoint.reader import Checkpoint

NORM_ROWS = 1024
"""Rows of a weight read at a time."""


def weight_norm(checkpoint: Checkpoint, key: str) -> float:
    """Return |W|_F of a weight by the key of its tensor; a quantised weight counts as its matrix."""
    import torch

    def squared(rows: torch.Tensor) -> float:
        return float(torch.linalg.vector_norm(rows.float(), dtype=torch.float64)) ** 2

    if key in checkpoint.packed:
        return math.sqrt(squared(matrix(checkpoint, checkpoint.packed[key])))
    entry, square = checkpoint.tensors[key], 0.0
    for first in range(0, entry.shape[0], NORM_ROWS):
        square += squared(checkpoint.read_rows(entry, first, min(first + NORM_ROWS, entry.shape[0])))
    return math.sqrt(square)
