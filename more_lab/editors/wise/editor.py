"""WISE: side memories, edited copies of one FFN weight, that answer the prompts whose activations they change most.

Wang et al., "WISE: Rethinking the Knowledge Memory for Lifelong Model Editing of Large Language Models" (2024). What
differs from the published code is said where it happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.editors.draws import pick
from more_cli.editors.outcome import EditScore
from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Encoded, Query
from more_cli.model.branches import computes_in
from more_cli.model.taps import Rows, Tap
from more_lab.editors.routed import RoutedEditor, RoutedTuning
from more_lab.editors.wise.side_memory import SideMemory, block_mask, choose, merged
from more_lab.editors.work import Work

SETTLED, LOW = 1e-4, 0.02
"""A training ends when its loss, margins included, changes by at most the first and is at most the second."""
MASKED = 0.2 * 11_008
"""Inputs of an output that a published mask leaves: 0.2 of those of LLaMA-2-7B's FFN output. Of a small weight 0.2
leaves so few that later edits of a block change what earlier ones need."""


class WiseTuning(RoutedTuning):
    """The numbers of WISE."""

    depth: float = Field(default=0.75, ge=0, lt=1)
    """The text layer whose FFN output is edited, as a share of the layers below it."""
    steps: int = Field(default=70, ge=1)
    """Steps of gradient descent for one correction, at most."""
    rate: float = Field(default=1.0, gt=0)
    """Learning rate of plain gradient descent."""
    mask: float | None = Field(default=None, gt=0, le=1)
    """Share of the weight's entries that the edits of one block may change. Default: the one that leaves an output as
    many inputs as the published 0.2 of 11,008, at most all."""
    bound: float = Field(default=50.0, gt=0)
    """Largest change of an entry, in units of the root mean square of the weight."""
    out_margin: float = Field(default=0.5, ge=0)
    """Alpha: distance above which an unrelated prompt is pushed down. All three are in units that the fit measures."""
    in_margin: float = Field(default=2.0, ge=0)
    """Beta: distance below which the edit's prompt is pushed up."""
    gap: float = Field(default=1.0, ge=0)
    """Gamma: how far the edit's prompt is to lie above the unrelated ones."""
    unrelated: int = Field(default=2, ge=1)
    """Unrelated prompts that each edit is trained against."""
    ratio: float = Field(default=0.7, gt=0)
    """A prompt is answered by a memory if its distance is this share of the least distance of that memory's edits."""
    block: int = Field(default=500, ge=1)
    """Edits in one side memory, with one mask."""
    merge: int = Field(default=2, ge=2)
    """Full memories that are merged into one."""
    density: float = Field(default=0.53, gt=0, le=1)
    """Share of each memory that a merge keeps before it elects signs."""
    retrieve: bool = True
    """Every memory may answer; otherwise only the last one that was written."""
    seed: int = Field(default=0, ge=0)
    """Seed of the masks and of the choice of unrelated prompts."""

    def share(self, d_in: int) -> float:
        """Return the share of the entries that one block may change of a weight with `d_in` inputs."""
        return min(1.0, MASKED / d_in) if self.mask is None else self.mask


SAMPLES, PILOTS = 16, 5
"""Unrelated prompts of the pool that a fit keeps, and edits of it that it makes to measure the unit of the margins."""


