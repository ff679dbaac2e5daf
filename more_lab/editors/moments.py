"""Mean and spread of each coordinate over a stream of rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-7
"""Added to a standard deviation before it divides, as in MEND."""


class Moments(nn.Module):
    """Count, mean and sum of squared deviations of every coordinate over all rows so far.

    In float64: over thousands of rows the sums of squares lose the digits that float32 has. They are buffers, so that
    a saved network continues with them; published code keeps "statistics are there" outside of its checkpoint.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Count further rows (n, width), all at once.

        Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
        """
        if not len(rows):
            return
        rows = rows.double()
        mean, total = rows.mean(dim=0), self.count + len(rows)
        shift = mean - self.mean
        self.squares += (rows - mean).square().sum(dim=0) + shift.square() * (self.count * len(rows) / total)
        self.mean += shift * (len(rows) / total)
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """The standard deviation (width,) with n - 1 in the denominator; zero before the second row."""
        return (self.squares / (self.count - 1).clamp(min=1)).sqrt()

    def normalised(self, rows: Tensor) -> Tensor:
        """Return rows (n, width) with mean 0 and spread 1 per coordinate, in float32.

        A coordinate that never varied gives zeros. Published code divides by epsilon there: a unit that fires for the
        first time at an edit would be multiplied by 10^7, and a single row gives NaN for good.
        """
        std = self.std
        return torch.where(std > 0, (rows.double() - self.mean) / (std + EPSILON), 0.0).float()
