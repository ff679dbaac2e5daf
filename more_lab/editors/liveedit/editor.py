"""LiveEdit: one low-rank expert per correction behind one text layer, chosen by what the question asks of its image.

Chen et al., CVPR 2025, "Lifelong Knowledge Editing for Vision Language Models with Low-Rank Mixture-of-Experts", and
the code published with it. A correction is made by one forward pass of networks that were trained before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import outcome, refused, score_edit
from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.taps import Rows, Tap
from more_cli.recipe.tables import Table
from more_lab.editors.liveedit.experts import ExpertNet, Experts, Mixture, similarities, soft_weights
from more_lab.editors.liveedit.fitted import FittedEditor, layers_behind
from more_lab.editors.liveedit.losses import KINDS, Draw, loss_of
from more_lab.editors.liveedit.samples import Samples, read


class LiveEditTuning(Table):
    """The numbers of LiveEdit's networks and of their training; the published ones are for models of 3 to 8 billion
    parameters."""

    depth: float = Field(default=2 / 3, ge=0, lt=1)
    """Depth, as a share of the text layers, after which the experts act; published: layer 21 of 32, 0.66."""
    width: int = Field(default=64, ge=1)
    """Size of a feature; a multiple of `heads`, published 1024."""
    heads: int = Field(default=4, ge=1)
    """Attention heads, published 8; they must divide the model's hidden size as well."""
    queries: int = Field(default=4, ge=1)
    """Learned queries, each for image and prompt."""
    rank: int = Field(default=4, ge=1)
    """Rank of an expert."""
    iterations: int = Field(default=40_000, ge=0)
    """Batches at most, as many as published; training ends where watched edits gain nothing, see `fitting.Watch`."""
    batch: int = Field(default=8, ge=1)
    """Corrections per batch."""
    variants: int = Field(default=3, ge=0)
    """How often each correction is also trained with the target of another one; published 0."""
    rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam; a tenth of it from the first plateau on. Published 1e-4, a tenth after 10,000 batches."""
    seed: int = Field(default=0, ge=0)
    """Seed of the networks' initial values, of the variants and of the batches."""


