"""One stream of edits applied in memory and scored at its end, for the tables and calibrations."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.core.write import Gradient
from more_cli.demo.files import demo_model_dir, suite_dir
from more_cli.editors.anchors import Anchor, make_anchor
from more_cli.editors.more import editor as editing
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.more.sites import Sites, WrittenSite
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.evaluation.streams import apply_stream
from more_cli.inputs.edits import Edit, read_edits, read_probes
from more_cli.model.backbones import find_sites
from more_cli.model.batches import Query
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.recipe.files import load_recipe
from more_cli.recipe.schema import Recipe

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from worlds.embedded.draw import with_pictures


@dataclass
class Run:
    """Cost and final scores of one stream."""

    scores: list[ProbeScore]
    cost: list[float] = field(default_factory=list)
    """Per edit, in samples sent forward and backward."""
    writes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    consolidation: float | None = None
    """Cost of the consolidation."""


DATA = Path(__file__).parents[1] / "data"
FAMILIES = ("llava", "blip2_opt", "qwen2_vl", "qwen3_vl")


def model_of(family: str) -> Path:
    """Return the embedded checkpoint of a family."""
    return demo_model_dir() if family == "llava" else DATA / family


def suite_of(family: str, name: str) -> Path:
    """Return a mini suite made from a family's own mistakes, with its pictures."""
    return suite_dir(name) if family == "llava" else with_pictures(DATA / "suites" / family / name)


def pool(name: str, file: str, records: int | None, seed: int = 0, family: str = "llava") -> list[Edit]:
    """Return the first records of a suite's pool, in file order for seed 0, else shuffled."""
    edits = list(read_edits(suite_of(family, name) / file).edits[:records])
    if seed:
        random.Random(seed).shuffle(edits)
    return edits


def runtime(family: str = "llava") -> Runtime:
    """The embedded model in float32."""
    return load_runtime(open_checkpoint(model_of(family)), Machine(dtype="float32"))


def anchors_of(runtime: Runtime, limit: int | None = None, family: str = "llava") -> list[Anchor]:
    """The suites' anchors, asked of the untouched base."""
    questions = read_probes(suite_of(family, "e-vqa-mini") / "anchors.jsonl", None)[:limit]
    with runtime.attached([]):
        return [make_anchor(runtime, Query((q.image,) if q.image else (), q.question), q.answer) for q in questions]


class LeftFactored(Sites):
    """Sites whose write is diag(v + 0.1)^-1 G P, v the running mean energy of G's rows over the mean of all rows."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._v: dict[str, tuple[int, Tensor]] = {}

    def _direction(self, site: WrittenSite, gradient: Gradient, recipe: Recipe) -> Tensor:
        energy = gradient.dense().square().mean(dim=1)
        count, v = self._v.get(site.record.name, (0, torch.zeros_like(energy)))
        v = v + (energy / energy.mean().clamp_min(1e-30) - v) / (count + 1)
        self._v[site.record.name] = count + 1, v
        return super()._direction(site, gradient, recipe) / (v + 0.1)[:, None]


@contextmanager
def left_factored() -> Iterator[None]:
    """Make editors that are attached meanwhile write with a left factor, which `more` itself does not have."""
    editing.Sites = LeftFactored
    try:
        yield
    finally:
        editing.Sites = Sites


def fresh_editor(recipe: Recipe, family: str = "llava") -> MoreEditor:
    """Return an editor of the embedded model without edits."""
    checkpoint = open_checkpoint(model_of(family))
    model = meta_model(checkpoint)
    found, _ = find_sites(model, key_map(model, checkpoint), checkpoint, recipe.sites, recipe.last)
    return MoreEditor.fresh(recipe, [site for site in found if not recipe.excludes(site.name)])


def run_stream(
    runtime: Runtime,
    edits: Sequence[Edit],
    recipe: str,
    settings: Sequence[str],
    anchors: Sequence[Anchor] = (),
    *,
    family: str = "llava",
    drop: Sequence[str] = (),
    consolidate: str = "off",
    batch: bool = False,
    left: bool = False,
    generate: bool = False,
) -> Run:
    """Apply a stream to the untouched base and score all edits and their probes after the last one."""
    editor = fresh_editor(load_recipe(recipe, settings).model_copy(update=dict.fromkeys(drop)), family)
    run = Run([])
    with left_factored() if left else nullcontext(), editor.attach(runtime):
        if anchors:
            editor.settle(anchors)
            editor.hold(anchors)
        stream = apply_stream(editor, edits, joint=batch)
        run.cost = [outcome.cost for outcome in stream.outcomes]
        run.writes = [outcome.writes for outcome in stream.outcomes]
        run.statuses = dict(Counter(outcome.status for outcome in stream.outcomes))
        run.seconds = stream.seconds
        if consolidate != "off" or batch:
            context = stream.memory.context(len(edits) + 1)
            numbers = list(range(1, len(edits) + 1))
            done = editor.write_batch(numbers, numbers, context) if batch else editor.consolidate(numbers, context)
            run.consolidation = done.cost
        run.scores = run_probes(
            runtime, editor, [probe for edit in edits for probe in probes_of(edit)], generate=generate
        )
    return run


def growth(values: np.ndarray, resamples: int = 1000) -> tuple[float, float, float]:
    """Return slope times length, with its bootstrap interval over edits."""
    n, samples = len(values), np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    slopes = [np.polyfit(chosen, values[chosen], 1)[0] * n for chosen in samples]
    return float(np.polyfit(np.arange(n), values, 1)[0] * n), *np.percentile(slopes, [2.5, 97.5]).tolist()
