"""What locate-then-edit methods share: find a value, read the keys, and write the map from these to that in one step.

The data have no subject, which these methods were made for. By default the keys are those of all positions that predict
the target, each with a value of its own, found jointly; `last_prompt` takes the last token of the prompt alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import EditContext, EditOutcome, EditRequest, FitData, Footprint
from more_cli.errors import StateError
from more_cli.model.batches import Encoded, Query, answer_positions
from more_cli.model.runtime import Runtime
from more_cli.model.structure import ffn_outs, text_layers
from more_lab.editors.locate.pool import Material, drawn, material, second_moments
from more_lab.editors.locate.values import Value, ValueTuning, find_value
from more_lab.editors.weights import WeightEditor
from more_lab.editors.work import Work

_FITTED = ("first", "last", "contexts", "neutral", "records", "seed")


class LocateTuning(ValueTuning):
    """The numbers of a locate-then-edit method."""

    first: float = Field(default=0.0, ge=0, lt=1)
    """Where the edited text layers begin, as a share of the depth."""
    last: float = Field(default=1.0, gt=0, le=1)
    """Where they end."""
    positions: Literal["answer", "last_prompt"] = "answer"
    """Tokens whose keys are written: those that predict the target, or the last one of the prompt."""
    contexts: int = Field(default=0, ge=0)
    """Number of texts of the pool that the question is also asked after; a key is the mean over all of them."""
    neutral: int = Field(default=3, ge=0)
    """Questions of the pool on which the next token should stay: one with an image, the others without."""
    records: int = Field(default=200, ge=1)
    """Corrections of the pool, drawn from it, whose keys are read; each has about a hundred with its questions."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draws from the pool."""


def edited_layers(runtime: Runtime, tuning: LocateTuning) -> tuple[list[str], list[str]]:
    """Return the paths of the edited text layers, and of the Linear that ends the feed-forward part of each.

    Raises:
        StateError: one of them has none, or several.
    """
    backbone = runtime.backbone
    layers = text_layers(runtime.model, backbone)
    start = int(tuning.first * len(layers))
    chosen = layers[start : max(start + 1, math.ceil(tuning.last * len(layers)))]
    paths = [ffn_outs(runtime.model, backbone, [layer]) for layer in chosen]
    if any(len(found) != 1 for found in paths):
        raise StateError("a text layer has no single FFN output that can be written", "use another --editor")
    return chosen, [path for (path,) in paths]


