"""UltraEdit: one gradient and one linear system per edit, with statistics of all edits so far, and no training.

Gu et al., "UltraEdit: Training-, Subject-, and Memory-Free Lifelong Editing in Language Models" (2025).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import FitData
from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.model.batches import Encoded, Query
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.recipe.tables import Table
from more_lab.editors.modules import ffn_outs
from more_lab.editors.moments import Moments
from more_lab.editors.weights import WeightEditor
from more_lab.editors.work import Work

MOMENTS = "moments:"
"""Put before a shape in the names of its statistics."""


class UltraTuning(Table):
    """The numbers of UltraEdit."""

    layers: int = Field(default=2, ge=1)
    """Text layers, the last ones, whose FFN outputs are edited. Published for Mistral: the two before its last one."""
    step: float = Field(default=4.0, gt=0)
    """eta d_in: how far an edit moves an output coordinate whose normalised gradient is 1, before the ridge."""
    ridge: float = Field(default=1.0, gt=0)
    """Ridge, in units of the mean |h|^2 over all rows so far."""
    warm: int = Field(default=100, ge=0)
    """Calibration requests that the statistics start with; nothing is written for them."""


@editor(
    "ultraedit",
    tries=tries(step=(1.0, 2.0, 6.0, 10.0), ridge=(0.3, 3.0), layers=(1, 3)),
)
class UltraEditor(WeightEditor):
    """A closed-form write of the FFN outputs of the last text layers."""

    capabilities = frozenset({"fit"})
    tuning: UltraTuning

    def __init__(self, tuning: UltraTuning) -> None:
        super().__init__()
        self.tuning = tuning
        self._fitted: dict[str, Tensor] = {}
        self._moments: dict[str, Moments] = {}

    def modules(self, runtime: Runtime) -> list[str]:
        """Return the FFN outputs of the last text layers."""
        backbone = runtime.backbone
        paths = ffn_outs(runtime.model, backbone, text_layers(runtime.model, backbone)[-self.tuning.layers :])
        if not paths:
            raise StateError("the last text layers have no FFN output that can be edited", "use another --editor")
        return paths

    def fit(self, data: FitData) -> dict[str, Any]:
        """Start the statistics with calibration requests, as after so many edits; nothing is written.

        Without that the first edits are divided by the spread of a few rows. Published code has no such start.
        """
        self._moments = {}
        edits, started = data.edits[: self.tuning.warm], time.monotonic()
        for number, edit in enumerate(edits):
            if time.monotonic() - started > data.seconds:
                break
            encoded = self.runtime.encode(Query.of(edit), edit.target)
            for shape, inputs, gradients in self._read(encoded):
                self._watch(shape, inputs, gradients)
            data.progress(number + 1, len(edits), "statistics")
        self._fitted = self._statistics()
        return {"rows": {shape: int(moments.count) for shape, moments in self._moments.items()}}

    def fitted(self) -> dict[str, Tensor]:
        """Return the statistics that editing starts with."""
        return dict(self._fitted)

    def load_fitted(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the statistics that editing starts with."""
        self._fitted = dict(tensors)
        self._restore(self._fitted)

    def fit_constants(self) -> dict[str, Any]:
        """Return the numbers that decide the statistics."""
        return {"layers": self.tuning.layers, "warm": self.tuning.warm}

    def snapshot(self) -> Any:
        """Return every Delta W and the statistics so far."""
        return super().snapshot(), self._statistics()

    def restore(self, before: Any) -> None:
        written, statistics = before
        super().restore(written)
        self._restore(statistics)

    def write(self, asked: Sequence[Encoded], work: Work) -> None:
        """Write one correction."""
        self.write_together(asked, (), work)

    def write_together(self, edits: Sequence[Encoded], anchors: Sequence[Anchor], work: Work) -> None:
        """Add the solution of all edits for every FFN output; all gradients come before anything is written."""
        read = [list(self._read(encoded)) for encoded in edits]
        work.both(len(edits))
        for shape, inputs, gradients in chain.from_iterable(read):
            self._watch(shape, inputs, gradients)
        for delta, rows in zip(self.deltas.values(), zip(*read, strict=True), strict=True):
            H, G = (torch.cat([row[place] for row in rows]) for place in (1, 2))
            update = shift(self._moments[rows[0][0]], H, G, self.tuning.step, self.tuning.ridge)
            delta.value = delta.value + update.to(delta.value)
        work.writes += 1

    def _read(self, encoded: Encoded) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield of every edited Linear its shape, and H (n, d_in) and G (n, d_out) where the answer is predicted."""
        runtime, batch = self.runtime, self.runtime.batch([encoded])
        runtime.backward(runtime.score(batch, record=True).nll().mean())
        answer = batch.answer.flatten().cpu()
        for delta in self.deltas.values():
            # OPT's FFN sees the tokens of all rows as one list.
            H, G = (rows.flatten(0, -2).cpu()[answer] for rows in (delta.inputs, delta.gradients))
            yield "x".join(map(str, delta.value.shape)), H, G

    def _watch(self, shape: str, inputs: Tensor, gradients: Tensor) -> None:
        rows = torch.cat([inputs, gradients], dim=1)
        self._moments.setdefault(shape, Moments(rows.shape[1])).add(rows)

    def _statistics(self) -> dict[str, Tensor]:
        return {
            f"{MOMENTS}{shape}:{name}": value.clone()
            for shape, moments in self._moments.items()
            for name, value in moments.state_dict().items()
        }

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._moments = {}
        kept: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith(MOMENTS):
                _, shape, part = name.split(":")
                kept.setdefault(shape, {})[part] = value
        for shape, parts in kept.items():
            self._moments[shape] = Moments(len(parts["mean"]))
            self._moments[shape].load_state_dict(parts)

    def reset(self) -> None:
        """Go back to the base's weights and the fitted statistics."""
        super().reset()
        self._restore(self._fitted)

    def state_dict(self) -> dict[str, Tensor]:
        """Return every Delta W and the statistics so far."""
        return super().state_dict() | self._statistics()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict({name: value for name, value in tensors.items() if not name.startswith(MOMENTS)})
        self._restore(tensors)


def shift(moments: Moments, inputs: Tensor, gradients: Tensor, step: float, ridge: float) -> Tensor:
    """Return Delta W (d_out, d_in), float64, for rows H (n, d_in) and G (n, d_out) that `moments` has counted.

    Delta W^T = (H^T H + lambda I)^-1 H^T V with the rows v_i = -eta |h~_i|^2 g~_i, where ~ means normalised. Two
    constants are rescaled to the model, by these rules: eta = step / d_in, as |h~|^2 is about d_in, so that the write
    does not depend on the width (published: eta = 1e-6 at d_in = 14336, a step of 0.014); and lambda = ridge times the
    mean |h|^2 of all rows so far (published: lambda = 1 whatever the scale of h).
    """
    d_in = inputs.shape[1]
    normal = moments.normalised(torch.cat([inputs, gradients], dim=1)).double()
    # In float64: the products of inputs lose half of their digits.
    H, h, g = inputs.double(), normal[:, :d_in], normal[:, d_in:]
    V = -step / d_in * h.square().sum(dim=1, keepdim=True) * g
    penalty = ridge * (moments.mean[:d_in].square().sum() + moments.squares[:d_in].sum() / moments.count)
    # The same solution from the n x n system H H^T: a row per answer token, far fewer than d_in.
    inner = H @ H.T + penalty * torch.eye(len(H), dtype=torch.float64)
    solved: Tensor = H.T @ torch.linalg.solve(inner, V)
    return solved.T
