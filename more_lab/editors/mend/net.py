"""MEND's networks: they turn the factors of a fine-tuning gradient into those of a better update.

Mitchell et al., "Fast Model Editing at Scale" (ICLR 2022), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from more_lab.editors.moments import Moments

Shape = tuple[int, int]
"""(d_out, d_in) of a weight."""
BLOCKS = 2
SHARE = 8
"""Coordinates for each rank of U V, where no rank is given."""


class Block(nn.Module):
    """z + max(0, s * (U V z + b) + t), with s and t of their own for each weight.

    The identity at first: U, b and t are zero.
    """

    def __init__(self, width: int, rank: int, weights: int) -> None:
        super().__init__()
        self.U = nn.Parameter(torch.zeros(width, rank))
        self.V = nn.Parameter(torch.randn(rank, width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.ones(weights, width))
        self.shift = nn.Parameter(torch.zeros(weights, width))

    def forward(self, z: Tensor, weight: int) -> Tensor:
        """Return the changed rows (n, width)."""
        inner = self.scale[weight] * (z @ self.V.T @ self.U.T + self.bias) + self.shift[weight]
        # Not relu: at first all of `inner` is zero, where relu has no gradient and clamp has.
        return z + inner.clamp(min=0)


class FactorNet(nn.Module):
    """The network of all edited weights of one shape, with the statistics of their factors."""

    def __init__(self, shape: Shape, rank: int, weights: int) -> None:
        super().__init__()
        width = sum(shape)
        self.inputs, self.gradients = Moments(shape[1]), Moments(shape[0])
        rank = min(rank, width) or max(1, width // SHARE)
        self.blocks = nn.ModuleList(Block(width, rank, weights) for _ in range(BLOCKS))

    def forward(self, inputs: Tensor, gradients: Tensor, weight: int) -> tuple[Tensor, Tensor]:
        """Return the factors (n, d_in) and (n, d_out) that follow from u (n, d_in) and delta (n, d_out)."""
        u, delta = self.inputs.normalised(inputs), self.gradients.normalised(gradients)
        z = torch.cat([u, delta], dim=1)
        for block in self.blocks:
            z = block(z, weight)
        return z[:, : u.shape[1]], z[:, u.shape[1] :]


class MendNet(nn.Module):
    """A network per shape, and alpha per weight.

    There is no minus sign in alpha times the sum: with alpha > 0, as at first, the update ascends the loss of the
    edit, as in the published code. Training finds the sign.
    """

    def __init__(self, shapes: Sequence[Shape], rank: int, alpha: float) -> None:
        super().__init__()
        self.shapes = list(shapes)
        self.nets = nn.ModuleDict(
            {_name(shape): FactorNet(shape, rank, self.shapes.count(shape)) for shape in dict.fromkeys(shapes)}
        )
        self.alpha = nn.Parameter(torch.full((len(self.shapes),), alpha))

    def watch(self, place: int, inputs: Tensor, gradients: Tensor) -> None:
        """Count the factors of a weight in the statistics of its shape."""
        net = self._net(place)
        net.inputs.add(inputs)
        net.gradients.add(gradients)

    def update(self, place: int, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return alpha times the sum over token rows of the new factors' products, (d_out, d_in) float32."""
        before = self.shapes[:place].count(self.shapes[place])
        u, delta = self._net(place)(inputs, gradients, before)
        changed: Tensor = self.alpha[place] * (delta.T @ u)
        return changed

    def _net(self, place: int) -> FactorNet:
        net = self.nets[_name(self.shapes[place])]
        assert isinstance(net, FactorNet)
        return net


def _name(shape: Shape) -> str:
    return "x".join(map(str, shape))
