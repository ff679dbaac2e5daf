"""The adapter of VisEdit and DualEdit: tokens of a question look at the tokens of the edit, and take from them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Adapter(nn.Module):
    """h + m(h) O attention(Q h, K s, V s), for hidden states h of a question and s of an edit at one layer.

    m, the influence mapper, is between 0 and 1 for each token: how much it has to say. O is zero at first, so that an
    adapter that was not trained changes nothing. Source: Chen et al. 2025 (VisEdit), section 4.
    """

    def __init__(self, hidden: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.Q, self.K, self.V = (nn.Linear(hidden, width) for _ in range(3))
        self.O = nn.Linear(width, hidden)
        nn.init.zeros_(self.O.weight)
        nn.init.zeros_(self.O.bias)
        self.influence = nn.Sequential(nn.Linear(hidden, width), nn.ReLU(), nn.Linear(width, 1), nn.Sigmoid())

    def forward(self, tokens: Tensor, signal: Tensor) -> Tensor:
        """Return what is added to tokens (T, hidden), from an edit's signal (S, hidden)."""
        size = tokens.detach().square().mean().sqrt()  # hidden states of other models have other sizes
        h, s = tokens / size, signal / signal.square().mean().sqrt()
        q, k, v = (
            part(rows).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for part, rows in ((self.Q, h), (self.K, s), (self.V, s))
        )
        taken = scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        added: Tensor = self.influence(h) * self.O(taken) * size
        return added
