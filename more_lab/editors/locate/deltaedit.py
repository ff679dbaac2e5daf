"""DeltaEdit: AlphaEdit whose values avoid what earlier edits put out, where these edits answer the new key loudly.

Source: Cao et al. 2025, "DeltaEdit: Enhancing Sequential Editing in Large Language Models by Controlling Superimposed
Noise" (AAAI 2026: "On the Superimposed Noise Accumulation Problem in Sequential Knowledge Editing"), and its
authors' code. A write is Delta = alpha beta^T: beta says which keys it answers, alpha with what. The noise that all
earlier writes give a new key k is (sum Delta) k. Where its norm leaves the usual range, alpha is sought in what is
orthogonal to the outputs of the earlier writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.registry import editor, tries
from more_cli.model.batches import Encoded
from more_lab.editors.locate.alphaedit import AlphaEditor, AlphaEditTuning
from more_lab.editors.locate.base import edited_layers
from more_lab.editors.locate.values import Value
from more_lab.editors.work import Work

NOISE = "noise"
"""Name of mean, variance and count of the noise in the state."""
KEPT = 0.9
"""Share of the running mean and variance that stays at each edit, as published."""
FLOOR = 1e-6
"""Singular values below this share of the largest are rounding errors."""


class DeltaEditTuning(AlphaEditTuning):
    """The numbers of DeltaEdit, beside those of AlphaEdit."""

    warmup: int = Field(default=20, ge=1)
    """Edits before the first constraint, whose noise sets the usual range; as published."""
    deviation: float = Field(default=3.0, ge=0)
    """Standard deviations of the noise's norm from its mean, beyond which an edit is constrained; published 1.5, 3."""
    room: float = Field(default=0.75, gt=0, le=1)
    """Share of the output's directions that a constrained edit may use at least, as published."""


@editor(
    "deltaedit",
    tries=tries(share=(0.5, 0.7, 0.9, 0.999), deviation=(1.5, 5.0), room=(0.5, 0.9)),
)
class DeltaEditor(AlphaEditor):
    """Keeps the values of noisy edits orthogonal to what earlier edits put out."""

    tuning: DeltaEditTuning

    def __init__(self, tuning: DeltaEditTuning) -> None:
        super().__init__(tuning)
        self._noise = torch.zeros(3, dtype=torch.float64)

    def _value(self, module: str, asked: Sequence[Encoded], work: Work, avoided: Tensor | None = None) -> Value:
        """Find what the last layer should put out, within what is left of its outputs if the noise is unusual."""
        path = edited_layers(self.runtime, self.tuning)[1][-1]
        ((keys, _),) = self._taken(asked[:1], [path], module, work)
        written = self.deltas[path].value.double().cpu()
        loud = self._is_unusual(float((written @ keys.T).norm(dim=0).mean()))
        return super()._value(module, asked, work, occupied(written, self.tuning.room) if loud else avoided)

    def _is_unusual(self, norm: float) -> bool:
        """Tell whether a noise's norm leaves the usual range; one that does not counts towards that range."""
        mean, variance, count = self._noise.tolist()
        if count >= self.tuning.warmup and variance > 0 and abs(norm - mean) > self.tuning.deviation * variance**0.5:
            self._noise = torch.tensor([mean, variance, count + 1], dtype=torch.float64)
            return True
        # The first edit has no noise: the second one's is the first mean.
        mean = norm if mean == 0 else KEPT * mean + (1 - KEPT) * norm
        variance = KEPT * variance + (1 - KEPT) * (norm - mean) ** 2
        self._noise = torch.tensor([mean, variance, count + 1], dtype=torch.float64)
        return False

    def snapshot(self) -> Any:
        """Return what AlphaEdit's has, and the usual range."""
        return super().snapshot(), self._noise

    def restore(self, before: Any) -> None:
        written, self._noise = before
        super().restore(written)

    def reset(self) -> None:
        super().reset()
        self._noise = torch.zeros(3, dtype=torch.float64)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what AlphaEdit's has, and the usual range once there was an edit."""
        return super().state_dict() | ({NOISE: self._noise} if self._noise[2] else {})

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict({name: value for name, value in tensors.items() if name != NOISE})
        self._noise = tensors.get(NOISE, torch.zeros(3, dtype=torch.float64))


def occupied(written: Tensor, room: float) -> Tensor:
    """Return orthonormal directions (d, n) of the outputs (d, m) that earlier writes use most.

    The singular vectors of the largest singular values; at most (1 - room) d of them.
    """
    U, S, _ = torch.linalg.svd(written, full_matrices=False)
    used = int((FLOOR * S[0] < S).sum()) if len(S) and S[0] > 0 else 0
    directions: Tensor = U[:, : min(used, int((1 - room) * len(written)))]
    return directions
