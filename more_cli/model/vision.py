"""The vision tower, run once per image: the outputs of its frozen layers are kept and handed out again.

Features are computed for one question's images at a time, so a warm cache changes no bit: the same images give the
same features whatever else is in the batch. What is kept lies between layers rather than behind the tower: towers
differ in what they make of their layers, the layers of all of them map hidden states to hidden states. So the
mergers that some towers hold, and layers that are edited themselves, run as always.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from more_cli.clock import timed

Key = tuple[str, ...]
"""Hashes of the images of one question."""


class VisionCache:
    """Outputs of frozen vision layers by the images they were computed for, the least recently used dropped first.

    `frozen` are the layers from the first one on that no branch changes; of their outputs those in `kept` are kept,
    the others are not computed. `text` is the first text layer: before it an image has been seen. `calls` counts how
    often the tower really ran; `capacity` is in bytes.
    """

    def __init__(
        self,
        model: nn.Module,
        frozen: Sequence[str],
        kept: Collection[str],
        text: str,
        capacity: int = 1 << 30,
    ) -> None:
        self.layers = [model.get_submodule(path) for path in frozen]
        self.kept = [index for index, path in enumerate(frozen) if path in kept]
        self.text = model.get_submodule(text)
        self.capacity = capacity
        self.calls = 0
        self._outputs: OrderedDict[Key, dict[int, Any] | None] = OrderedDict()
        self._bytes = 0

    @contextmanager
    def serving(self, keys: Sequence[Key], look: Callable[[int], object]) -> Iterator[None]:
        """Answer the frozen layers' next calls, which must be for these images in this order, from the cache.

        `look` sends the images of one key, by its place, through the model.
        """
        found = [self._found(key, partial(look, place)) for place, key in enumerate(keys)]
        if not keys or None in found:
            yield
            return
        served = _Served(self.kept, [outputs for outputs in found if outputs is not None])
        with ExitStack() as undo:
            for index, layer in enumerate(self.layers):
                undo.enter_context(answered_for(layer, served.layer(index, layer.forward)))
            yield

    def _found(self, key: Key, look: Callable[[], object]) -> dict[int, Any] | None:
        if key in self._outputs:
            self._outputs.move_to_end(key)
            return self._outputs[key]
        outputs = self._watch(look)
        self.calls += 1
        self._outputs[key] = outputs
        self._bytes += _size(outputs)
        while self._bytes > self.capacity and len(self._outputs) > 1:
            self._bytes -= _size(self._outputs.popitem(last=False)[1])
        return outputs

    @timed("vision")
    def _watch(self, look: Callable[[], object]) -> dict[int, Any] | None:
        """Return what the kept layers put out until the text begins; None where one ran more or less than once."""
        outputs: dict[int, list[Any]] = {index: [] for index in self.kept}

        def stop(*_: object) -> None:
            raise _Seen

        with ExitStack() as undo:
            undo.callback(self.text.register_forward_pre_hook(stop).remove)
            for index in self.kept:
                undo.callback(self.layers[index].register_forward_hook(partial(_keep, outputs[index])).remove)
            with torch.no_grad(), suppress(_Seen):
                look()
        once = all(len(ran) == 1 for ran in outputs.values())
        return {index: ran[0] for index, ran in outputs.items()} if once else None


def _keep(outputs: list[Any], module: nn.Module, args: Any, output: Any) -> None:
    outputs.append(output)


class _Seen(Exception):
    """The model has looked at the images; the rest of its pass is not needed."""


class _Served:
    """One pass over cached outputs."""

    def __init__(self, kept: Sequence[int], found: Sequence[Mapping[int, Any]]) -> None:
        self.kept = kept
        self.found = found
        self._fits = False

    def layer(self, index: int, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs in place of a layer."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            states: Tensor = args[0] if args else kwargs["hidden_states"]
            if index == 0:
                self._fits = (
                    _joined([_states(outputs[self.kept[0]]) for outputs in self.found], states.shape) is not None
                )
            if not self._fits:  # a layout this cache does not know: run as found
                return original(*args, **kwargs)
            if index not in self.kept:
                # Nothing reads this: should something do so after all, it is to be seen.
                return torch.full_like(states, torch.nan)
            first = self.found[0][index]
            joined = _joined([_states(outputs[index]) for outputs in self.found], states.shape)
            return joined if isinstance(first, Tensor) else (joined, *first[1:])

        return forward


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


def _states(output: Any) -> Tensor:
    """Return the hidden states of a layer's output, which may come first in a tuple."""
    states: Tensor = output if isinstance(output, Tensor) else output[0]
    return states


def _joined(parts: Sequence[Tensor], shape: torch.Size) -> Tensor | None:
    """Concatenate hidden states to this shape, along whichever dimension does it; None where none does."""
    if len(parts) == 1:
        return parts[0] if parts[0].shape == shape else None
    for dim in range(len(shape) - 1):
        sizes = [(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts]
        others = (*shape[:dim], *shape[dim + 1 :])
        if all(size == others for size in sizes) and sum(part.shape[dim] for part in parts) == shape[dim]:
            return torch.cat(list(parts), dim)
    return None


def _size(outputs: Mapping[int, Any] | None) -> int:
    """Return the bytes that the kept outputs hold."""
    return sum(_states(output).nbytes for output in (outputs or {}).values())
