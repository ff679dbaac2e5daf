"""KE: a network, fitted once, reads a request and gates the gradient of the last text layers' FFNs.

De Cao et al., "Editing Factual Knowledge in Language Models" (EMNLP 2021). For vision-language models MMEdit names it
beside MEND, whose training, objective and edited weights it shares here: what differs is the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.outcome import score_edit
from more_cli.editors.registry import editor, tries
from more_cli.model.batches import Encoded
from more_cli.model.structure import text_layers
from more_lab.editors.ke.net import KeNet
from more_lab.editors.mend.editor import Factors, MendEditor, MendTuning
from more_lab.editors.work import Work


class KeTuning(MendTuning):
    """The numbers of KE, beside those that it shares with MEND; `rank` has no meaning here."""

    width: int = Field(default=128, ge=1)
    """Hidden size of the LSTM, in one direction."""
    alpha: float = -0.02
    """First size of every update, in norms of its weight; below zero it descends the loss."""
    alpha_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of these sizes."""
    updates: int = Field(default=1, ge=1)
    """Updates of one edit at most; further ones are added, each of a new gradient, until the answer is right."""


@editor(
    "ke",
    tries=tries(
        ("rate=0.00003", "alpha_rate=0.0003", "alpha=-0.01"),
        ("rate=0.0003", "alpha_rate=0.003"),
        ("objective=all", "edit_weight=1.0"),
        edit_weight=(0.03, 0.3),
        layers=(2, 4),
        alpha=(-0.05,),
    ),
)
class KeEditor(MendEditor):
    """Writes gradients of an edit, one by default, gated by what the fitted network reads in the request."""

    tuning: KeTuning

    def __init__(self, tuning: KeTuning) -> None:
        super().__init__(tuning)
        self._read: list[Tensor] = []

    def fresh(self) -> Any:
        """Return the network with its first values for the attached model."""
        weights = [self.runtime.model.get_submodule(path).weight for path in self.deltas]
        shapes = [(int(weight.shape[0]), int(weight.shape[1])) for weight in weights]
        hidden = int(self.runtime.model.config.get_text_config(decoder=True).hidden_size)
        norms = [float(weight.detach().float().norm()) for weight in weights]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.tuning.seed)
            return KeNet(shapes, norms, hidden, self.tuning.width, self.tuning.alpha).to(self.runtime.device)

    def factors(self, edits: Sequence[Encoded], anchors: Sequence[Anchor] = ()) -> list[Factors]:
        """Return the factors of every weight's gradient, and read the requests, at the weights as they are."""
        first = text_layers(self.runtime.model, self.runtime.backbone)[0]
        rows = self.runtime.read(edits, [(first, "input")])
        # Scaled: hidden states at the first layer are small in some families.
        self._read = [row / row.float().square().mean().sqrt().clamp_min(1e-12) for (row,) in rows]
        return super().factors(edits, anchors)

    def write(self, asked: Sequence[Encoded], work: Work) -> None:
        """Add one update, and further ones until the model answers right or has had `updates` of them."""
        super().write(asked, work)
        for _ in range(self.tuning.updates - 1):
            work.forward()
            if score_edit(self.runtime, asked[0]).right:
                return
            super().write(asked, work)

    def fit_constants(self) -> dict[str, Any]:
        """Return all numbers but that of updates: the network is trained on one."""
        return {name: value for name, value in self.constants().items() if name != "updates"}

    def watch(self, net: Any, factors: Iterable[Factors]) -> None:
        """Count nothing: a gradient is scaled by its own norm."""

    def updates(self, net: Any, factors: Iterable[Factors]) -> list[Tensor]:
        """Return an update per weight, (d_out, d_in), for the mean condition of the requests that were read last."""
        device = net.alpha.device
        h = torch.stack([net.condition(rows.float().to(device)) for rows in self._read]).mean(dim=0)
        return [
            net.update(place, h, inputs.float().to(device), gradients.float().to(device))
            for place, (inputs, gradients) in enumerate(factors)
        ]
