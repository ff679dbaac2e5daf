"""Layers that are watched, and layers that are answered for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def keep_output(outputs: list[Any], module: nn.Module, args: Any, output: Any) -> None:
    """Keep what a module puts out: a forward hook, with its list given before."""
    outputs.append(output)


@contextmanager
def answered_for(layer: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Run this in place of a layer."""
    before = layer.__dict__.get("forward")
    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward
        if before is not None:
            layer.forward = before
