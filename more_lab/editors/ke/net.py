"""KE's network: it reads a request and says how the gradient of each weight is gated.

De Cao et al., "Editing Factual Knowledge in Language Models" (EMNLP 2021), section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from more_lab.editors.mend.net import Shape


class Gates(nn.Module):
    """The vectors of one weight, made of the condition h.

    sigma(eta) (softmax(a) c^T * G + softmax(b) e^T), with a and b over the outputs, c and e over the inputs, and the
    softmax times its length. Departure: all last layers are zero at first and c begins at one, so the first update is
    the gradient, not noise.
    """

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        outputs, inputs = shape
        self.sizes = (outputs, inputs, outputs, inputs, 1)
        self.made = nn.Linear(width, sum(self.sizes))
        nn.init.zeros_(self.made.weight)
        nn.init.zeros_(self.made.bias)

    def forward(self, h: Tensor, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return the gated gradient (d_out, d_in), from h (width,), rows u (n, d_in) and delta (n, d_out)."""
        a, c, b, e, eta = self.made(h).split(self.sizes)
        gate, bias = torch.softmax(a, 0) * len(a), torch.softmax(b, 0) * len(b)
        # (a c^T) * (delta^T u) = (delta * a)^T (u * c): the gradient itself is never gated entry by entry.
        G = (gradients * gate).T @ (inputs * (1 + c)) / _norm(inputs, gradients)
        gated: Tensor = 2 * torch.sigmoid(eta) * (G + torch.outer(bias, e))
        return gated


class KeNet(nn.Module):
    """A bidirectional LSTM over a request's hidden states, and gates for each weight.

    An update is alpha times the norm of the weight times its gated gradient, which has norm one at first: KE's own
    scale is absolute and belongs to one model.
    """

    def __init__(self, shapes: Sequence[Shape], norms: Sequence[float], hidden: int, width: int, alpha: float) -> None:
        super().__init__()
        self.register_buffer("norms", torch.tensor(norms))
        self.nets = nn.ModuleDict({"reader": nn.LSTM(hidden, width, batch_first=True, bidirectional=True)})
        self.nets["between"] = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh())
        self.nets["gates"] = nn.ModuleList(Gates(shape, width) for shape in shapes)
        self.alpha = nn.Parameter(torch.full((len(shapes),), alpha))

    def condition(self, rows: Tensor) -> Tensor:
        """Return h (width,) of a request's hidden states (T, hidden)."""
        _, (last, _) = self.nets["reader"](rows[None])
        h: Tensor = self.nets["between"](last[:, 0].flatten())
        return h

    def update(self, place: int, h: Tensor, inputs: Tensor, gradients: Tensor) -> Tensor:
        """Return the update of a weight, (d_out, d_in) float32."""
        gates = self.nets["gates"]
        assert isinstance(gates, nn.ModuleList)
        assert isinstance(self.norms, Tensor)
        changed: Tensor = self.alpha[place] * self.norms[place] * gates[place](h, inputs, gradients)
        return changed


def _norm(inputs: Tensor, gradients: Tensor) -> Tensor:
    """Return the norm of delta^T u, (); it is above zero."""
    squared = ((inputs @ inputs.T) * (gradients @ gradients.T)).sum()
    return squared.clamp_min(1e-30).sqrt()
