"""The usual alternative: a PEFT LoRA on every Linear of the text model and the projector, trained with AdamW."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import nn

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import outcome, score_edit
from more_cli.editors.registry import editor, tries
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_lab.editors.trained import Adapter, Trained
from more_lab.editors.training import TrainedEditor, Tuning, descend


class LoraTuning(Tuning):
    """The numbers of a LoRA and its training on one correction."""

    steps: int = Field(default=10, ge=1)
    """Steps of AdamW for one correction, at most."""
    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    """The branch is scaled by alpha / rank."""
    seed: int = Field(default=0, ge=0)
    """Seed of A's initial values, and of the order in which `lora-all` trains."""


class LoraAllTuning(LoraTuning):
    """The numbers of a LoRA that is trained again on all corrections."""

    steps: int = Field(default=20, ge=1)
    """Epochs over all corrections."""
    stop: float = Field(default=0.0, ge=0)
    batch: int = Field(default=8, ge=1)
    """Corrections per step."""


@editor(
    "lora",
    tries=tries(("rate=0.003", "steps=5"), rate=(0.003, 0.0003), steps=(5, 20), rank=(2, 4, 16)),
)
class LoraEditor(TrainedEditor):
    """One adapter, trained a few steps on each correction as it comes."""

    tuning: LoraTuning

    def __init__(self, tuning: LoraTuning) -> None:
        super().__init__(tuning)

    def parts(self, runtime: Runtime) -> list[Trained]:
        """Return an adapter for every Linear of the text layers and the projector."""
        model = runtime.model
        roots = (*text_layers(model, runtime.backbone), *runtime.backbone.projector)
        inside = (found for root in roots for found in model.get_submodule(root).named_modules(prefix=root))
        linears = [name for name, module in inside if isinstance(module, nn.Linear) and "router" not in name.split(".")]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.tuning.seed)
            return [
                Adapter(path, model.get_submodule(path.rpartition(".")[0]), self.tuning.rank, self.tuning.alpha)
                for path in linears
            ]


@editor(
    "lora-all",
    tries=tries(("rate=0.003", "steps=40"), rate=(0.003, 0.0003, 0.01), steps=(10, 40), rank=(4, 16)),
)
class LoraAllEditor(LoraEditor):
    """An adapter that is trained from its initial values on all corrections so far, whenever the model is asked.

    Time and memory grow with the number of corrections.
    """

    tuning: LoraAllTuning

    def __init__(self, tuning: LoraAllTuning) -> None:
        super().__init__(tuning)
        self._number = 0
        self._past: dict[int, Encoded] = {}
        self._trained = 0

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Store a correction; `catch_up` trains on it."""
        runtime, _ = self.working
        for number in range(1, context.number):
            if number in context.past and number not in self._past:
                self._past[number] = self._encoded(context.recall(number))
        self._past = {number: encoded for number, encoded in self._past.items() if number in context.past}
        self._past[context.number] = self._encoded(request)
        self._number = context.number
        score = score_edit(runtime, self._past[context.number])
        return outcome(runtime, score, score)

    def catch_up(self) -> float:
        """Train from the initial values on all corrections that stand; return the samples sent forward and backward."""
        if self._trained == self._number:
            return 0.0
        runtime, parts = self.working
        for part in parts:
            part.restart()
        samples, shuffle = list(self._past.values()), random.Random(self.tuning.seed)
        batches = []
        for _ in range(self.tuning.steps):
            order = shuffle.sample(samples, len(samples))
            batches += [order[start : start + self.tuning.batch] for start in range(0, len(order), self.tuning.batch)]
        descend(runtime, parts, batches, self.tuning)
        self._trained = self._number
        return float(sum(map(len, batches)))

    def reset(self) -> None:
        super().reset()
        self._number, self._trained, self._past = 0, 0, {}

    def notes(self) -> dict[str, Any]:
        """Return the number of the last correction, and of the last one that the adapter was trained on."""
        return {"number": self._number, "trained": self._trained}

    def load_notes(self, notes: Mapping[str, Any]) -> None:
        """Restore what `notes` returned; the corrections are fetched when they are needed."""
        self._number, self._trained = notes["number"], notes["trained"]

    def _encoded(self, request: EditRequest) -> Encoded:
        return self.working[0].encode(request.query, request.target)
