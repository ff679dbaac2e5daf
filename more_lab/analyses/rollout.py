"""Where the model looks before and after edits, by attention rollout (paper, case studies of the appendix).

Heads are averaged, the identity is added for the residual stream, rows are normalised, and layers multiplied (arXiv
2005.00928). The map of a layer is the row of the last prompt token, at the image's tokens. The edited model is the
base with the kept updates added to its weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from more_cli.evaluation.metrics import change
from more_cli.model.batches import Encoded
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.progress import Progress
from more_lab.analyses.figures import Floats
from more_lab.analyses.flips import cosine
from more_lab.analyses.kept import KeptRun, NotKept
from more_lab.analyses.result import Cell, Result, Scalar
from more_lab.analyses.scales import load_base
from more_lab.experiments.record import Asked

EDITS = 8
"""First edits with an image and an image locality probe that are compared; the figure shows the first."""
PIXELS = 160
"""Width and height of a picture in the figure."""


@dataclass(frozen=True)
class _Maps:
    """One question's maps, layer by layer: (layers, image tokens), each row a share of the whole row's attention."""

    before: Floats
    after: Floats


def rollout(runs: Sequence[KeptRun], machine: Machine, progress: Progress) -> Result:
    """Return attention on the image before and after the edits, of edited questions and of unrelated ones."""
    found = {run.label: _maps(run, machine, progress) for run in runs}
    rows: list[Sequence[Cell]] = []
    scalars = []
    for label, (asked, maps) in found.items():
        for (number, what), one in maps.items():
            for layer in _shown(len(one.before)):
                before, after = one.before[layer], one.after[layer]
                shares = float(before.sum()), float(after.sum())
                rows.append((label, asked[number, what].edit, what, layer + 1, *shares, cosine(before, after)))
        for what in ("edit", "locality"):
            last = [1 - cosine(one.before[-1], one.after[-1]) for (_, kind), one in maps.items() if kind == what]
            name = f"1 - cosine of the maps before and after, {what} questions"
            scalars.append(Scalar.of(label, name, change(last)))

    def draw(figure: Any) -> None:
        lines = [(label, what) for label in found for what in ("edit", "locality")]
        layers = _shown(len(next(iter(next(iter(found.values()))[1].values())).before))
        panels = figure.subplots(len(lines), 1 + 2 * len(layers), squeeze=False)
        for panel, (label, what) in zip(panels, lines, strict=True):
            asked, maps = found[label]
            one, picture = maps[0, what], asked[0, what].query.images[0].open().resize((PIXELS, PIXELS))
            panel[0].imshow(picture)
            panel[0].set_title(f"{label}: {what}", fontsize=8)
            for place, (when, rolled) in enumerate((("before", one.before), ("after", one.after))):
                for column, layer in enumerate(layers, 1 + place * len(layers)):
                    _overlay(panel[column], picture, rolled[layer], one.before[layer])
                    panel[column].set_title(f"{when}, layer {layer + 1}", fontsize=8)
            for axes in panel:
                axes.axis("off")

    columns = ("run", "edit", "question", "layer", "on the image before", "on the image after", "cosine of the maps")
    note = "Pictures are stretched to the grid of image tokens; both maps of a layer have one scale."
    size = (11.0, 3.6 * len(runs))
    return Result(columns, rows, scalars, draw, size=size, note=note)


def rolled_out(layers: Sequence[Tensor]) -> list[Tensor]:
    """Return the rollout after each layer from its attention weights, (T, T); each row sums to 1."""
    found: list[Tensor] = []
    for weights in layers:
        mixed = weights.double() + torch.eye(len(weights), dtype=torch.float64)
        mixed = mixed / mixed.sum(dim=1, keepdim=True)
        found.append(mixed @ found[-1] if found else mixed)
    return found


def _maps(
    run: KeptRun, machine: Machine, progress: Progress
) -> tuple[dict[tuple[int, str], Asked], dict[tuple[int, str], _Maps]]:
    """Return the questions by place and kind, and their maps."""
    asked = _questions(run)
    runtime = load_base(run, machine, progress)
    before = {key: _map(runtime, one, run) for key, one in asked.items()}
    _add(runtime, run)
    after = {}
    for place, (key, one) in enumerate(asked.items()):
        progress(place, len(asked), f"attention of {run.label}")
        after[key] = _map(runtime, one, run)
    return asked, {key: _Maps(before[key], after[key]) for key in asked}


def _questions(run: KeptRun) -> dict[tuple[int, str], Asked]:
    probes = {probe.edit: probe for probe in reversed(run.record.probes) if len(probe.images) == 1}
    pairs = [(edit, probes[edit.edit]) for edit in run.record.edits if len(edit.images) == 1 and edit.edit in probes]
    if not pairs:
        raise NotKept(f"no edit of `{run.folder}` has an image and an image locality probe", "choose another analysis")
    return {
        (n, what): one
        for n, pair in enumerate(pairs[:EDITS])
        for what, one in zip(("edit", "locality"), pair, strict=True)
    }


def _map(runtime: Runtime, asked: Asked, run: KeptRun) -> Floats:
    sample = runtime.encode(asked.query)
    places = runtime.image_tokens(runtime.batch([sample]))[0].cpu()
    if math.isqrt(int(places.sum())) ** 2 != int(places.sum()) or not bool(places.any()):
        raise NotKept(f"the image tokens of `{run.record.model.name}` are no square grid", "choose another analysis")
    found: Floats = np.stack([layer[-1, places].numpy() for layer in rolled_out(_attentions(runtime, sample))])
    return found


def _attentions(runtime: Runtime, sample: Encoded) -> list[Tensor]:
    """Return each text layer's attention weights for one sequence, means over heads, (T, T) float32 on the CPU.

    From then on the model computes its attention without a fast kernel: those return no weights.
    """
    runtime.model.set_attn_implementation("eager")
    inputs = runtime.batch([sample]).inputs
    with torch.no_grad():
        output = runtime.model(**inputs, use_cache=False, output_attentions=True)
    found = getattr(output, "attentions", None) or ()
    layers, length = text_layers(runtime.model, runtime.backbone), len(sample.input_ids)
    if len(found) != len(layers) or any(each is None or each.shape[-2:] != (length, length) for each in found):
        raise NotKept("this model gives no attention weights for its text layers", "choose another analysis")
    return [each[0].float().mean(dim=0).cpu() for each in found]


@torch.no_grad()
def _add(runtime: Runtime, run: KeptRun) -> None:
    """Add all updates of a run to the weights, rounding once: the dtype of the weights may lose a single update."""
    for path in dict.fromkeys(path for update in run.updates for path in update):
        weight = runtime.model.get_submodule(path).weight
        changed = weight.float()
        for update in run.updates:
            if path in update:
                changed = changed + update[path].dense().to(changed)
        weight.copy_(changed)


def _shown(layers: int) -> list[int]:
    """Return the first, the middle and the last layer; the paper shows 1, 16 and 31 of 32."""
    return sorted({0, layers // 2, layers - 1})


def _overlay(axes: Any, picture: Any, row: Floats, scale: Floats) -> None:
    grid = row.reshape(math.isqrt(len(row)), -1)
    axes.imshow(picture.convert("L"), cmap="gray", alpha=0.5)
    extent = (-0.5, PIXELS - 0.5, PIXELS - 0.5, -0.5)
    top = float(scale.max())
    axes.imshow(grid, cmap="inferno", alpha=0.6, extent=extent, interpolation="bilinear", vmin=0, vmax=top)
