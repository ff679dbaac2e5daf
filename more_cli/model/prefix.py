"""Cache of the text layers before the first edited one: they run once per batch, later writes of an edit skip them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import is_
from typing import Any

from torch import Tensor, nn

from more_cli.model.batches import Encoded
from more_cli.model.vision import replaced_forward


class PrefixCache:
    """Output of the last of these layers for the most recent batch.

    No edit changes it. It is kept for a whole batch, padding included, so a warm cache changes no bit. `calls` counts
    how often the layers really ran.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        self.layers = [model.get_submodule(path) for path in layers]
        self.calls = 0
        self._sequences: tuple[Encoded, ...] = ()
        self._output: Any = None

    @contextmanager
    def serving(self, sequences: Sequence[Encoded]) -> Iterator[None]:
        """Skip the layers in the next pass if it has the same sequences as the last one, else record their output."""
        with ExitStack() as undo:
            if self._holds(sequences):
                for layer in self.layers:
                    undo.enter_context(replaced_forward(layer, self._answer))
                yield
                return
            self._sequences, self._output = (), None
            ran, outputs = Counter[nn.Module](), list[Any]()
            for layer in self.layers:
                undo.callback(layer.register_forward_hook(lambda layer, *_: ran.update([layer])).remove)
            undo.callback(self.layers[-1].register_forward_hook(partial(_keep_copy, outputs)).remove)
            yield
        self.calls += 1
        if all(ran[layer] == 1 for layer in self.layers):  # else they do not run in sequence, once each
            self._sequences, self._output = tuple(sequences), outputs[0]

    def hold(self, sequences: Sequence[Encoded], hidden: Tensor) -> None:
        """Take (N, T, d) hidden states, computed before, for the output of the last layer: the next pass of this batch
        begins behind it."""
        self._sequences, self._output = tuple(sequences), hidden

    def clear(self) -> None:
        """Forget the last batch."""
        self._sequences, self._output = (), None

    def _holds(self, sequences: Sequence[Encoded]) -> bool:
        """Return whether these very sequences were the last batch."""
        same = len(sequences) == len(self._sequences)
        return bool(sequences) and same and all(map(is_, sequences, self._sequences))

    def _answer(self, *_: Any, **__: Any) -> Any:
        return _copied(self._output)


def _keep_copy(outputs: list[Any], module: nn.Module, args: Any, output: Any) -> None:
    outputs.append(_copied(output))


def _copied(output: Any) -> Any:
    """Return a layer's output with hidden states of its own: some models add to them in place between two layers."""
    return output.clone() if isinstance(output, Tensor) else (output[0].clone(), *output[1:])
