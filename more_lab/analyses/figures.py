"""Parts of figures that several analyses draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from more_lab.figures import PALETTE

Floats = npt.NDArray[np.float64]
MARKERS = "os^Dvp*"
STROKES = ("-", "--", ":")
LABELS = 12
"""Most ticks of a heat map's axis."""


def colour(number: int) -> str:
    """Return the colour of a line by its place."""
    return PALETTE[number % len(PALETTE)]


def line(axes: Any, number: int, x: Sequence[float], y: Sequence[float], **more: Any) -> None:
    """Draw a line in the colour and with the marker of its place; when the colours begin again it is another stroke."""
    lap = number // len(PALETTE)
    look = {"linestyle": STROKES[lap % len(STROKES)], "markerfacecolor": "white" if lap else colour(number)} | more
    marker = MARKERS[number % len(MARKERS)]
    axes.plot(x, y, color=colour(number), marker=marker, markersize=4, linewidth=1.6, **look)


def band(axes: Any, number: int, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
    """Fill what lies between two lines in the colour of a place."""
    axes.fill_between(x, low, high, color=colour(number), alpha=0.18, linewidth=0)


def heat_map(figure: Any, axes: Any, matrix: Floats, limits: tuple[float, float], colours: str, label: str) -> None:
    """Draw a matrix over edits, edit 1 at the upper left; what is unknown stays grey."""
    axes.set_facecolor("0.85")
    edges = np.arange(len(matrix) + 1) + 0.5
    low, high = limits
    mesh = axes.pcolormesh(edges, edges, np.ma.masked_invalid(matrix), cmap=colours, vmin=low, vmax=high)
    step = -(-len(matrix) // LABELS)
    ticks = list(range(1, len(matrix) + 1, step))
    axes.set(xlabel="edit j", ylabel="edit i", xticks=ticks, yticks=ticks, aspect="equal")
    axes.invert_yaxis()
    figure.colorbar(mesh, ax=axes, label=label, shrink=0.8)


def density(values: Floats, grid: Floats) -> Floats:
    """Return a Gaussian kernel density estimate of values on a grid, with Scott's width (Scott 1992)."""
    spread = float(values.std()) or 1.0
    width = spread * len(values) ** -0.2
    steps = (grid[:, None] - values[None, :]) / width
    found: Floats = np.exp(-0.5 * steps**2).mean(axis=1) / (width * np.sqrt(2 * np.pi))
    return found
