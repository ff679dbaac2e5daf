"""AlphaEdit: writes that leave the null space's complement alone, and that count the keys of all earlier edits.

Source: Fang et al. 2025, "AlphaEdit: Null-Space Constrained Knowledge Editing for Language Models". Its text-only
method is carried over as `base` says; no code of a multimodal version is public. Unlike there, the question is asked
without generated texts before it unless `contexts` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import Editor, FitData, Footprint
from more_cli.editors.registry import EditorOptions, editor, entry_of, tries
from more_cli.model.batches import Encoded
from more_lab.editors.locate.base import BandEditor, LocateTuning, edited_layers, mean_key
from more_lab.editors.locate.solve import leading, null_space_update, null_space_update_low_rank
from more_lab.editors.work import Work

PAST = ".past"
"""Ends the names of what is kept of earlier edits' keys."""
LEAST_ENERGY = 1e-4
"""Smallest unit of `ridge`: the mean of |P k|^2 counts as at least this share of the mean of |k|^2."""


class AlphaEditTuning(LocateTuning):
    """The numbers of AlphaEdit; the edited layers are the last 7 of 32."""

    first: float = Field(default=25 / 32, ge=0, lt=1)
    """Where the edited text layers begin, as a share of the depth."""
    rate: float = Field(default=0.2, gt=0)
    """Learning rate, in root mean squares of the output it is added to; at the last layers few steps reach the value,
    and large ones overshoot."""
    share: float = Field(default=0.99, gt=0, le=1)
    """Share of the trace of the keys' second moment that is protected; the null space holds the rest."""
    apart: bool = True
    """Let the keys of texts alone count as much as those of questions about an image, of which there are many more."""
    threshold: float | None = Field(default=None, gt=0)
    """In place of `share`, the greatest eigenvalue in the null space; printed as 0.02, which belongs to one model's
    activations."""
    ridge: float = Field(default=0.01, gt=0)
    """Weight of |Delta|^2, in mean squared norms |P k|^2 of the pool's keys; the published 10 is absolute."""
    solve: Literal["full", "low_rank"] = "full"
    """Keep the sum of the earlier edits' k k^T, a constant size, or these keys themselves: equal results, and a small
    system as long as there are fewer keys than inputs."""


ALPHA = tries(share=(0.5, 0.7, 0.9, 0.999), ridge=(0.001, 0.1), rate=(0.1, 0.5))


@editor("alphaedit", tries=ALPHA)
class AlphaEditor(BandEditor):
    """Writes within the null space of the calibration pool's keys."""

    tuning: AlphaEditTuning

    def __init__(self, tuning: AlphaEditTuning) -> None:
        super().__init__(tuning)
        self._eigen: dict[str, tuple[Tensor, Tensor]] = {}
        self._protected: dict[str, Tensor] = {}
        self._ridge: dict[str, float] = {}
        self._past: dict[str, Tensor] = {}

    def fitted(self) -> dict[str, Tensor]:
        """Return the second moments with their eigenvalues and eigenvectors."""
        found = super().fitted()
        for path, (values, vectors) in self._eigen.items():
            found |= {f"values.{path}": values, f"vectors.{path}": vectors}
        return found

    def load_fitted(self, tensors: Mapping[str, Tensor]) -> None:
        paths = [name.removeprefix("values.") for name in tensors if name.startswith("values.")]
        self._eigen = {path: (tensors[f"values.{path}"], tensors[f"vectors.{path}"]) for path in paths}
        super().load_fitted(tensors)

    def fit(self, data: FitData) -> dict[str, Any]:
        """Measure the second moments of the pool's keys, and return how large each null space is."""
        self._eigen = {}
        return super().fit(data)

    def _prepare(self) -> dict[str, Any]:
        free = {}
        for path in self._keys.paths:
            if path not in self._eigen:
                moment = self._keys.halves(path) if self.tuning.apart else self._keys.together(path)
                values, vectors = torch.linalg.eigh(moment)
                self._eigen[path] = values, vectors
            values, vectors = self._eigen[path]
            V = leading(values, vectors, self.tuning.share, self.tuning.threshold)
            null = len(values) - V.shape[1]
            # The mean of |P k|^2 is the trace of P C P: the sum of the null space's eigenvalues. It is 0 where the
            # pool has fewer keys than the Linear inputs.
            energy = max(float(values[:null].sum()), LEAST_ENERGY * float(values.sum()))
            self._protected[path], self._ridge[path] = V, self.tuning.ridge * energy
            free[path] = round(null / len(values), 4)
        return {"null_space": free}

    def fit_constants(self) -> dict[str, Any]:
        """Return what decides which keys are read, and how they count."""
        return super().fit_constants() | {"apart": self.tuning.apart}

    def protect(self, anchors: Sequence[Anchor]) -> None:
        """Take the anchors' keys into the second moments, which have other eigenvalues then."""
        self._eigen = {}
        super().protect(anchors)

    def snapshot(self) -> Any:
        """Return every Delta W, and what is kept of earlier edits' keys."""
        return super().snapshot(), dict(self._past)

    def restore(self, before: Any) -> None:
        """Go back to these: a refused edit's keys are not kept either."""
        values, self._past = before
        super().restore(values)

    def write_batch(self, edits: Sequence[Sequence[Encoded]], work: Work) -> None:
        """Write corrections, and then keep the keys that they have with the new weights."""
        super().write_batch(edits, work)
        layers, paths = edited_layers(self.runtime, self.tuning)
        taken = self._taken_of(edits, paths, layers[-1], work)
        for place, path in enumerate(paths):
            keys = torch.cat([mean_key([row[place] for row in rows]) for rows in taken]).T
            past = self._kept(path, len(keys))
            full = self.tuning.solve == "full"
            self._past[path] = past + keys @ keys.T if full else torch.cat([past, keys], dim=1)

    def _change(self, path: str, keys: Tensor, residual: Tensor) -> Tensor:
        V, past = self._protected[path], self._kept(path, len(keys))
        update = null_space_update if self.tuning.solve == "full" else null_space_update_low_rank
        return update(V, past, keys, residual, self._ridge[path])

    def _kept(self, path: str, inputs: int) -> Tensor:
        """Return what is kept of earlier edits' keys: the sum of k k^T, (m, m), or themselves, (m, n)."""
        empty = torch.zeros(inputs, inputs if self.tuning.solve == "full" else 0, dtype=torch.float64)
        return self._past.get(path, empty)

    def footprint(self) -> Footprint:
        """Return the bytes of its state; keys that are kept themselves grow with the edits."""
        found, past = super().footprint(), sum(value.nbytes for value in self._past.values())
        if self.tuning.solve == "full":
            return found
        return Footprint(found.fixed - past, past, found.fitted)

    def reset(self) -> None:
        super().reset()
        self._past = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return every Delta W, and what is kept of the edits' keys."""
        written = {name: value for name, value in super().state_dict().items() if not name.endswith(PAST)}
        return written | {f"{path}{PAST}": value for path, value in self._past.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict(tensors)
        self._past = {name.removesuffix(PAST): value for name, value in tensors.items() if name.endswith(PAST)}


@editor("alphaedit:last_prompt", tries=ALPHA)
def at_last_prompt(options: EditorOptions) -> Editor:
    """Make AlphaEdit with its published positions."""
    return entry_of("alphaedit").make(options.with_settings("positions=last_prompt"))
