"""The hidden states behind one text layer that LiveEdit works on: read for a few inputs, or kept for training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from more_cli.errors import StateError
from more_cli.model.batches import Encoded, Query
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_lab.editors.liveedit.experts import Reps

KEPT = 4 << 30
"""Bytes of hidden states that are kept; those of further samples are read again for each batch."""
TOGETHER = 32
"""Samples that are read together."""


def read(runtime: Runtime, layer: str, samples: Sequence[Encoded]) -> Reps:
    """Return what the base gives a text layer to read for inputs with images."""
    return _reps(runtime, samples, _states(runtime, layer, samples))


class Samples:
    """Inputs with answers, whose hidden states at the input of a text layer are read once.

    Their pixels are not kept: a pass over them begins at that layer.
    """

    def __init__(self, runtime: Runtime, layer: str, inputs: Sequence[tuple[Query, str]]) -> None:
        self._runtime, self._layer, self._inputs = runtime, layer, inputs
        self._kept: dict[int, Tensor] = {}
        self.blind: list[Encoded] = []
        room = KEPT
        for start in range(0, len(inputs), TOGETHER):
            places = range(start, min(start + TOGETHER, len(inputs)))
            encoded = self._encoded(places)
            self.blind += [sample.blind for sample in encoded]
            if room > 0:
                states = _states(runtime, layer, encoded)
                self._kept |= dict(zip(places, states, strict=True))
                room -= sum(state.nbytes for state in states)

    def states(self, places: Sequence[int]) -> list[Tensor]:
        """Return the hidden states (T, d) of some samples."""
        missing = [place for place in places if place not in self._kept]
        found = dict(zip(missing, _states(self._runtime, self._layer, self._encoded(missing)), strict=True))
        return [found[place] if place in found else self._kept[place] for place in places]

    def reps(self, places: Sequence[int]) -> Reps:
        """Return the hidden states of some samples with the parts of their sequences."""
        return _reps(self._runtime, [self.blind[place] for place in places], self.states(places))

    def check(self, resumed: Scored) -> None:
        """Check a pass over the first sample, which began at the layer and had no image, against a whole one.

        Raises:
            StateError: they differ, as where later layers look at the image again.
        """
        with self._runtime.base():
            whole = self._runtime.score(self._runtime.batch(self._encoded([0])))
        if not torch.allclose(resumed.logits.float(), whole.logits.float(), rtol=0.02, atol=0.02):
            raise StateError(f"no pass of this model can begin at `{self._layer}`", "use another --editor")

    def _encoded(self, places: Sequence[int]) -> list[Encoded]:
        return [self._runtime.encode(*self._inputs[place]) for place in places]


def image_places(runtime: Runtime, sample: Encoded) -> Tensor:
    """Return (T,) bool, true at the image's tokens; nowhere in a model whose configuration names no such token."""
    token: int | None = getattr(runtime.model.config, "image_token_id", None)
    return torch.eq(sample.input_ids, -1 if token is None else token)


def _states(runtime: Runtime, layer: str, samples: Sequence[Encoded]) -> list[Tensor]:
    with runtime.base():
        return [found for (found,) in runtime.read(samples, [(layer, "input")])]


def _reps(runtime: Runtime, samples: Sequence[Encoded], states: Sequence[Tensor]) -> Reps:
    shown = [image_places(runtime, sample) for sample in samples]
    if not all(mask.any() for mask in shown):
        raise StateError("it is not known where this model's text layers see an image", "use another --editor")
    return Reps.of(states, shown, [sample.target.start for sample in samples])
