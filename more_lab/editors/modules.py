"""Modules that several editors write to or train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from more_cli.model.families import Backbone


def ffn_outs(model: nn.Module, backbone: Backbone, layers: Sequence[str]) -> list[str]:
    """Return the paths of the Linears that end the feed-forward parts of these text layers, in order."""
    names = {name for name, _ in model.named_modules()}
    return [path for layer in layers for leaf in backbone.text_ffn_out if (path := f"{layer}.{leaf}") in names]


def own_parameters(model: nn.Module, roots: Iterable[str]) -> list[str]:
    """Return the paths, at or below `roots`, of the outermost modules that hold parameters themselves."""
    inside = ((name, module) for root in roots for name, module in model.get_submodule(root).named_modules(prefix=root))
    found = [name for name, module in inside if list(module.parameters(recurse=False))]
    return [name for name in found if not any(name.startswith(f"{outer}.") for outer in found)]
