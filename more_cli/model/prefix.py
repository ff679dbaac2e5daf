"""The text layers before the first edited one, run once for a batch: the later writes of an edit start behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from more_cli.model.answering import answered_for, keep_output
from more_cli.model.batches import Encoded


class PrefixCache:
    """What the last of these layers put out for the batch that went through them last.

    No edit changes it. It is kept for a whole batch, padding and all, so a warm cache changes no bit. `calls` counts
    how often the layers really ran.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        self.layers = [model.get_submodule(path) for path in layers]
        self.calls = 0
        self._sequences: tuple[Encoded, ...] = ()
        self._output: Any = None

    @contextmanager
    def serving(self, sequences: Sequence[Encoded]) -> Iterator[None]:
        """Answer for the layers in the next pass if it is over the same sequences as the last one, else watch it."""
        with ExitStack() as undo:
            if self._holds(sequences):
                for layer in self.layers:
                    undo.enter_context(answered_for(layer, self._answer))
                yield
                return
            self._sequences, self._output = (), None
            outputs: list[list[Any]] = [[] for _ in self.layers]
            for layer, kept in zip(self.layers, outputs, strict=True):
                undo.callback(layer.register_forward_hook(partial(keep_output, kept)).remove)
            yield
        self.calls += 1
        if all(len(kept) == 1 for kept in outputs):  # else they are not run one after the other, once each
            self._sequences, self._output = tuple(sequences), outputs[-1][0]

    def _holds(self, sequences: Sequence[Encoded]) -> bool:
        """Say whether these very sequences were the last batch."""
        same = len(sequences) == len(self._sequences)
        return bool(sequences) and same and all(map(_is, sequences, self._sequences))

    def _answer(self, *_: Any, **__: Any) -> Any:
        # A copy: some models add to the hidden states in place between two layers.
        kept = self._output
        return kept.clone() if isinstance(kept, Tensor) else (kept[0].clone(), *kept[1:])


def _is(one: Encoded, other: Encoded) -> bool:
    return one is other
