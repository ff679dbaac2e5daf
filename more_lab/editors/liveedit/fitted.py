"""What LiveEdit shares with other editors behind text layers whose networks are trained once, on corrections like its.

A training reads the hidden states of its samples once, and each of its passes begins behind the edited layer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from more_cli.editors.base import FitData
from more_cli.editors.draws import noise
from more_cli.errors import StateError
from more_cli.inputs.edits import Edit
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.model.structure import text_layers
from more_lab.editors.attached import AttachedEditor
from more_lab.editors.fitting import Watch, train
from more_lab.editors.liveedit.losses import inputs_of
from more_lab.editors.liveedit.samples import Samples

Net = TypeVar("Net", bound=nn.Module)


def layers_behind(runtime: Runtime, depths: Sequence[float], title: str) -> list[str]:
    """Return the layer behind that at each depth, a share of the text layers: its input is the other's output.

    Raises:
        StateError: an encoder-decoder, whose text layers see no image, or a model with a single layer.
    """
    layers = text_layers(runtime.model, runtime.backbone)
    if runtime.prompter.decoder_start is not None or len(layers) < 2:
        raise StateError(f"its text layers have no place where {title} could act", "use another --editor")
    return [layers[min(int(depth * len(layers)) + 1, len(layers) - 1)] for depth in depths]


class FittedEditor(AttachedEditor[list[str]], Generic[Net]):
    """An editor that changes the inputs of text layers by trained networks; its place is the paths of these layers."""

    capabilities = frozenset({"fit"})
    tuning: Any
    """With `iterations`, `rate`, `variants` and `seed`."""

    def __init__(self) -> None:
        self._net: Net | None = None
        self._given: Sequence[Any] | None = None

    @abstractmethod
    def first(self, samples: Samples) -> Net:
        """Return networks with their first values, for hidden states as these samples have them."""

    @abstractmethod
    def as_large(self, tensors: dict[str, Tensor]) -> Net:
        """Return networks of the sizes of these weights."""

    @abstractmethod
    def losses(self, samples: Sequence[Samples], seed: int) -> Callable[[int], Tensor]:
        """Return a function that gives the loss on the batch of a number; the samples are those of each layer."""

    @property
    def net(self) -> Net:
        """The trained networks."""
        if self._net is None:
            hint = f"use it through `more run --editor {self.name}`"
            raise StateError(f"editor `{self.name}` has not been fitted", hint)
        return self._net

    def examples(self, edits: Sequence[Edit]) -> Sequence[Edit]:
        """Return the corrections, and then each with other targets of the pool: `variants` of them.

        A pool with few targets would teach the networks these, and not to read a target.
        """
        targets, made = sorted({edit.target for edit in edits}), list(edits)
        for variant in range(self.tuning.variants if len(targets) > 1 else 0):
            for edit, value in zip(edits, noise((self.tuning.seed, variant), len(edits)), strict=True):
                others = [target for target in targets if target != edit.target]
                made.append(replace(edit, target=others[int(value * len(others))]))
        return made

    def fit(self, data: FitData) -> dict[str, Any]:
        """Train the networks on corrections that have an image, both rephrases and an unrelated question."""
        records = [edit for edit in data.edits if inputs_of(edit)]
        pools = self.examples(records), data.watched
        inputs, watched = ([given for edit in pool for given in inputs_of(edit)] for pool in pools)
        if not inputs:
            what = f"no correction to fit editor `{self.name}` on has an image, rephrases and an unrelated question"
            raise StateError(what, "use another --editor or --suite")
        (runtime, layers), tuning = self.working, self.tuning
        with runtime.in_float32():
            read = [[Samples(runtime, layer, pool) for layer in layers] for pool in (inputs, watched)]
            read[0][0].check(self.score(read[0][0], [0], None))
            net = self._net = self.first(read[0][0])
            losses, checks = (self.losses(samples, tuning.seed + n) for n, samples in enumerate(read))
            watch = Watch.of_batches(checks, falls=1) if watched else None
            optimiser = torch.optim.Adam(net.parameters(), tuning.rate)
            facts = train(data, net, optimiser, tuning.iterations, losses, watch=watch)
        net.requires_grad_(False)
        return facts | {"records": len(records)}

    def score(self, samples: Samples, places: Sequence[int], routes: Sequence[Any] | None) -> Scored:
        """Score samples, by their places, under these routes; as the base and without gradients if there are none."""
        self._given = routes or [None] * len(places)
        try:
            batch = self.runtime.batch([samples.blind[place] for place in places])
            return self.runtime.score(batch, record=routes is not None, states=samples.states(places))
        finally:
            self._given = None

    def fitted(self) -> dict[str, Tensor]:
        """Return the weights of the networks."""
        return {} if self._net is None else self._net.state_dict()

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        net = self.as_large(tensors)
        net.load_state_dict(tensors)
        self._net = net.requires_grad_(False)
