"""The vision tower, run once per image: its output is kept and handed out again.

Features are always computed for one image at a time, so a warm cache changes no bit: the same image gives the
same features whatever else is in the batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class VisionCache:
    """Outputs of a frozen vision tower by image hash, the least recently used dropped first.

    `calls` counts the images the tower really saw; `capacity` is in bytes. Of the hidden states of its layers only
    those in `layers` are kept, all when none are named: a tower of 24 layers would fill the cache with the rest.
    """

    def __init__(self, tower: nn.Module, layers: Sequence[int] = (), capacity: int = 1 << 30) -> None:
        self.tower = tower
        self.layers = layers
        self.capacity = capacity
        self.calls = 0
        self._outputs: OrderedDict[str, Any] = OrderedDict()
        self._bytes = 0

    @contextmanager
    def serving(self, images: Sequence[str], tiles: Sequence[int]) -> Iterator[None]:
        """Answer the tower's next call, which must be for these images in this order, from the cache.

        `tiles` says of how many pictures each image consists there.
        """
        original, found = self.tower.forward, self.tower.__dict__.get("forward")

        def forward(pixel_values: Tensor, *args: Any, **kwargs: Any) -> Any:
            if len(pixel_values) != sum(tiles):  # a layout this cache does not know: run as found
                return original(pixel_values, *args, **kwargs)
            outputs = [
                self._output(key, lambda part=part: original(part, *args, **kwargs))
                for key, part in zip(images, torch.split(pixel_values, list(tiles)), strict=True)
            ]
            return _joined(outputs)

        self.tower.forward = forward
        try:
            yield
        finally:
            del self.tower.forward
            if found is not None:
                self.tower.forward = found

    def _output(self, key: str, compute: Any) -> Any:
        if key in self._outputs:
            self._outputs.move_to_end(key)
            return self._outputs[key]
        with torch.no_grad():
            output = self._pruned(compute())
        self.calls += 1
        self._outputs[key] = output
        self._bytes += _size(output)
        while self._bytes > self.capacity and len(self._outputs) > 1:
            self._bytes -= _size(self._outputs.popitem(last=False)[1])
        return output

    def _pruned(self, output: Any) -> Any:
        states = output.get("hidden_states") if isinstance(output, Mapping) else None
        if states is None or not self.layers:
            return output
        used = {layer % len(states) for layer in self.layers}
        kept = tuple(state if layer in used else None for layer, state in enumerate(states))
        return type(output)(**(dict(output) | {"hidden_states": kept}))


def _joined(outputs: Sequence[Any]) -> Any:
    """Concatenate tower outputs along the batch, through tuples and model outputs; what is absent stays so."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(list(outputs)) if len(outputs) > 1 else first
    if isinstance(first, Mapping):
        return type(first)(**{name: _joined([output[name] for output in outputs]) for name in first})
    if isinstance(first, tuple | list):
        return type(first)(_joined(parts) for parts in zip(*outputs, strict=True))
    return first


def _size(output: Any) -> int:
    """Return the bytes that a tower's output holds."""
    if isinstance(output, Tensor):
        return output.numel() * output.element_size()
    if isinstance(output, Mapping):
        return sum(map(_size, output.values()))
    return sum(map(_size, output)) if isinstance(output, tuple | list) else 0
