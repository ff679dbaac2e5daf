"""Memory that one pass holds, computed from a model's modules, and how passes are split to bound it.

Parts depend on the model, its sites and the samples, never on free memory: the same edits give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from more_cli.model.branches import computes_in
from more_cli.model.structure import find_backbone, text_layers

BATCH = 32
"""Samples sent through the model together, at most."""
PART = 4 << 30
"""Bytes of activations that one pass may hold, where it has more than one sample."""
FLOAT = 4
"""Bytes of a float32, in which norms run."""

Pass = Literal["forward", "backward", "answer"]
"""Scoring; scoring followed by a backward pass; generating an answer."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Activations:
    """Bytes per token of a pass, padding included."""

    moment: int
    """Held while one layer runs."""
    kept: int
    """Kept until a backward pass has used it: the layers from the lowest site on."""
    answered: int
    """Keys and values of every layer, kept while an answer is generated."""

    @staticmethod
    def of(model: Any, modules: Iterable[str]) -> Activations:
        """Compute it from a model, on the meta device or loaded, with sites at these modules."""
        # Not the weights' own dtype: an offloaded weight has none, and some models keep single tensors in float32.
        size = model.dtype.itemsize
        layers = text_layers(model, find_backbone(model))
        sites = list(modules)
        within = [n for n, layer in enumerate(layers) for site in sites if site.startswith(f"{layer}.")]
        # A visual site lies before the first layer, so all of them are differentiated.
        lowest = 0 if len(within) < len(sites) else min(within, default=len(layers))
        layer = [_layer(model.get_submodule(path), size) for path in layers]
        moment = max(layer) + max((_branch(model.get_submodule(site), model.dtype) for site in sites), default=0)
        config = model.config.get_text_config(decoder=True)
        return Activations(moment, sum(layer[lowest:]), 2 * size * config.hidden_size * len(layers))

    def bytes(self, tokens: int, kind: Pass) -> int:
        """Return what a pass of so many tokens holds."""
        return tokens * (self.moment + {"forward": 0, "backward": self.kept, "answer": self.answered}[kind])

    def parts(self, items: Iterable[Item], kind: Pass, length: Callable[[Item], int]) -> Iterator[list[Item]]:
        """Split items, in order, into passes within the bounds; a single item always fits, at any length."""
        part: list[Item] = []
        longest = 0
        for item in items:
            longest = max(longest, length(item))
            if part and (len(part) == BATCH or self.bytes((len(part) + 1) * longest, kind) > PART):
                yield part
                part, longest = [], length(item)
            part.append(item)
        if part:
            yield part


def _layer(layer: nn.Module, size: int) -> int:
    """Return the bytes per token that a text layer keeps for its backward pass."""
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    if not linears:
        return 0
    # The output of every Linear, that of the activation function, and the inputs of two norms in float32.
    outputs = sum(linear.out_features for linear in linears) + max(linear.out_features for linear in linears)
    return size * outputs + 2 * FLOAT * linears[0].in_features


def _branch(site: nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes per token that a site's branch needs beside it: input, output, update and their sum."""
    if isinstance(site, nn.Linear):  # a quantised weight has another shape and dtype than the matrix it stands for
        d_out, d_in, dtype = site.out_features, site.in_features, _floating(site.weight.dtype, dtype)
    else:
        weight = next(site.parameters())
        d_out, d_in, dtype = weight.shape[0], weight.shape[-1], _floating(weight.dtype, dtype)
    return computes_in(dtype).itemsize * (d_in + 3 * d_out)


def _floating(dtype: torch.dtype, otherwise: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else otherwise
