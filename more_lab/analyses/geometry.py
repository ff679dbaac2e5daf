"""How alike the updates of different edits are: overlap of their largest entries, cosines, and both against the lag.

Paper: Fig. 3a to 3c, and Fig. 5 for M-ORE. Delta W_t is what edit t changed in one weight; every number is the mean
over the weights that both edits wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from torch import Tensor

from more_cli.evaluation.metrics import RESAMPLES, SEED
from more_cli.model.changes import Change
from more_lab.analyses.figures import Floats, band, heat_map, line
from more_lab.analyses.kept import KeptRun
from more_lab.analyses.result import Result, Scalar
from more_lab.experiments import updates

SHARE, MOST = 0.01, 100_000
"""k is this share of a weight's entries, at most so many. The paper does not say its k."""
HORIZON = 0.1
"""Below this value edits count as untangled. The paper draws the curve and names no threshold."""
EDITS = 100
"""First edits of a run whose updates are compared: the work grows with their square."""


def overlap(runs: Sequence[KeptRun]) -> Result:
    """Return |I_i and I_j| / k for every two edits, I_t the places of the k largest |entries| of Delta W_t."""
    matrices = [overlaps(run) for run in runs]
    return _maps(runs, matrices, (0.0, 1.0), "cividis", "top-k overlap")


def cosine(runs: Sequence[KeptRun]) -> Result:
    """Return cos(Delta W_i, Delta W_j) for every two edits."""
    return _maps(runs, [cosines(run) for run in runs], (-1.0, 1.0), "PuOr", "cosine")


def horizon(runs: Sequence[KeptRun]) -> Result:
    """Return overlap and cosine against the number of edits between."""
    curves = {
        (run.label, name): by_lag(matrix)
        for run in runs
        for name, matrix in (("overlap", overlaps(run)), ("cosine", cosines(run)))
    }
    rows = [
        (label, name, lag, mean, spread, count)
        for (label, name), curve in curves.items()
        for lag, (mean, spread, count) in enumerate(curve, 1)
    ]
    scalars = []
    for (label, name), curve in curves.items():
        means = [mean for mean, _, _ in curve]
        scalars.append(Scalar(label, f"{name}, first lag below {HORIZON:g}", first_below(means)))
        scalars.append(Scalar(label, f"{name}, mean over lags", float(np.nanmean(means))))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for place, ((label, name), curve) in enumerate(curves.items()):
            lags = list(range(1, len(curve) + 1))
            # One run: a colour per measure. Several: a colour per run, and bands would hide each other.
            shade, style = (place, "-") if len(runs) == 1 else (place // 2, "-" if name == "overlap" else "--")
            line(axes, shade, lags, [mean for mean, _, _ in curve], label=f"{label}: {name}", linestyle=style)
            if len(runs) == 1:
                low, high = [mean - spread for mean, spread, _ in curve], [mean + spread for mean, spread, _ in curve]
                band(axes, shade, lags, low, high)
        axes.axhline(HORIZON, color="0.6", linestyle=":", linewidth=1)
        axes.axhline(0, color="0.8", linewidth=0.8)
        axes.set(xlabel="lag, edits between the two", ylabel="overlap and cosine")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)

    columns = ("run", "measure", "lag", "mean", "standard deviation", "pairs")
    note = "The band is one standard deviation over pairs of edits; the dotted line is where edits count as untangled."
    return Result(columns, rows, scalars, draw, note=note)


def overlaps(run: KeptRun) -> Floats:
    """Return the mean overlap over weights for every two edits, in [0, 1]; NaN where no weight was written by both."""
    return _over_weights(run, _largest, lambda one, two: _shared(one, two) / len(one))


def cosines(run: KeptRun) -> Floats:
    """Return the mean cosine over weights for every two edits, in [-1, 1]; NaN where no weight was written by both."""
    return _over_weights(run, lambda change: change, updates.cosine)


def by_lag(matrix: Floats) -> list[tuple[float, float, int]]:
    """Return mean, standard deviation and count of a matrix's known cells (i, i + lag), by lag from 1."""
    found = []
    for lag in range(1, len(matrix)):
        values = np.diagonal(matrix, lag)
        known = values[~np.isnan(values)]
        mean, spread = (float(known.mean()), float(known.std())) if len(known) else (math.nan, math.nan)
        found.append((mean, spread, len(known)))
    return found


def first_below(values: Sequence[float]) -> float:
    """Return the first lag whose value is below `HORIZON`; infinity if none is."""
    return next((float(lag) for lag, value in enumerate(values, 1) if value < HORIZON), math.inf)


def between(matrix: Floats) -> tuple[float, float, float]:
    """Return the mean over pairs of different edits and its 95 % bootstrap interval, resampled over edits."""
    off = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    draws = np.random.default_rng(SEED).integers(0, len(matrix), (RESAMPLES, len(matrix)))
    means = [_mean(off[np.ix_(draw, draw)]) for draw in draws]
    low, high = np.nanpercentile(means, [2.5, 97.5]) if np.isfinite(means).any() else (math.nan, math.nan)
    return _mean(off), float(low), float(high)


def _maps(
    runs: Sequence[KeptRun], matrices: Sequence[Floats], limits: tuple[float, float], colours: str, name: str
) -> Result:
    rows = [
        (run.label, i, j, float(matrix[i - 1, j - 1]))
        for run, matrix in zip(runs, matrices, strict=True)
        for i in range(1, len(matrix) + 1)
        for j in range(1, len(matrix) + 1)
    ]
    scalars = [
        Scalar(run.label, f"mean {name} of two edits", *between(matrix))
        for run, matrix in zip(runs, matrices, strict=True)
    ]

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(runs), squeeze=False)[0]
        for run, matrix, axes in zip(runs, matrices, panels, strict=True):
            heat_map(figure, axes, matrix, limits, colours, name)
            axes.set_title(run.label)

    note = "Means over the weights that both edits wrote."
    if name == "top-k overlap":
        note += f" Updates at random places overlap by {SHARE:g}, or less in large weights."
    return Result(("run", "edit i", "edit j", name), rows, scalars, draw, size=(4.2 * len(runs), 3.6), note=note)


def _over_weights(run: KeptRun, read: Callable[[Change], Any], compare: Callable[[Any, Any], float]) -> Floats:
    """Compare every two edits in each weight, one weight at a time, and return the means over weights."""
    edits = run.updates[:EDITS]
    total, count = np.zeros((2, len(edits), len(edits)))
    for module in dict.fromkeys(path for edit in edits for path in edit):
        found = {t: read(edit[module]) for t, edit in enumerate(edits) if module in edit}
        for i, j in [*combinations(found, 2), *((t, t) for t in found)]:
            value = compare(found[i], found[j])
            for place in {(i, j), (j, i)}:
                total[place] += value
                count[place] += 1
    known: Floats = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return known


def _largest(change: Change) -> Tensor:
    return updates.largest(change, max(1, min(MOST, round(SHARE * math.prod(change.shape)))))


def _shared(one: Tensor, two: Tensor) -> int:
    return len(np.intersect1d(one.numpy(), two.numpy(), assume_unique=True))


def _mean(matrix: Floats) -> float:
    known = matrix[~np.isnan(matrix)]
    return float(known.mean()) if len(known) else math.nan
