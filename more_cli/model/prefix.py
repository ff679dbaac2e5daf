"""Cache of the text layers before the first edited one: they run once per batch, later writes of an edit skip them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from more_cli.model.batches import Encoded
from more_cli.model.vision import replaced_forward, states_of, with_states


class PrefixCache:
    """Output of the last of these layers for the most recent batch, and for those before it while they fit.

    No edit changes it. It is kept for a whole batch, padding included, so a warm cache changes no bit. `calls` counts
    how often the layers really ran; `capacity` is the bytes that outputs of batches before the last one may take.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        self.layers = [model.get_submodule(path) for path in layers]
        self.calls = 0
        self.capacity = 0
        self._outputs: OrderedDict[tuple[int, ...], tuple[tuple[Encoded, ...], Any]] = OrderedDict()
        """By the ids of the batch's sequences, which are kept alive beside the output."""
        self._bytes = 0

    @contextmanager
    def serving(self, sequences: Sequence[Encoded]) -> Iterator[None]:
        """Skip the layers in the next pass if it has the same sequences as the last one, else record their output."""
        with ExitStack() as undo:
            key = _key(sequences)
            if key in self._outputs:
                self._outputs.move_to_end(key)
                output = self._outputs[key][1]
                for layer in self.layers:
                    undo.enter_context(replaced_forward(layer, lambda *_, **__: _copied(output)))
                yield
                return
            self.trim(self.capacity)
            ran, outputs = Counter[nn.Module](), list[Any]()
            for layer in self.layers:
                undo.callback(layer.register_forward_hook(lambda layer, *_: ran.update([layer])).remove)
            keep = self.layers[-1].register_forward_hook(lambda _, args, output: outputs.append(_copied(output)))
            undo.callback(keep.remove)
            yield
        self.calls += 1
        if all(ran[layer] == 1 for layer in self.layers):  # else they do not run in sequence, once each
            self._keep(sequences, outputs[0])

    def hold(self, sequences: Sequence[Encoded], output: Any) -> None:
        """Take hidden states (N, T, d) for what the last layer puts out: the next pass of this batch skips it."""
        self.trim(self.capacity)
        self._keep(sequences, output)

    def trim(self, capacity: int) -> None:
        """Drop outputs, the least recently used first, until they take at most `capacity` bytes."""
        while self._bytes > capacity:
            _, (_, output) = self._outputs.popitem(last=False)
            self._bytes -= states_of(output).nbytes

    def _keep(self, sequences: Sequence[Encoded], output: Any) -> None:
        key = _key(sequences)
        if key in self._outputs:
            self._bytes -= states_of(self._outputs.pop(key)[1]).nbytes
        self._outputs[key] = tuple(sequences), output
        self._bytes += states_of(output).nbytes


def _copied(output: Any) -> Any:
    """Return a layer's output with hidden states of its own: some models add to them in place between two layers."""
    return with_states(output, states_of(output).clone())


def _key(sequences: Sequence[Encoded]) -> tuple[int, ...]:
    return tuple(map(id, sequences))
