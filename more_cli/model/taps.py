"""Parts that change what a module puts out, row by row, in scores and for a whole generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from more_cli.model.batches import Batch, Encoded, Query
from more_cli.model.vision import states_of, with_states

Side = Literal["input", "output"]
"""Whether a module's first input is meant, or its output."""


class Router(Protocol):
    """An editor that acts on some questions only, or in different ways; it never reads a target."""

    def rewrite(self, query: Query) -> Query:
        """Return the question that the model is asked instead."""

    def routes(self, prompts: Sequence[Encoded]) -> Sequence[Any]:
        """Return how the editor acts on each of these prompts, which have no target; None for not at all."""


@dataclass(frozen=True)
class Rows:
    """The rows of one forward pass."""

    routes: Sequence[Any]
    """One per row; None where the editor does not act."""
    prompt: Tensor
    """(N, T) bool, true at the tokens of the prompts; false everywhere in the later steps of a generation."""

    @property
    def routed(self) -> list[int]:
        """The rows that have a route."""
        return [row for row, route in enumerate(self.routes) if route is not None]

    @property
    def last(self) -> Tensor:
        """(N, T) bool, true at the last token of each prompt."""
        behind = torch.zeros_like(self.prompt)
        behind[:, :-1] = self.prompt[:, 1:]
        return self.prompt & ~behind


Act = Callable[[Tensor, Rows], Tensor]
"""Takes hidden states (N, T, d) and the rows of the pass, and returns the hidden states to go on with."""


class Tap:
    """Gives what a module takes in or puts out to a function, and goes on with what this returns.

    The function also runs in every later step of a generation, with the routes of the prompts.
    """

    def __init__(self, module: str, act: Act, side: Side = "output") -> None:
        self.module = module
        self.enabled = True
        self.recording = False
        self.loss_scale = 1.0
        self._act = act
        self._side = side
        self._rows = Rows((), torch.zeros(0, 0, dtype=torch.bool))
        self._begun = False

    def start_recording(self, *, add: bool = False) -> None:
        """Switch recording on; the function keeps what it needs itself."""
        self.recording = True

    def start_pass(self, batch: Batch, routes: Sequence[Any]) -> None:
        """Prepare for the forward pass of a batch, or for a generation from it."""
        self._rows, self._begun = Rows(tuple(routes), batch.prompt), False

    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Attach to the module."""
        module = model.get_submodule(self.module)
        if self._side == "input":
            return module.register_forward_pre_hook(self._taken).remove
        return module.register_forward_hook(self._given).remove

    def _taken(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        return (self._changed(args[0]), *args[1:]) if self.enabled else None

    def _given(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not self.enabled:
            return output
        return with_states(output, self._changed(states_of(output)))

    def _changed(self, hidden: Tensor) -> Tensor:
        rows = self._rows
        # OPT's feed-forward part gets the tokens of all rows as one long row.
        flat = hidden.dim() == 2 and len(rows.routes) > 0
        if flat:
            hidden = hidden.reshape(len(rows.routes), -1, hidden.shape[-1])
        if self._begun:  # a later step of a generation
            rows = Rows(rows.routes, torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device))
        self._begun = True
        changed = self._act(hidden, rows)
        return changed.flatten(0, 1) if flat else changed


@contextmanager
def inputs_of(model: nn.Module, modules: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Keep the inputs of modules in the block's passes: by path, the tokens of all passes as rows (n, d_in)."""
    read: dict[str, Tensor] = {}

    def keep(path: str, args: tuple[Tensor, ...]) -> None:
        rows = args[0].detach().reshape(-1, args[0].shape[-1])
        read[path] = torch.cat([read[path], rows]) if path in read else rows

    with ExitStack() as undo:
        for path in modules:
            hook = model.get_submodule(path).register_forward_pre_hook(lambda _, args, path=path: keep(path, args))
            undo.callback(hook.remove)
        yield read