class LocateEditor(WeightEditor):
    """An editor that writes keys and values into FFN outputs, with second moments of the calibration pool's keys."""

    capabilities = frozenset({"fit"})

    def __init__(self, tuning: LocateTuning) -> None:
        super().__init__()
        self.tuning = tuning
        self._moments: dict[str, Tensor] = {}
        self._material = Material((), ())
        self._asked: list[Encoded] = []

    def modules(self, runtime: Runtime) -> list[str]:
        """Return the FFN outputs of the edited layers."""
        return edited_layers(runtime, self.tuning)[1]

    def fit(self, data: FitData) -> dict[str, Any]:
        """Measure the second moments of the pool's keys, and return facts about them."""
        tuning = self.tuning
        read = replace(data, edits=drawn(data.edits, tuning.records, tuning.seed))
        self._moments, tokens, records = second_moments(self.runtime, list(self.deltas), read)
        self._material = material(self.runtime, data.edits, tuning.contexts, tuning.neutral, tuning.seed)
        return {"records": records, "keys": tokens, "source": "calibration pool, not Wikipedia"} | self._prepare()

    def fitted(self) -> dict[str, Tensor]:
        """Return the second moments and what was drawn from the pool."""
        return {f"second.{path}": value for path, value in self._moments.items()} | self._material.tensors()

    def load_fitted(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors of `fitted`."""
        assert self._attached is None, "detach the editor first"
        head = "second."
        self._moments = {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}
        self._material = Material.of(tensors)
        self._prepare()

    @abstractmethod
    def _prepare(self) -> dict[str, Any]:
        """Derive from the second moments what an edit needs, and return facts about it."""

    def fit_constants(self) -> dict[str, Any]:
        """Return what decides which keys are read and what is drawn."""
        return {name: getattr(self.tuning, name) for name in _FITTED}

    def constants(self) -> dict[str, Any]:
        """Return the editor's numbers."""
        return self.tuning.model_dump(mode="json")

    def footprint(self) -> Footprint:
        """Return the bytes of what is written, and the number of the second moments' entries."""
        found = super().footprint()
        return Footprint(found.fixed, found.growing, sum(value.numel() for value in self._moments.values()))

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Write one correction, asked as it is and behind the texts of the pool.

        Raises:
            StateError: the editor was not fitted.
        """
        if not self._moments:
            raise StateError(f"editor `{self.name}` was not fitted", "use it in `more eval` or `more compare`")
        query, runtime = request.query, self.runtime
        plain = runtime.encode(query, request.target)
        behind = [Query(query.images, f"{text} {query.question}") for text in self._material.contexts]
        others = (runtime.encode(other, request.target) for other in behind)
        # A tokenizer may join a target's first letters with what stands before them.
        self._asked = [plain, *(other for other in others if other.target_ids == plain.target_ids)]
        return super().edit(request, context)

    def write_together(self, edits: Sequence[Encoded], anchors: Sequence[Anchor], work: Work) -> None:
        """Write the edits one after the other, asked as they are; the anchors are in the second moments."""
        for encoded in edits:
            self._asked = [encoded]
            self.write(encoded, work)

    def protect(self, anchors: Sequence[Anchor]) -> None:
        """Let the anchors' keys count as much as all of the pool's in the second moments."""
        paths = list(self._moments)
        keys = self.runtime.read([anchor.encoded for anchor in anchors], [(path, "input") for path in paths])
        for place, path in enumerate(paths):
            own = torch.cat([row[place] for row in keys]).double().cpu()
            self._moments[path] = (self._moments[path] + own.T @ own / len(own)) / 2
        self._prepare()

    def _value(self, module: str, work: Work) -> Value:
        """Find what a module should put out."""
        last_prompt = self.tuning.positions == "last_prompt"
        neutral = self._material.neutral
        value = find_value(self.runtime, module, self._asked, neutral, self.tuning, work, last_prompt=last_prompt)
        work.writes += value.steps
        return value

    def _taken(self, paths: Sequence[str], module: str, work: Work) -> list[list[Tensor]]:
        """Return, for each text the edit was asked behind, the keys of the Linears and the output of a module.

        Each (T, ...) float64: the closed forms need it.
        """
        work.forward(len(self._asked))
        rows = self.runtime.read(self._asked, [*((path, "input") for path in paths), (module, "output")])
        found = []
        for sequence, row in zip(self._asked, rows, strict=True):
            places = answer_positions(sequence.answering[1])
            places = slice(places.start, places.start + 1) if self.tuning.positions == "last_prompt" else places
            found.append([value[places].double().cpu() for value in row])
        return found

    def _add(self, path: str, change: Tensor) -> None:
        """Add to Delta W of a Linear; it is kept in float32, as every editor's."""
        delta = self.deltas[path]
        delta.value = delta.value + change.to(delta.value)


class BandEditor(LocateEditor):
    """Writes into several layers, each the part of what the last of them still lacks that falls to it.

    Source: Meng et al. 2023 (MEMIT), algorithm 1.
    """

    @abstractmethod
    def _change(self, path: str, keys: Tensor, residual: Tensor) -> Tensor:
        """Return the change (d, m) of a Linear for its keys (m, T) and wanted changes of its outputs (d, T)."""

    def write(self, encoded: Encoded, work: Work) -> None:
        """Find the value at the last edited layer, and write it into all of them, the first one first."""
        layers, paths = edited_layers(self.runtime, self.tuning)
        value = self._value(layers[-1], work)
        if not value.steps:
            return
        wanted = self._taken(paths[:1], layers[-1], work)[0][1] + value.delta.double().cpu()
        for place, path in enumerate(paths):
            taken = self._taken([path], layers[-1], work)
            residual = (wanted - taken[0][1]) / (len(paths) - place)
            self._add(path, self._change(path, mean_key([keys for keys, _ in taken]).T, residual.T))


def mean_key(keys: Sequence[Tensor]) -> Tensor:
    """Return the mean of the plain key and of the mean of the others: each of the two kinds counts half."""
    plain, others = keys[0], keys[1:]
    return (plain + torch.stack(list(others)).mean(dim=0)) / 2 if others else plain
