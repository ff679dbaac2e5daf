"""Equations of the paper as they are printed, which the tool computes in another way."""

from __future__ import annotations

import torch
from torch import Tensor

from more_cli.core.recursion import Normalisation


def closed_form(Z: Tensor, ridge: float, normalisation: Normalisation) -> Tensor:
    """Return the P that the recursion must have reached after the keys Z (n, r), by one inversion (r, r)."""
    identity = torch.eye(Z.shape[1], dtype=torch.float64, device=Z.device)
    S = Z.double().T @ Z.double()
    if normalisation == "unit":
        return torch.inverse(identity + S / ridge)
    return torch.inverse((1.0 + ridge) * identity + S)
