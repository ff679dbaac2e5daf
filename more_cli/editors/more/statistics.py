"""Which keys the P of a site absorbs: its own (the paper), or those of every site of its modality, or of every site.

The paper argues against sharing and leaves open how sites of different rank would share. Here S = sum z z^T is summed
in as many coordinates as the largest rank, and shorter keys end with zeros. A site of rank r uses the leading block of
S: its write minimises Eq. proj-obj over the r coordinates that it has, which gives P = (I + S_rr / lambda)^-1. That is
the P of a site that absorbs every key cut or filled to r. So each site keeps a P of its own size, and sites of one rank
keep the same. lambda is one number too: a relative one follows the mean |z|^2 of all these keys, so that long keys
count for more, as they do in one sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from more_cli.recipe.tables import Statistics
from more_cli.store.state import SiteRecord


def heard_by(records: Sequence[SiteRecord], statistics: Statistics) -> dict[str, tuple[str, ...]]:
    """Return, by name of a site, the names of the sites whose keys its P absorbs."""
    owner = {
        record.name: {"site": record.name, "modality": record.modality, "shared": ""}[statistics] for record in records
    }
    return {name: tuple(other for other in owner if owner[other] == owner[name]) for name in owner}


def stacked(keys: Sequence[Tensor]) -> Tensor:
    """Return keys (r,) or (n, r) of one or several sites as rows (n, R), with zeros behind the shorter ones."""
    width = max(key.shape[-1] for key in keys)
    rows = [fitted(key.reshape(-1, key.shape[-1]).to(keys[0].device), width) for key in keys]
    return rows[0] if len(rows) == 1 else torch.cat([row.double() for row in rows])


def fitted(key: Tensor, rank: int) -> Tensor:
    """Return keys (n, R) cut or filled with zeros to (n, rank)."""
    return key if key.shape[-1] == rank else pad(key, (0, rank - key.shape[-1]))