@editor("wise", tries=tries(rate=(0.3, 3.0), mask=(0.2, 0.5), depth=(0.6, 0.9), ratio=(0.5, 0.9)))
class WiseEditor(RoutedEditor):
    """WISE. A memory's effect is that W' takes the place of W for a whole routed row, in every step of an answer."""

    tuning: WiseTuning

    def __init__(self, tuning: WiseTuning) -> None:
        super().__init__(tuning)
        self.memories: list[SideMemory] = []
        self._edits = 0
        self._taken = torch.zeros(0)
        self._unrelated: list[Tensor] = []
        self._unit, self._size = torch.ones(()), torch.ones(())

    @property
    def empty(self) -> bool:
        """Whether no memory was written."""
        return not self.memories

    def taps(self, path: str) -> list[Tap]:
        """Return the parts that keep the Linear's inputs and add what W' changes of its output."""
        device = self.runtime.device_of(path)
        for memory in self.memories:
            memory.delta = memory.delta.to(device)
        return [Tap(path, self._taken_in, "input"), Tap(path, self._put_out)]

    def _taken_in(self, hidden: Tensor, rows: Rows) -> Tensor:
        self._taken = hidden
        return hidden

    def _put_out(self, hidden: Tensor, rows: Rows) -> Tensor:
        taken, self._taken = self._taken, torch.zeros(0)
        if not rows.routed:
            return hidden
        dtype, changed = computes_in(hidden.dtype), list(hidden)
        for row in rows.routed:
            delta = self.memories[rows.routes[row]].delta
            changed[row] = (hidden[row].to(dtype) + taken[row].to(dtype) @ delta.to(dtype).T).to(hidden.dtype)
        return torch.stack(changed)

    def route(self, inputs: Tensor) -> int | None:
        """Return the memory that answers a prompt."""
        if self.tuning.retrieve:
            return choose(self.memories, inputs, self.tuning.ratio)
        last = len(self.memories) - 1
        return None if choose(self.memories[last:], inputs, self.tuning.ratio) is None else last

    def fit(self, data: FitData) -> dict[str, Any]:
        """Keep unrelated prompts of the pool, and measure the unit of the margins.

        The published margins (5, 20, 10) hold for one model's activations. Here they are multiples of the median
        distance that edits of the pool get from their own prompts, each alone and trained without margins.
        """
        weight = self.runtime.model.get_submodule(self.path).weight
        if weight.is_meta:
            raise StateError(f"`{self.path}` is not in memory: it cannot be copied", "leave --device-map out")
        self._size = weight.detach().float().square().mean().sqrt().cpu()
        prompts = [self.runtime.encode(query) for query in self._unrelated_queries(data.edits)]
        self._unrelated = [inputs.cpu() for inputs in self.inputs(prompts)]
        chosen = pick(len(data.edits), min(PILOTS, len(data.edits)), self.tuning.seed)
        distances = [self._pilot(EditRequest.of(data.edits[place])) for place in chosen]
        self._unit = torch.tensor(distances).median()
        if not self._unit > 0:
            raise StateError("edits of the pool change no activation", "raise the editor's rate with --set")
        return {"unit": float(self._unit), "pilots": len(distances), "unrelated": len(self._unrelated)}

    def _unrelated_queries(self, edits: Sequence[Edit]) -> list[Query]:
        """Return locality questions of the pool, with and without images, or without any the pool's own questions."""
        asked = [Query.of(probe) for edit in edits for probe in edit.locality]
        asked = asked or [EditRequest.of(edit).query for edit in edits]
        return [asked[place] for place in pick(len(asked), min(SAMPLES, len(asked)), self.tuning.seed, 1)]

    def _pilot(self, request: EditRequest) -> float:
        encoded = self.runtime.encode(request.query, request.target)
        (inputs,) = self.inputs([encoded])
        self._open(inputs.device)
        self._train(encoded, inputs, [], Work())
        (memory,), self.memories = self.memories, []
        return float(memory.distance(inputs))

    def fit_constants(self) -> dict[str, Any]:
        return self.tuning.model_dump(mode="json", include={"depth", "steps", "rate", "mask", "bound", "seed"})

    def fitted(self) -> dict[str, Tensor]:
        """Return the units, and the Linear's inputs on the unrelated prompts."""
        kept = {f"unrelated.{number}": inputs for number, inputs in enumerate(self._unrelated)}
        return kept | {"unit": self._unit, "size": self._size}

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        self._unit, self._size = tensors["unit"], tensors["size"]
        self._unrelated = [tensors[f"unrelated.{number}"] for number in range(len(tensors) - 2)]

    def learn(self, encoded: Encoded, first: EditScore, context: EditContext, work: Work) -> bool:
        """Train the open memory on a correction, a new one where it is full; then merge, where enough are full."""
        (inputs,) = self.inputs([encoded])
        work.forward()
        if self._edits % self.tuning.block == 0:
            self._open(inputs.device)
        chosen = pick(len(self._unrelated), self.tuning.unrelated, self.tuning.seed, 2, context.number)
        finite = self._train(encoded, inputs, [self._unrelated[place].to(inputs.device) for place in chosen], work)
        memory = self.memories[-1]
        memory.least = min(memory.least, float(memory.distance(inputs)))
        self._edits += 1
        if self._edits % self.tuning.block == 0:
            self._merge()
        return finite

    def _open(self, device: torch.device) -> None:
        linear = self.runtime.model.get_submodule(self.path)
        self.memories.append(SideMemory(torch.zeros(linear.out_features, linear.in_features, device=device)))

    def _merge(self) -> None:
        """Merge the last memories when enough are full; what was merged before stays as it is."""
        if self._edits // self.tuning.block % self.tuning.merge == 0:
            whole = merged(self.memories[-self.tuning.merge :], self.tuning.density)
            self.memories[-self.tuning.merge :] = [whole]

    def _train(self, encoded: Encoded, inputs: Tensor, unrelated: Sequence[Tensor], work: Work) -> bool:
        """Descend on the loss within the block's mask and bound.

        The published weight decay is left out: it would change entries outside of the mask.
        """
        memory, tuning = self.memories[-1], self.tuning
        shape, block = tuple(memory.delta.shape), self._edits // tuning.block
        mask = block_mask(shape, tuning.share(shape[1]), tuning.seed, block)
        mask, bound = mask.to(memory.delta.device), tuning.bound * float(self._size)
        last = math.inf
        with self.forced(len(self.memories) - 1):
            for _ in range(tuning.steps):
                memory.delta = memory.delta.detach().requires_grad_()
                nll = self.runtime.score(self.runtime.batch([encoded]), record=True).nll().mean()
                loss = nll + self._margins(memory, inputs, unrelated) if unrelated else nll
                value = float(loss.detach())
                if not math.isfinite(value) or (abs(last - value) <= SETTLED and value <= LOW):
                    work.forward()
                    break
                self.runtime.backward(loss)
                assert memory.delta.grad is not None
                step = tuning.rate * memory.delta.grad / self.runtime.loss_scale
                before = memory.delta.detach()
                memory.delta = torch.where(mask, (before - step).clamp(-bound, bound), before)
                last = value
                work.both()
                work.writes += 1
        memory.delta = memory.delta.detach()
        return math.isfinite(value) and bool(torch.isfinite(memory.delta).all())

    def _margins(self, memory: SideMemory, inputs: Tensor, unrelated: Sequence[Tensor]) -> Tensor:
        """Return the routing loss (equation 8 of the paper), in units, a mean over the unrelated prompts."""
        own = memory.distance(inputs) / self._unit.to(inputs.device)
        others = torch.stack([memory.distance(other) for other in unrelated]) / self._unit.to(inputs.device)
        tuning = self.tuning
        parts = (others - tuning.out_margin).relu() + (tuning.gap - (own - others)).relu()
        return parts.mean() + (tuning.in_margin - own).relu()

    def reset(self) -> None:
        assert self._attached is None, "detach the editor first"
        self.memories, self._edits = [], 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return every memory with its least distance, and the number of edits; nothing before the first."""
        return dict(self._kept()) if self.memories else {}

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        yield "edits", torch.tensor(self._edits)
        for number, memory in enumerate(self.memories):
            yield f"{number}.delta", memory.delta.detach().cpu()
            yield f"{number}.least", torch.tensor(memory.least, dtype=torch.float64)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        self._edits = int(tensors["edits"]) if tensors else 0
        device = self.runtime.device_of(self.path) if self._attached else torch.device("cpu")
        self.memories = [
            SideMemory(tensors[f"{n}.delta"].to(device), float(tensors[f"{n}.least"])) for n in range(len(tensors) // 2)
        ]
