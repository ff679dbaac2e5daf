"""GRACE: a codebook at one FFN output that replaces its output on prompts near an edited one.

Hartvigsen et al., "Aging with GRACE: Lifelong Model Editing with Discrete Key-Value Adaptors" (2023). What differs from
the published code is said where it happens.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.editors.draws import noise, pick
from more_cli.editors.outcome import EditScore
from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.model.batches import Encoded
from more_cli.model.taps import Rows, Tap
from more_lab.editors.grace.codebook import Codebook
from more_lab.editors.routed import RoutedEditor, RoutedTuning
from more_lab.editors.work import Work

Replace = Literal["last", "prompt", "all"]
PROMPTS = 128
"""Prompts of the pool, at most, whose keys are compared by a fit."""


class GraceTuning(RoutedTuning):
    """The numbers of GRACE."""

    depth: float = Field(default=0.57, ge=0, lt=1)
    """The text layer whose FFN output is replaced, as a share of the layers below it."""
    steps: int = Field(default=100, ge=1)
    """Steps of Adam for one value, at most."""
    rate: float = Field(default=1.0, gt=0)
    """Learning rate of Adam, in units of the root mean square of the Linear's outputs."""
    stop: float = Field(default=0.01, ge=0)
    """Mean NLL in nats per token; below it the training ends without another step."""
    quantile: float = Field(default=0.1, gt=0, lt=1)
    """First radius: this quantile of the distances between the keys of different prompts of the fit pool."""
    replace: Replace = "prompt"
    """Tokens whose output is replaced: the prompt's last one, all of the prompt, or those of the answer as well."""
    start: Literal["warm", "cold"] = "warm"
    """A value starts from the output that it replaces, or from uniform draws."""
    seed: int = Field(default=0, ge=0)
    """Seed of cold starts, and of the choice of prompts."""


@editor(
    "grace",
    tries=tries(rate=(0.3, 3.0), quantile=(0.03, 0.3), replace=("last", "all"), depth=(0.45, 0.7)),
)
class GraceEditor(RoutedEditor):
    """GRACE. The key is the Linear's input at the last token of the prompt.

    The published code finds that token with the labels; here it is the prompt's end, the same for every target.
    """

    tuning: GraceTuning

    def __init__(self, tuning: GraceTuning) -> None:
        super().__init__(tuning)
        self.codebook = Codebook()
        self._radius, self._unit = torch.zeros(()), torch.ones(())

    @property
    def empty(self) -> bool:
        """Whether the codebook is."""
        return not len(self.codebook)

    def taps(self, path: str) -> list[Tap]:
        """Return the part that puts a value in place of the Linear's output."""
        return [Tap(path, self._replaced)]

    def route(self, inputs: Tensor) -> int | None:
        """Return the entry whose ball holds the prompt's key."""
        return self.codebook.find(inputs[-1].cpu())

    def _replaced(self, hidden: Tensor, rows: Rows) -> Tensor:
        places = {"last": rows.last, "prompt": rows.prompt, "all": torch.ones_like(rows.prompt)}[self.tuning.replace]
        if not rows.routed:
            return hidden
        found = hidden.clone()
        for row in rows.routed:
            value = self.codebook.values[rows.routes[row]].to(hidden)
            found[row] = torch.where(places[row, :, None].to(hidden.device), value, hidden[row])
        return found

    def fit(self, data: FitData) -> dict[str, Any]:
        """Measure the first radius and the size of the Linear's outputs on prompts of the pool.

        Published constants (radius 1, rate 1) hold for one model's activations; these two follow the model's own.
        """
        chosen = pick(len(data.edits), min(PROMPTS, len(data.edits)), self.tuning.seed)
        prompts = [self.runtime.encode(EditRequest.of(data.edits[place]).query) for place in chosen]
        with self.runtime.base():
            read = self.runtime.read(prompts, self.places)
        keys, outputs = (torch.stack([row[side][-1] for row in read]) for side in (0, 1))
        # float64: two keys of one image are near each other, and far from zero.
        distances = torch.pdist(keys.double())
        if not bool((distances > 0).any()):
            raise StateError("the prompts of the pool do not differ: there is no radius", "use another --suite")
        self._radius = distances[distances > 0].quantile(self.tuning.quantile).float().cpu()
        self._unit = outputs.square().mean(dim=1).sqrt().median().cpu()
        return {"radius": float(self._radius), "unit": float(self._unit), "prompts": len(prompts)}

    def fit_constants(self) -> dict[str, Any]:
        return self.tuning.model_dump(mode="json", include={"depth", "quantile", "seed"})

    def fitted(self) -> dict[str, Tensor]:
        """Return the first radius and the unit of the rate."""
        return {"radius": self._radius, "unit": self._unit}

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        self._radius, self._unit = tensors["radius"], tensors["unit"]

    def learn(self, encoded: Encoded, first: EditScore, context: EditContext, work: Work) -> bool:
        """Find or make the entry for a prompt, and train its value; an edit that is right is left, as published."""
        if first.right:
            return True
        with self.runtime.base():
            (inputs, outputs), *_ = self.runtime.read([encoded.prompt], self.places)
        work.forward()
        start, label = self._first(outputs[-1].cpu(), context.number), tuple(encoded.target_ids)
        entry = self.codebook.place(inputs[-1].cpu(), start, label, float(self._radius))
        with self.forced(entry):
            return self._train(entry, encoded, work)

    def _first(self, output: Tensor, number: int) -> Tensor:
        if self.tuning.start == "warm":
            return output
        drawn = torch.from_numpy(noise((self.tuning.seed, number), len(output)))
        return (float(self._unit) * drawn).to(output)

    def _train(self, entry: int, encoded: Encoded, work: Work) -> bool:
        """Train one value with an Adam of its own, without weight decay; every other value stays as it is.

        The published code makes all its steps; this one ends when the loss is low.
        """
        values = self.codebook.values
        value = values[entry] = values[entry].detach().clone().requires_grad_()
        optimiser, loss = torch.optim.Adam([value], self.tuning.rate * float(self._unit)), 0.0
        for _ in range(self.tuning.steps):
            objective = self.runtime.score(self.runtime.batch([encoded]), record=True).nll().mean()
            loss = float(objective.detach())
            if loss < self.tuning.stop or not math.isfinite(loss):
                work.forward()
                break
            optimiser.zero_grad(set_to_none=True)
            self.runtime.backward(objective)
            assert value.grad is not None
            value.grad /= self.runtime.loss_scale
            optimiser.step()
            work.both()
            work.writes += 1
        values[entry] = value.detach()
        return math.isfinite(loss) and bool(torch.isfinite(values[entry]).all())

    def reset(self) -> None:
        assert self._attached is None, "detach the editor first"
        self.codebook = Codebook()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the codebook."""
        return self.codebook.state()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        self.codebook = Codebook.of(tensors)
