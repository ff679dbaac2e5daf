"""A basis from data: the principal directions of what the sites read of the anchors (the paper's "data-driven" A)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from more_cli.core import basis
from more_cli.editors.anchors import Anchor
from more_cli.editors.more.site import rebuild_basis
from more_cli.editors.more.sites import Sites
from more_cli.model.runtime import Runtime
from more_cli.model.taps import inputs_of

TOKENS = 32
"""Most tokens of an anchor at one site, evenly spaced: an image has hundreds that are alike."""


def principal_bases(runtime: Runtime, sites: Sites, anchors: Sequence[Anchor]) -> dict[str, Tensor]:
    """Return A (r, d_in) float32 of every site by name, from the base's inputs at the tokens that its keys come from.

    A site that no anchor reaches keeps the basis that was drawn.
    """
    inputs: dict[str, list[Tensor]] = {site.record.name: [] for site in sites}
    with runtime.base(), inputs_of(runtime.model, [site.branch.module for site in sites]) as read:
        for anchor in anchors:
            read.clear()
            batch = runtime.batch([anchor.encoded])
            runtime.score(batch)
            for site in sites:
                if site.branch.module in read:
                    relevant = batch.answer if sites.by_mask(site) else None
                    inputs[site.record.name].append(_spaced(read[site.branch.module], relevant))
    drawn = {site.record.name: rebuild_basis(site.record, "pca") for site in sites}
    return {name: basis.principal(torch.cat(seen), A) if (seen := inputs[name]) else A for name, A in drawn.items()}


def _spaced(x: Tensor, relevant: Tensor | None) -> Tensor:
    rows = x if relevant is None else x[relevant.reshape(-1).to(x.device)]
    places = torch.linspace(0, len(rows) - 1, min(len(rows), TOKENS)).round().long()
    return rows[places.to(rows.device)].float().cpu()
