"""How far edits move hidden states of questions that have nothing to do with them (paper, Figs. 4 and "rq4_drift").

The paper names neither layer nor token: here it is the last text layer's output at the last token of the prompt, where
the answer begins. Every editor acts before it, so it is comparable between editors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from more_cli.evaluation.metrics import change
from more_lab.analyses.figures import Floats, density
from more_lab.analyses.kept import KeptRun, NotKept
from more_lab.analyses.result import Cell, Result, Scalar
from more_lab.figures import PALETTE

KINDS = {"loc_text": "text", "loc_image": "image and text"}
FEWEST = 3
"""Fewest probes of a kind whose spread can be drawn."""
COLOURS = (PALETTE[6], PALETTE[4], PALETTE[0])
"""Before, halfway, after the last edit."""


def drift(runs: Sequence[KeptRun]) -> Result:
    """Return distances between the states before and after edits, and a projection fitted on those before."""
    rows: list[Sequence[Cell]] = []
    scalars, clouds = [], []
    for run in runs:
        for kind, name in KINDS.items():
            chosen = [row for row, probe in enumerate(run.record.probes) if probe.kind == kind]
            if len(chosen) < FEWEST:
                continue
            found = {t: run.states(t)["state"].double().numpy()[chosen] for t in run.marks}
            before, last = found[0], max(found)
            for t, after in found.items():
                rows.append((run.label, name, t, len(chosen), *distances(before, after).values()))
            shifts = list(shift(before, found[last]))
            scalars.append(Scalar.of(run.label, f"shift of {name} probes, in standard deviations", change(shifts)))
            clouds.append((f"{run.label}: {name} probes", _few(found)))
    if not clouds:
        raise NotKept(f"these runs have fewer than {FEWEST} locality probes of a kind", "keep more edits")

    def draw(figure: Any) -> None:
        panels = figure.subplots(-(-len(clouds) // 2), min(2, len(clouds)), squeeze=False)
        for axes, (title, states) in zip(panels.flat, clouds, strict=False):
            _scatter(axes, states)
            axes.set_xlabel(f"component 1\n{title}")
        for axes in panels.flat[len(clouds) :]:
            axes.set_visible(False)
        panels[0, 0].legend(frameon=False, fontsize=8, handletextpad=0.2)

    columns = ("run", "probes", "edits", "n", *distances(np.eye(FEWEST), np.eye(FEWEST)))
    size = (8.0, 4.0 * -(-len(clouds) // 2))
    note = "Principal components of the states before the first edit; all states are projected on them."
    return Result(columns, rows, scalars, draw, size=size, note=note)


def distances(before: Floats, after: Floats) -> dict[str, float]:
    """Return how far (n, d) states moved: each row of `after` is the same probe as that of `before`."""
    return {
        "shift in standard deviations": float(shift(before, after).mean()),
        "Frechet distance over variance": frechet(before, after) / _variance(before),
        "linear CKA": linear_cka(before, after),
        "cosine": float(np.mean(_cosines(before, after))),
    }


def shift(before: Floats, after: Floats) -> Floats:
    """Return the length of each probe's move over the standard deviation of the states before, all coordinates."""
    moved: Floats = np.linalg.norm(after - before, axis=1) / np.sqrt(_variance(before))
    return moved


def frechet(before: Floats, after: Floats) -> float:
    """Return the squared Frechet distance of the two Gaussians with these means and covariances (Dowson 1982).

    tr((C_1 C_2)^1/2) is the nuclear norm of X_1 X_2^T / (n - 1), X centred, so no covariance is made.
    """
    first, second = before - before.mean(axis=0), after - after.mean(axis=0)
    mixed = np.linalg.norm(first @ second.T, ord="nuc")
    spread = float((first**2).sum() + (second**2).sum() - 2 * mixed) / (len(first) - 1)
    return float(((before.mean(axis=0) - after.mean(axis=0)) ** 2).sum()) + max(spread, 0.0)


def linear_cka(before: Floats, after: Floats) -> float:
    """Return the linear centred kernel alignment, 1 for states that differ by a rotation (arXiv 1905.00414)."""
    first, second = before - before.mean(axis=0), after - after.mean(axis=0)
    both = np.linalg.norm(first @ first.T) * np.linalg.norm(second @ second.T)
    return float(((first @ first.T) * (second @ second.T)).sum() / both) if both else 1.0


def _variance(states: Floats) -> float:
    return float(((states - states.mean(axis=0)) ** 2).sum() / (len(states) - 1)) or 1.0


def _cosines(before: Floats, after: Floats) -> Floats:
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosines: Floats = (before * after).sum(axis=1) / np.where(norms > 0, norms, 1.0)
    return cosines


def _few(found: dict[int, Floats]) -> dict[int, Floats]:
    """Return the states before, halfway and at the end."""
    marks = sorted(found)
    return {t: found[t] for t in sorted({marks[0], marks[len(marks) // 2], marks[-1]})}


def _scatter(axes: Any, states: dict[int, Floats]) -> None:
    before = states[min(states)]
    centre = before.mean(axis=0)
    _, _, turned = np.linalg.svd(before - centre, full_matrices=False)
    places = {t: (found - centre) @ turned[:2].T for t, found in states.items()}
    whole = np.concatenate(list(places.values()))
    over, beside = axes.inset_axes([0, 1.02, 1, 0.18]), axes.inset_axes([1.02, 0, 0.18, 1])
    grids = [np.linspace(*_widened(whole[:, side]), 120) for side in range(2)]
    for shade, (t, points) in zip(COLOURS, places.items(), strict=False):
        label = "before" if t == 0 else f"after {t}"
        # Rings around dots: where nothing moved, all three stay visible.
        size, face = (12, shade) if t == 0 else (30 if t == max(places) else 60, "none")
        axes.scatter(*points.T, s=size, facecolors=face, edgecolors=shade, linewidths=1, label=label)
        over.plot(grids[0], density(points[:, 0], grids[0]), color=shade)
        beside.plot(density(points[:, 1], grids[1]), grids[1], color=shade)
    for inset, limits in ((over, {"xlim": grids[0][[0, -1]]}), (beside, {"ylim": grids[1][[0, -1]]})):
        inset.set(**limits)
        inset.axis("off")
    axes.set(xlim=grids[0][[0, -1]], ylim=grids[1][[0, -1]], ylabel="component 2")


def _widened(values: Floats) -> tuple[float, float]:
    margin = 0.1 * float(np.ptp(values)) or 1.0
    return float(values.min()) - margin, float(values.max()) + margin
