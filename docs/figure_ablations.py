"""The figure of claims.md: what a change of the paper's write is worth, in eleven worlds and suites."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from figure_parts import FAINT, INK, OTHER, OURS, RESULTS, Point, panels

PAGE = RESULTS.parent / "ABLATIONS.md"
PANELS = ("Rel", "M-Gen", "M-Loc", "mean of five")
NAMES = {
    "statistics": "one P",
    "pooling": "a key of every token",
    "basis": "basis",
    "freeze": "A trained",
    "lambda": "lambda 2000 to",
    "rank": "rank 32 to",
}
"""Sweeps that are shown, by what their settings change."""


def ablations() -> list[Point]:
    """Return the means over worlds of each setting minus the paper's own, as the page of the ablations prints them."""
    lines = (
        PAGE.read_text(encoding="utf-8").split("## Means over worlds and suites\n")[1].split("\n## ")[0].splitlines()
    )
    columns, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line[:1] == "|"]
    points = []
    for sweep, setting, count, *cells in rows:
        if sweep in NAMES:
            shown = dict(zip(columns[3:], cells, strict=True))
            for panel in PANELS:
                value, low, high = map(float, re.findall(r"[-+]?\d+\.\d", shown[panel]))
                points.append(Point(panel, named(sweep, setting), value, low, high, int(count)))
    return points


def named(sweep: str, setting: str) -> str:
    """Return a setting in words: `rank 32 to 8`."""
    given = dict(pair.split("=") for pair in setting.strip("`").split())
    values = [value.strip('"') for value in given.values()]
    if sweep == "freeze":
        rows = ", rows orthonormal" if values[1] == "true" else ""
        return f"A trained, rate {values[0]}{rows}"
    if sweep == "statistics":
        return "one P for all sites" if values == ["shared"] else "one P a modality"
    if sweep == "basis":
        return f"{values[0].capitalize()} basis"
    return NAMES[sweep] if sweep == "pooling" else f"{NAMES[sweep]} {values[0]}"


def draw_ablations(points: Sequence[Point]) -> Figure:
    """Draw a panel a metric and a row a setting, 0 where it is level with the paper's own."""
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        places = np.arange(len(part))[::-1]
        for one, place in zip(part, places, strict=True):
            colour = OTHER if one.low <= 0 <= one.high else OURS
            errors = [[one.value - one.low], [one.high - one.value]]
            axes.errorbar([one.value], [place], xerr=errors, fmt="o", color=colour, markersize=4, capsize=2)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(title=panel, ylim=(-0.6, len(part) - 0.4), yticks=places)
        axes.set_yticklabels([one.row for one in part] if panel == PANELS[0] else [])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
    figure.supxlabel("points, minus the paper's setting, mean of eleven worlds and suites, 95 % interval", fontsize=9)
    return figure
