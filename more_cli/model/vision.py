"""Cache of the vision tower: it runs once per image, and the outputs of its frozen layers are reused.

Features are computed for one question's images at a time, so a warm cache changes no bit: the same images give the
same features in any batch. Outputs of layers are cached, not the tower's: towers differ in how they combine their
layers, but every layer maps hidden states to hidden states. Mergers inside a tower, and edited layers, run as always.
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
from more_cli.model.batches import moved

Key = tuple[str, ...]
"""Hashes of the images of one question."""


class VisionCache:
    """Outputs of frozen vision layers by the images they were computed for, the least recently used dropped first.

    `frozen` are the layers, from the first one on, that no branch changes. Of their outputs those in `kept` are kept;
    the others are not computed. `text` is the first text layer: a pass that only fills the cache stops there. `calls`
    counts how often the tower really ran; `capacity` is in bytes.
    """

    def __init__(self, model: nn.Module, frozen: Sequence[str], kept: Collection[str], text: str) -> None:
        self.layers = [model.get_submodule(path) for path in frozen]
        self.kept = [index for index, path in enumerate(frozen) if path in kept]
        self.text = model.get_submodule(text)
        self.capacity = 1 << 30
        self.calls = 0
        self._outputs: OrderedDict[Key, dict[int, Any] | None] = OrderedDict()
        self._bytes = 0

    @contextmanager
    def serving(self, keys: Sequence[Key], run: Callable[[int], object]) -> Iterator[None]:
        """Answer the frozen layers' next calls, which must be for these images in this order, from the cache.

        `run` sends the images of one key, by its index, through the model.
        """
        cached = [self._outputs_of(key, partial(run, place)) for place, key in enumerate(keys)]
        if not keys or None in cached:
            yield
            return
        served = _Served(self.kept, [outputs for outputs in cached if outputs is not None])
        with ExitStack() as undo:
            for index, layer in enumerate(self.layers):
                undo.enter_context(replaced_forward(layer, served.layer(index, layer.forward)))
            yield

    def _outputs_of(self, key: Key, run: Callable[[], object]) -> dict[int, Any] | None:
        if key in self._outputs:
            self._outputs.move_to_end(key)
            return self._outputs[key]
        outputs = self._recorded(run)
        self.calls += 1
        self._outputs[key] = outputs
        self._bytes += _size(outputs)
        while self._bytes > self.capacity and len(self._outputs) > 1:
            self._bytes -= _size(self._outputs.popitem(last=False)[1])
        return outputs

    @timed("vision")
    def _recorded(self, run: Callable[[], object]) -> dict[int, Any] | None:
        """Return the outputs of the kept layers before the first text layer; None if one did not run exactly once."""
        outputs: dict[int, list[Any]] = {index: [] for index in self.kept}
        with ExitStack() as undo:
            for index in self.kept:
                undo.callback(self.layers[index].register_forward_hook(partial(_keep, outputs[index])).remove)
            undo.enter_context(stopped_before(self.text))
            run()
        once = all(len(ran) == 1 for ran in outputs.values())
        return {index: _held(ran[0]) for index, ran in outputs.items()} if once else None


def _keep(outputs: list[Any], module: nn.Module, args: Any, output: Any) -> None:
    outputs.append(output)


class _Stopped(Exception):
    """A pass has reached the layer to stop before."""


class _Served:
    """One pass over cached outputs."""

    def __init__(self, kept: Sequence[int], cached: Sequence[Mapping[int, Any]]) -> None:
        self.kept = kept
        self.cached = cached
        self._dim: int | None = None
        """Dimension along which the outputs for several questions are joined; None in a layout that is not known."""

    def layer(self, index: int, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs in place of a layer."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            states: Tensor = args[0] if args else kwargs["hidden_states"]
            if index == 0:
                self._dim = _joining([states_of(outputs[self.kept[0]]).shape for outputs in self.cached], states.shape)
            if self._dim is None:  # run the layer itself
                return original(*args, **kwargs)
            if index not in self.kept:
                # Nothing should read this output; if something does, NaN shows it.
                return torch.full_like(states, torch.nan)
            parts = [states_of(outputs[index]) for outputs in self.cached]
            joined = torch.cat(parts, self._dim) if len(parts) > 1 else parts[0]
            return with_states(self.cached[0][index], moved(joined, states.device))

        return forward


@contextmanager
def stopped_before(layer: nn.Module) -> Iterator[None]:
    """End this block, without gradients, when a pass in it reaches a layer: the rest of the pass is not needed."""

    def stop(*_: object) -> None:
        raise _Stopped

    hook = layer.register_forward_pre_hook(stop)
    try:
        with torch.no_grad(), suppress(_Stopped):
            yield
    finally:
        hook.remove()


@contextmanager
def replaced_forward(layer: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Run `forward` in place of a layer."""
    before = layer.__dict__.get("forward")
    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward
        if before is not None:
            layer.forward = before


def _held(output: Any) -> Any:
    """Return a layer's output with its hidden states in main memory, where a gigabyte of them leaves a GPU free."""
    return with_states(output, states_of(output).cpu())


def states_of(output: Any) -> Tensor:
    """Return the hidden states of a layer's output, which may come first in a tuple."""
    states: Tensor = output if isinstance(output, Tensor) else output[0]
    return states


def with_states(output: Any, states: Tensor) -> Any:
    """Return a layer's output with other hidden states."""
    return states if isinstance(output, Tensor) else (states, *output[1:])


def _joining(parts: Sequence[torch.Size], whole: torch.Size) -> int | None:
    """Return the dimension along which hidden states of these shapes join to the whole one; None if none does."""
    for dim in range(len(whole) - 1):
        others = (*whole[:dim], *whole[dim + 1 :])
        alike = all((*part[:dim], *part[dim + 1 :]) == others for part in parts)
        if alike and sum(part[dim] for part in parts) == whole[dim]:
            return dim
    return None


def _size(outputs: Mapping[int, Any] | None) -> int:
    """Return the bytes that the kept outputs hold."""
    return sum(states_of(output).nbytes for output in (outputs or {}).values())
