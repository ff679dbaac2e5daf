"""A change of one weight as an analysis reads it: a product of two factors where there is one, else the matrix."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Change:
    """Delta W (d_out, d_in): `left @ right`, or `left` alone where `right` is None."""

    left: Tensor
    """(d_out, rank), or (d_out, d_in) without `right`."""
    right: Tensor | None = None
    """(rank, d_in)."""

    @property
    def shape(self) -> tuple[int, int]:
        """d_out and d_in."""
        return self.left.shape[0], (self.left if self.right is None else self.right).shape[1]

    def dense(self) -> Tensor:
        """Return Delta W (d_out, d_in)."""
        return self.left if self.right is None else self.left @ self.right
