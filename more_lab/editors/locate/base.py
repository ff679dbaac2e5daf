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
from more_cli.editors.base import EditRequest, FitData, Footprint
from more_cli.errors import StateError
from more_cli.model.batches import Encoded, answer_positions
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_lab.editors.locate.pool import Keys, Material, drawn, keys_of, material, pool_keys
from more_lab.editors.locate.values import Value, ValueTuning, find_value
from more_lab.editors.modules import ffn_outs
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
    tuning: LocateTuning

    def __init__(self, tuning: LocateTuning) -> None:
        super().__init__()
        self.tuning = tuning
        self._keys = Keys()
        self._material = Material((), ())

    def modules(self, runtime: Runtime) -> list[str]:
        """Return the FFN outputs of the edited layers."""
        return edited_layers(runtime, self.tuning)[1]

    def fit(self, data: FitData) -> dict[str, Any]:
        """Measure the second moments of the pool's keys, and return facts about them."""
        tuning = self.tuning
        read = replace(data, edits=drawn(data.edits, tuning.records, tuning.seed))
        self._keys, records = pool_keys(self.runtime, list(self.deltas), read)
        self._material = material(self.runtime, data.edits, tuning.contexts, tuning.neutral, tuning.seed)
        facts = {"records": records, "keys": self._keys.tokens, "source": "calibration pool, not Wikipedia"}
        return facts | self._prepare()

    def fitted(self) -> dict[str, Tensor]:
        """Return the second moments and what was drawn from the pool."""
        return self._keys.tensors() | self._material.tensors()

    def load_fitted(self, tensors: Mapping[str, Tensor]) -> None:
        assert self._attached is None, "detach the editor first"
        self._keys = Keys.of(tensors)
        self._material = Material.of(tensors)
        self._prepare()

    @abstractmethod
    def _prepare(self) -> dict[str, Any]:
        """Derive from the second moments what an edit needs, and return facts about it."""

    def fit_constants(self) -> dict[str, Any]:
        """Return what decides which keys are read and what is drawn."""
        return {name: getattr(self.tuning, name) for name in _FITTED}

    def footprint(self) -> Footprint:
        """Return the bytes of what is written, and the number of the second moments' entries."""
        found = super().footprint()
        return Footprint(found.fixed, found.growing, sum(value.numel() for value in self._keys.sums.values()))

    def asked(self, request: EditRequest) -> list[Encoded]:
        """Return a correction as it is asked, and behind the texts of the pool.

        Raises:
            StateError: the editor was not fitted.
        """
        if not self._keys.sums:
            raise StateError(f"editor `{self.name}` was not fitted", "use it in `more eval` or `more compare`")
        query, runtime = request.query, self.runtime
        plain = runtime.encode(query, request.target)
        behind = [replace(query, question=f"{text} {query.question}") for text in self._material.contexts]
        others = (runtime.encode(other, request.target) for other in behind)
        # A tokenizer may join a target's first letters with what stands before them.
        return [plain, *(other for other in others if other.target_ids == plain.target_ids)]

    def protect(self, anchors: Sequence[Anchor]) -> None:
        """Let the anchors' keys count as much as all of the pool's of their kind in the second moments.

        They are the base's keys: a run that was interrupted continues with edits in the model.
        """
        own = Keys()
        with self.runtime.base():
            keys_of(self.runtime, list(self.deltas), [anchor.encoded for anchor in anchors], own)
        self._keys = self._keys.joined(own)
        self._prepare()

    def _value(self, module: str, asked: Sequence[Encoded], work: Work, avoided: Tensor | None = None) -> Value:
        """Find what a module should put out for an edit, asked in these ways; no part of it in `avoided` directions."""
        at_last, about = self.tuning.positions == "last_prompt", (asked, self._material.neutral, self.tuning, work)
        value = find_value(self.runtime, module, *about, last_prompt=at_last, avoided=avoided)
        work.writes += value.steps
        return value

    def _taken(self, asked: Sequence[Encoded], paths: Sequence[str], module: str, work: Work) -> list[list[Tensor]]:
        """Return, for each sequence, the keys of the Linears and the output of a module.

        Each (T, ...) float64: the closed forms need it.
        """
        work.forward(len(asked))
        rows = self.runtime.read(asked, [*((path, "input") for path in paths), (module, "output")])
        found = []
        for sequence, row in zip(asked, rows, strict=True):
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

    def write(self, asked: Sequence[Encoded], work: Work) -> None:
        """Write one correction."""
        self.write_batch([asked], work)

    def write_together(self, edits: Sequence[Encoded], anchors: Sequence[Anchor], work: Work) -> None:
        """Write the edits in one go, asked as they are; the anchors are in the second moments."""
        self.write_batch([[encoded] for encoded in edits], work)

    def write_batch(self, edits: Sequence[Sequence[Encoded]], work: Work) -> None:
        """Find a value for each edit, asked in some ways, and write all into every layer, the first one first.

        All values are found before the first write, and a layer gets the keys of all edits in one system. Nothing is
        written if all values are there already.
        """
        layers, paths = edited_layers(self.runtime, self.tuning)
        values = [self._value(layers[-1], asked, work) for asked in edits]
        if not any(value.steps for value in values):
            return
        plain = self._taken([asked[0] for asked in edits], paths[:1], layers[-1], work)
        wanted = [outputs + value.delta.double().cpu() for (_, outputs), value in zip(plain, values, strict=True)]
        for place, path in enumerate(paths):
            taken = self._taken_of(edits, [path], layers[-1], work)
            lacking = [target - rows[0][1] for target, rows in zip(wanted, taken, strict=True)]
            keys = [mean_key([keys for keys, _ in rows]) for rows in taken]
            self._add(path, self._change(path, torch.cat(keys).T, torch.cat(lacking).T / (len(paths) - place)))

    def _taken_of(
        self, edits: Sequence[Sequence[Encoded]], paths: Sequence[str], module: str, work: Work
    ) -> list[list[list[Tensor]]]:
        """Return what `_taken` returns for each edit."""
        rows = iter(self._taken([one for asked in edits for one in asked], paths, module, work))
        return [[next(rows) for _ in asked] for asked in edits]


def mean_key(keys: Sequence[Tensor]) -> Tensor:
    """Return the mean of the plain key and of the mean of the others: each of the two kinds counts half."""
    plain, others = keys[0], keys[1:]
    return (plain + torch.stack(list(others)).mean(dim=0)) / 2 if others else plain