@editor(
    "liveedit",
    tries=tries(rate=(0.0003, 0.003), rank=(2, 8), depth=(0.5, 0.8), width=(32, 128)),
)
class LiveEdit(FittedEditor[ExpertNet]):
    """A stored expert per correction; what it adds to the hidden states of a question is decided once, from the prompt.

    Questions without an image never meet an expert, so answers to text alone cannot change.
    """

    grows: ClassVar[bool] = True
    tuning: LiveEditTuning

    def __init__(self, tuning: LiveEditTuning) -> None:
        super().__init__()
        self.tuning = tuning
        # Always in the order of their ids, so that the order of the corrections changes no bit.
        self._ids: list[str] = []
        self._experts: dict[str, Tensor] = {}

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Let the experts act behind their layer; on leaving, the model is restored."""
        layers = layers_behind(runtime, [self.tuning.depth], "LiveEdit")
        with self.working_on(runtime, layers), runtime.attached([Tap(layers[0], self._act, "input")], self):
            yield

    def routes(self, prompts: Sequence[Encoded]) -> Sequence[Mixture | None]:
        """Return the experts that act on each prompt: those whose image features come closer than the sentinel's."""
        if self._given is not None:
            return self._given
        shown = [place for place, prompt in enumerate(prompts) if prompt.images and self._ids]
        routes: list[Mixture | None] = [None] * len(prompts)
        with torch.no_grad():
            if shown:
                for place, mixture in zip(shown, self._mixtures([prompts[place] for place in shown]), strict=True):
                    routes[place] = mixture
        return routes

    def _mixtures(self, prompts: Sequence[Encoded]) -> list[Mixture | None]:
        net, (runtime, (layer,)) = self.net, self.working
        reps = read(runtime, layer, prompts)
        net.to(reps.states.device)
        asked, known = net.of_input(reps), {name: value.to(reps.states.device) for name, value in self._experts.items()}
        passed = similarities(asked.vision, known["vision"]) > net.sentinel_scores(reps, asked.vision)
        scores = similarities(asked.text, known["text"])
        return [
            Mixture(soft_weights(score[mask]), known["keys"][mask], known["values"][mask]) if mask.any() else None
            for score, mask in zip(scores, passed, strict=True)
        ]

    def _act(self, hidden: Tensor, rows: Rows) -> Tensor:
        if not rows.routed:
            return hidden
        changed = list(hidden.unbind(0))
        for row in rows.routed:  # in float32, the precision of the networks
            changed[row] = (hidden[row].float() + self.net.residual(hidden[row].float(), rows.routes[row])).to(
                hidden.dtype
            )
        return torch.stack(changed)

    def losses(self, samples: Sequence[Samples], seed: int) -> Callable[[int], Tensor]:
        """Return a function that gives the loss on the batch of a number."""
        (own,) = samples
        count, score = len(own.blind) // KINDS, partial(self.score, own)

        def loss(number: int) -> Tensor:
            return loss_of(self.net, Draw.of(count, self.tuning.batch, seed, number), own.reps, score)

        return loss

    def first(self, samples: Samples) -> ExpertNet:
        """Return networks with their first values, where the samples are."""
        reps = samples.reps([0])
        return self._fresh(reps.states.shape[-1], int(reps.vision.sum())).to(reps.states.device)

    def as_large(self, tensors: dict[str, Tensor]) -> ExpertNet:
        image, hidden = tensors["sentinel"].shape
        return self._fresh(hidden, image)

    def _fresh(self, hidden: int, image: int) -> ExpertNet:
        tuning = self.tuning
        if tuning.width % tuning.heads or hidden % tuning.heads:
            hint = f"choose heads that divide {tuning.width} and {hidden}"
            raise StateError(f"{tuning.heads} heads do not divide the sizes of `liveedit`", hint)
        sizes = {"width": tuning.width, "heads": tuning.heads, "queries": tuning.queries, "rank": tuning.rank}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(tuning.seed)
            return ExpertNet(hidden, image, **sizes)

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Make an expert from one correction and store it; one without an image is refused."""
        (runtime, (layer,)), net = self.working, self.net
        encoded = runtime.encode(request.query, request.target)
        first = score_edit(runtime, encoded)
        if not encoded.images:
            reason = "LiveEdit finds experts by the image, and this correction has none"
            return refused(first, reason, passes=1, cost=1 / 3)
        with torch.no_grad():
            reps = read(runtime, layer, [encoded])
            made = net.to(reps.states.device).experts(reps)
        if not all(bool(torch.isfinite(value).all()) for value in (made.keys, made.values)):
            return refused(first, "an expert is not finite", passes=2, cost=2 / 3)
        self._store(request.id, made)
        return outcome(runtime, first, score_edit(runtime, encoded), writes=1, passes=3, cost=1.0)

    def _store(self, name: str, made: Experts) -> None:
        self.forget(name)
        added = {"vision": made.features.vision, "text": made.features.text, "keys": made.keys, "values": made.values}
        ids = sorted([*self._ids, name])
        place = ids.index(name)
        for part, new in added.items():
            old = self._experts.get(part, new[:0].cpu())
            self._experts[part] = torch.cat([old[:place], new.cpu(), old[place:]])
        self._ids = ids

    def forget(self, name: str) -> None:
        """Delete one correction's expert, if it is there: exactly as if it had never been made."""
        if name not in self._ids:
            return
        others = [place for place, other in enumerate(self._ids) if other != name]
        self._ids = [self._ids[place] for place in others]
        self._experts = {part: value[others] for part, value in self._experts.items()} if others else {}

    def reset(self) -> None:
        """Forget every expert; the networks stay."""
        assert self._attached is None, "detach the editor first"
        self._ids, self._experts = [], {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the experts and the features of their corrections, in the order of the ids."""
        return dict(self._experts)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        assert self._attached is None, "detach the editor first"
        self._experts = dict(tensors)

    def notes(self) -> dict[str, Any]:
        """Return the ids of the corrections."""
        return {"ids": self._ids}

    def load_notes(self, notes: Mapping[str, Any]) -> None:
        self._ids = list(notes["ids"])
