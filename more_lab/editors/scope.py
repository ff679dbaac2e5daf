"""ScopeEdit's gate: how much of a correction is written for more than the text it came with.

Letters are those of ScopeEdit (arXiv 2607.01978): u = A_s k_T and o = A_s k_V are one module's coordinates in the
shared basis of the mean input at the target's positions and at the image's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NOTHING = 1e-6
"""Length of u or o below which text or image has no part in the shared basis."""


@dataclass(frozen=True)
class Gate:
    """An open gate."""

    text: float
    """gamma_T, the factor on the shared step of a text module, in (0, 1)."""
    key: Tensor
    """q (r_s,), of unit length: what the shared P absorbs."""


def gate(u: Tensor, o: Tensor, tau: float, beta: float) -> Gate | None:
    """Return the gate for u and o, (r_s,) each; None where it is closed, as without an image.

    gamma = sigmoid(beta (cos - tau)) min(|u|, |o|) / max(|u|, |o|), of which text and image get shares in proportion to
    the length of the other: gamma_T = gamma |o| / (|u| + |o|), gamma_V = gamma |u| / (|u| + |o|).
    """
    u, o = u.double(), o.double()  # as the keys of P, which q is one of
    lengths = float(u.norm()), float(o.norm())
    if min(lengths) < NOTHING:
        return None
    cosine = u @ o / (lengths[0] * lengths[1])
    gamma = float(torch.sigmoid(beta * (cosine - tau))) * min(lengths) / max(lengths)
    text, image = (gamma * length / sum(lengths) for length in reversed(lengths))
    return Gate(text, torch.nn.functional.normalize(image * u + text * o, dim=0))
