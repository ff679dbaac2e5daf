"""Scales of image and text features in the unedited model: variances and sizes of what modules put out.

Paper: Fig. 2 and the table of module scales on other backbones. They are read in forward passes over the run's edits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import fingerprint
from more_cli.errors import StateError
from more_cli.evaluation.metrics import change
from more_cli.model.batches import Encoded
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.progress import Progress
from more_cli.recipe.tables import asking_of
from more_lab.analyses.figures import Floats, density
from more_lab.analyses.kept import KeptRun, NotKept
from more_lab.analyses.result import Cell, Result, Scalar
from more_lab.editors.modules import ffn_outs
from more_lab.editors.moments import Moments
from more_lab.figures import PALETTE

SAMPLES = 64
"""Edits whose features the variances are taken over. The paper does not say its number."""
FEW = 4
"""Edits whose module outputs are averaged, as in the paper."""
GRID = 200


def variance(runs: Sequence[KeptRun], machine: Machine, progress: Progress) -> Result:
    """Return the spread of every coordinate's log-variance: text tokens after each layer, and projected images."""
    with _opened(runs, machine, progress) as (runtime, samples):
        layers = text_layers(runtime.model, runtime.backbone)
        places: list[Any] = [(layers[0], "input"), *((layer, "output") for layer in layers)]
        width = runtime.model.config.get_text_config(decoder=True).hidden_size
        visual, text = Moments(width), [Moments(width) for _ in layers]
        for number, sample in enumerate(samples[:SAMPLES]):
            progress(number, len(samples[:SAMPLES]), "reading text layers")
            seen = runtime.image_tokens(runtime.batch([sample]))[0].cpu()
            ((entering, *outputs),) = runtime.read([sample], places)
            visual.add(entering.cpu()[seen])
            for moments, output in zip(text, outputs, strict=True):
                moments.add(output.cpu()[~seen])
    curves = {f"text layer {n}": log_variance(moments) for n, moments in enumerate(text, 1)}
    image = log_variance(visual)
    gaps = [float(np.median(image) - np.median(values)) for values in curves.values()]
    rows: list[Sequence[Cell]] = [
        (name, *(float(q) for q in np.percentile(values, [2.5, 25, 50, 75, 97.5])), len(values))
        for name, values in {"visual projection": image, **curves}.items()
    ]
    scalars = [
        Scalar(runs[0].record.model.name, f"log10 variance of images minus that of text after layer {n}", gap)
        for n, gap in ((1, gaps[0]), (len(gaps), gaps[-1]))
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        whole = np.concatenate([image, *curves.values()])
        grid = np.linspace(float(whole.min()) - 0.5, float(whole.max()) + 0.5, GRID)
        for n, values in enumerate(curves.values()):
            # From light to dark; the lightest must still be visible on white.
            shade = str(0.75 - 0.7 * n / max(len(curves) - 1, 1))
            ends = n in (0, len(curves) - 1)
            axes.plot(grid, density(values, grid), color=shade, label=f"text layer {n + 1}" if ends else None)
        axes.plot(grid, density(image, grid), color=PALETTE[1], linewidth=2.5, label="visual projection")
        axes.set(xlabel="log10 variance of a coordinate", ylabel="density", ylim=(0, None))
        axes.legend(frameon=False)

    columns = ("features", "2.5 %", "25 %", "median", "75 %", "97.5 %", "coordinates")
    note = f"The unedited model on {len(samples[:SAMPLES])} edits; text layers from light to dark."
    return Result(columns, rows, scalars, draw, note=note)


def log_variance(moments: Moments) -> Floats:
    """Return log10 of the variance of each coordinate that varies."""
    variance = moments.squares / (moments.count - 1).clamp(min=1)
    found: Floats = np.log10(variance[variance > 0].numpy())
    return found


def energy(runs: Sequence[KeptRun], machine: Machine, progress: Progress) -> Result:
    """Return the mean L2 norm of what attention, FFN and projector put out, by layer."""
    with _opened(runs, machine, progress) as (runtime, samples):
        parts = module_parts(runtime)
        places: list[Any] = [*((path, "output") for _, _, path in parts)]
        first = text_layers(runtime.model, runtime.backbone)[0]
        sizes, projected = np.zeros((len(samples[:FEW]), len(parts))), []
        for row, sample in enumerate(samples[:FEW]):
            seen = runtime.image_tokens(runtime.batch([sample]))[0].cpu()
            ((entering, *outputs),) = runtime.read([sample], [(first, "input"), *places])
            projected.append(_norm(entering.cpu()[seen]))
            sizes[row] = [_norm(output) for output in outputs]
    means, visual = sizes.mean(axis=0), float(np.mean(projected))
    top = max(visual, float(means.max()))
    rows = [(kind, layer, float(size), float(size) / top) for (kind, layer, _), size in zip(parts, means, strict=True)]
    rows.append(("visual projection", 0, visual, visual / top))
    ffn = [place for place, (kind, _, _) in enumerate(parts) if kind == "FFN"]
    ratios = [size / float(row[ffn].mean()) for size, row in zip(projected, sizes, strict=True)]
    scalars = [Scalar.of(runs[0].record.model.name, "visual projection over the mean FFN output", change(ratios))]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for number, kind in enumerate(("self-attention", "FFN")):
            bars = [(layer, share) for name, layer, _, share in rows if name == kind]
            heights = [share for _, share in bars]
            axes.bar([layer + 0.4 * number - 0.2 for layer, _ in bars], heights, 0.4, color=PALETTE[number], label=kind)
        last = max(layer for _, layer, _, _ in rows) + 2
        axes.bar([last], [visual / top], 0.8, color=PALETTE[2], label="visual projection")
        ticks = [*dict.fromkeys(layer for _, layer, _ in parts)]
        step = -(-len(ticks) // 16)
        axes.set(xlabel="text layer", ylabel="module output, share of the largest", ylim=(0, 1.02))
        axes.set_xticks([*ticks[::step], last], [*map(str, ticks[::step]), "visual"])
        axes.legend(frameon=False)

    note = f"Mean over tokens of the L2 norm, mean over {len(samples[:FEW])} edits, the unedited model."
    return Result(("module", "layer", "mean L2 norm", "share of the largest"), rows, scalars, draw, note=note)


def module_parts(runtime: Runtime) -> list[tuple[str, int, str]]:
    """Return kind, layer from 1, and path of what each text layer's attention and FFN put out, in the order they run.

    Raises:
        NotKept: no layer has both, under names that are known.
    """
    model, backbone, found = runtime.model, runtime.backbone, list[tuple[str, int, str]]()
    for number, layer in enumerate(text_layers(model, backbone), 1):
        names = [name for name, _ in model.get_submodule(layer).named_modules() if name]
        attention = [name for name in names if re.fullmatch(r"(.*\.)?(self_?attn|self_?attention)", name.lower())]
        found += [("self-attention", number, f"{layer}.{name}") for name in attention[:1]]
        found += [("FFN", number, path) for path in ffn_outs(model, backbone, [layer])[-1:]]
    if len({kind for kind, _, _ in found}) < 2:
        raise NotKept("attention and FFN of this model's text layers are not known by their names", "leave it out")
    return found


@contextmanager
def _opened(runs: Sequence[KeptRun], machine: Machine, progress: Progress) -> Iterator[tuple[Runtime, list[Encoded]]]:
    """Yield the unedited model of runs and the questions of the first one's edits that have images."""
    run, models = runs[0], sorted({str(run.record.model) for run in runs})
    if len(models) > 1:
        raise NotKept(f"this is about one model, and the runs are of {' and '.join(models)}", "give the runs of one")
    runtime = load_base(run, machine, progress)
    samples = [runtime.encode(edit.query) for edit in run.record.edits if edit.images]
    if not samples:
        raise NotKept(f"no edit of `{run.folder}` has an image", "leave it out")
    if not bool(runtime.image_tokens(runtime.batch(samples[:1])).any()):
        raise NotKept("this model's text layers read no images as tokens", "leave it out")
    with runtime.attached([]):
        yield runtime, samples


def load_base(run: KeptRun, machine: Machine, progress: Progress) -> Runtime:
    """Load the model that a run edited, asked as the run asked it.

    Raises:
        StateError: it is not there, or has other weights now.
    """
    progress(0, None, "loading the model")
    checkpoint = open_checkpoint(run.record.model)
    if fingerprint(checkpoint, checkpoint.tensors) != run.record.reproduce.get("base"):
        raise StateError(f"`{run.record.model}` is not the model that `{run.folder}` was run on", "put it back there")
    return load_runtime(checkpoint, machine, **asking_of(run.record.reproduce.get("constants", {})))


def _norm(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows.float(), dim=-1).mean())
