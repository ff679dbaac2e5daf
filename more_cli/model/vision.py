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

    `calls` counts the images the tower really saw.
    """

    def __init__(self, tower: nn.Module, capacity: int = 64) -> None:
        self.tower = tower
        self.capacity = capacity
        self.calls = 0
        self._outputs: OrderedDict[str, Any] = OrderedDict()

    @contextmanager
    def serving(self, images: Sequence[str]) -> Iterator[None]:
        """Answer the tower's next call, which must be for these images in this order, from the cache."""
        original, found = self.tower.forward, self.tower.__dict__.get("forward")

        def forward(pixel_values: Tensor, *args: Any, **kwargs: Any) -> Any:
            if len(pixel_values) != len(images):
                # Several tiles per image, or a layout this cache does not know: run as found.
                return original(pixel_values, *args, **kwargs)
            outputs = [
                self._output(key, lambda row=row: original(pixel_values[row : row + 1], *args, **kwargs))
                for row, key in enumerate(images)
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
            output = compute()
        self.calls += 1
        self._outputs[key] = output
        while len(self._outputs) > self.capacity:
            self._outputs.popitem(last=False)
        return output


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
