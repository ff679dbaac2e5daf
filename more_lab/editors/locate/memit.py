"""MEMIT and ROME: writes that change the outputs of ordinary keys least, with no memory of earlier edits.

Sources: Meng et al. 2023, "Mass-Editing Memory in a Transformer"; Meng et al. 2022, "Locating and Editing Factual
Associations in GPT"; Gupta et al. 2024, "Rebuilding ROME" (the consistent key). Their second moments come from
Wikipedia, ours from the calibration pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.registry import editor, tries
from more_cli.model.batches import Encoded
from more_lab.editors.locate.base import BandEditor, LocateEditor, LocateTuning
from more_lab.editors.locate.solve import covariance_update, equality_update
from more_lab.editors.work import Work


class CovarianceTuning(LocateTuning):
    """The numbers of a method that weighs keys by the inverse of their second moment."""

    loading: float = Field(default=1e-4, gt=0)
    """Ridge on the second moment's diagonal, as a share of its mean: units that never fire make it singular."""


class MemitTuning(CovarianceTuning):
    """The numbers of MEMIT; the edited layers are 4 to 8 of 32."""

    first: float = Field(default=4 / 32, ge=0, lt=1)
    """Where the edited text layers begin, as a share of the depth."""
    last: float = Field(default=9 / 32, gt=0, le=1)
    """Where they end."""
    weight: float = Field(default=0.1, gt=0)
    """Weight of the pool's keys, in numbers of inputs of the Linear: with C their second moment, the mean of k^T C^-1 k
    is that number. The published 15,000 for 11,008 inputs is 1.4 in this unit."""


class RomeTuning(CovarianceTuning):
    """The numbers of ROME; the edited layer is number 17 of 48, as in its paper."""

    first: float = Field(default=17 / 48, ge=0, lt=1)
    """Where the edited text layer begins, as a share of the depth."""
    last: float = Field(default=18 / 48, gt=0, le=1)
    """Where the range of layers ends; if it has several, the first one is edited."""
    rate: float = Field(default=1.0, gt=0)
    """Learning rate, in units of the root mean square of the output that delta is added to."""
    clamp: float = Field(default=16.0, gt=0)
    """Greatest |delta|, in norms |h| of the FFN output it is added to. Printed as 4; in small models an FFN output is
    short beside the sum of all before it, and 4 of its norms do not reach the value."""
    decay: float = Field(default=1e-3, ge=0)
    """Weight of |delta| / |h|^2 in the loss."""
    adjust: bool = True
    """Weigh keys by the inverse of the second moment, as for GPT-2; else the change is along the key, as for Llama."""
    consistent: bool = True
    """Use the mean key on both sides of the update (R-ROME); else the plain key where the value is reached (ROME)."""


class CovarianceEditor(LocateEditor):
    """Holds a Cholesky factor of the pool's second moment."""

    tuning: CovarianceTuning

    def _prepare(self) -> dict[str, Any]:
        self._factors = {}
        moments = {path: self._keys.together(path) for path in self._keys.paths}
        for path, moment in moments.items():
            loaded = moment + self.tuning.loading * moment.diagonal().mean() * torch.eye(len(moment)).double()
            self._factors[path] = torch.linalg.cholesky(loaded)
        return {"mean_square": {path: round(float(value.trace()), 4) for path, value in moments.items()}}

    def weighed(self, path: str, keys: Tensor) -> Tensor:
        """Return C^-1 K (m, T) for a Linear's keys (m, T), with the loaded C."""
        return torch.cholesky_solve(keys, self._factors[path])


@editor(
    "memit",
    tries=tries(("rate=1.0", "clamp=0.4"), weight=(0.03, 0.3), rate=(0.2, 1.0), clamp=(0.2, 0.4, 1.5)),
)
class MemitEditor(BandEditor, CovarianceEditor):
    """Spreads a correction over a band of layers, against the weight of the pool's keys."""

    tuning: MemitTuning

    def __init__(self, tuning: MemitTuning) -> None:
        super().__init__(tuning)

    def _change(self, path: str, keys: Tensor, residual: Tensor) -> Tensor:
        return covariance_update(self.weighed(path, keys), keys, residual, self.tuning.weight * len(keys))


@editor(
    "rome",
    tries=tries(
        ("rate=0.25", "decay=0.0001"),
        ("rate=0.25", "clamp=4.0"),
        rate=(0.1, 0.25, 0.5, 2.0),
        clamp=(32.0,),
        decay=(0.1,),
    ),
)
class RomeEditor(CovarianceEditor):
    """Maps the keys of a correction to its values exactly, in one layer."""

    tuning: RomeTuning

    def __init__(self, tuning: RomeTuning) -> None:
        super().__init__(tuning)

    def modules(self, runtime: Any) -> list[str]:
        """Return the FFN output of the edited layer."""
        return super().modules(runtime)[:1]

    def write(self, asked: Sequence[Encoded], work: Work) -> None:
        """Find the value at the FFN output itself, and write it there."""
        (path,) = self.deltas
        value = self._value(path, asked, work)
        if not value.steps:
            return
        taken = self._taken(asked, [path], path, work)
        keys, outputs = (torch.stack([row[side] for row in taken]) for side in (0, 1))
        wanted, mean = outputs[0] + value.delta.double().cpu(), keys.mean(dim=0).T
        ways = self.weighed(path, mean) if self.tuning.adjust else mean
        # The Linear is affine, so its output at the mean key is the mean of its outputs.
        reached, now = (mean, outputs.mean(dim=0)) if self.tuning.consistent else (keys[0].T, outputs[0])
        self._add(path, equality_update(ways, reached, (wanted - now).T))
