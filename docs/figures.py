"""Draw the figures of the pages of results and claims from tests/bench/results (needs the extra `plots`).

    python docs/figures.py [FOLDER]         # default: docs/img

Every figure is an SVG. It carries the values that it shows, as JSON, in its description: a test compares these with
the results, since the bytes of the drawing depend on the version of matplotlib.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figure_ablations import ablations, draw_ablations
from figure_lengths import draw_rivals, draw_standing, rivals, standing
from figure_parts import (
    FAINT,
    FIVE,
    IMAGES,
    INK,
    LORA,
    OTHER,
    OURS,
    PART,
    PUBLISHED,
    RESULTS,
    STYLE,
    Point,
    panels,
    point,
)
from more_cli.evaluation.metrics import estimate
from more_lab.experiments.paired import compare

# ------------------------------------------------------------------------------------------------ data


@cache
def retention(table: str) -> tuple[dict[str, Any], ...]:
    """Return the runs of one table of RETENTION.md."""
    lines = (RESULTS / "retention.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(run for line in lines if (run := json.loads(line))["table"] == table)


def by_edit(table: str, row: str, label: str) -> list[float]:
    """Return a metric of each edit, its mean over the runs of a row."""
    runs = [run for run in retention(table) if run["row"] == row]
    labels = FIVE if label == "mean of five" else (label,)
    means: list[float] = np.mean([[run["values"][one] for one in labels] for run in runs], axis=(0, 1)).tolist()
    return means


def cost(table: str, row: str) -> float:
    """Return the samples sent forward and backward per edit, a consolidation included."""
    runs = [run for run in retention(table) if run["row"] == row]
    return float(np.mean([(sum(run["cost"]) + (run["consolidation"] or 0)) / max(1, len(run["cost"])) for run in runs]))


def measured(table: str, row: str, label: str, panel: str = "", name: str = "") -> Point:
    """Return a row's metric, in %, over its row's cost."""
    found = estimate(by_edit(table, row, label))
    values = found.value, found.low, found.high
    return point(panel or label, name or row, values, found.n, cost(table, row))


RIVALS = (
    *("grace", "ike", "serac", "liveedit", "wise", "alphaedit", "memit", "rome", "mend", "ultraedit", "scopeedit"),
    *("ft-l", "ft-m"),
)
"""Editors of others, but LoRA, which has a colour of its own."""


def editors() -> list[Point]:
    """Return the editors of `e-vqa` after 100 edits, each calibrated with nine tries, from the highest mean on."""
    lines = (RESULTS / "nine.jsonl").read_text(encoding="utf-8").splitlines()
    runs = {run["editor"]: run for line in lines if (run := json.loads(line))["suite"] == "e-vqa"}
    found = {editor: run["readouts"]["final@100"] for editor, run in runs.items()}
    ranked = sorted(found, key=lambda editor: -sum(found[editor][label][0] for label in FIVE))
    return [
        point(label, editor, values[:3], values[3])
        for editor in ranked
        for label in FIVE
        for values in [found[editor][label]]
    ]


COST_ROWS = (
    "paper",
    "authors",
    "polyak",
    "default without anchors",
    "default",
    "default, consolidated",
    "default, --batch",
    "LoRA, 10 epochs",
    "LoRA, 10 epochs, rate 3e-3",
    "LoRA, 20 epochs, anchors",
    "LoRA, 41 epochs",
)


def costs() -> list[Point]:
    """Return what a row reaches, and its cost."""
    return [measured("main", row, label) for label in ("Rel", "M-Gen", "M-Loc", "mean of five") for row in COST_ROWS]


STREAMS = 9
RATES = ("LoRA, rate 1e-3", "LoRA, rate 2e-3", "LoRA, rate 3e-3")


def arrivals() -> list[Point]:
    """Return ours minus a LoRA retrained at every arrival, paired by edit, in points."""
    points = []
    for label in FIVE:
        ours = _over_streams("default", label)
        for theirs in RATES:
            one = compare(_over_streams(theirs, label), ours)
            points.append(point(label, theirs, (one.difference, one.low, one.high), len(ours)))
    return points


def _over_streams(row: str, label: str) -> list[float]:
    """Return a metric of each edit, its mean over the orders of its stream, one stream after the other."""
    found: list[float] = []
    for stream in range(STREAMS):
        runs = [run for run in retention("arrivals") if run["row"] == row and run["seed"] % STREAMS == stream]
        found += np.mean([run["values"][label] for run in runs], axis=0).tolist()
    return found


BIN = 100


def long() -> list[Point]:
    """Return what an edit takes and holds over 5,000 edits: median and quartiles of every hundred."""
    made = json.loads((RESULTS / "long.json").read_text(encoding="utf-8"))
    taken = {name: np.asarray(values, dtype=float) for name, values in made["per_edit"].items()}
    a_write = taken["alone"] / np.where(taken["writes"] > 0, taken["writes"], np.nan)
    points = []
    for panel, values in (("ms an edit", taken["wall"]), ("CPU ms a write", a_write)):
        for start in range(0, len(values), BIN):
            part = values[start : start + BIN]
            middle, low, high = np.nanpercentile(part, [50, 25, 75])
            count = int(np.isfinite(part).sum())
            points.append(point(panel, "", (middle, low, high), count, start + BIN / 2, scale=1))
    for held in made["held"]:
        resident = held["resident"] / 2**20
        points.append(point("resident MiB", "", (resident,) * 3, 1, held["edit"], scale=1))
    return points


FAMILIES = ("llava", "blip2_opt", "qwen2_vl", "qwen3_vl")
FAMILY_ROWS = ("before", "paper", "authors", "default", "default, consolidated")


def families() -> list[Point]:
    """Return the recipes on every family's own small model."""
    return [
        measured("families", f"{family}: {row}", label, name=f"{family}: {row}")
        for label in ("Rel", "M-Gen", "M-Loc")
        for family in FAMILIES
        for row in FAMILY_ROWS
    ]


SPEED = {
    "demo": {"default": "2.9 M, default", "paper-llava": "2.9 M, paper-llava"},
    "270M": {"projector and text": "270 M, projector and text", "text alone": "270 M, text alone"},
    "290M": {"projector and text": "290 M, projector and text", "text alone": "290 M, text alone"},
}
RATIOS = {
    "write over floor": "step_over_floor",
    "edit over floor": "edit_over_floor",
    "LoRA step over write": "lora_step_over_step",
}


def speed() -> list[Point]:
    """Return what a write and an edit take over a bare PyTorch loop, and what a LoRA step takes over a write."""
    points = []
    for file, rows in SPEED.items():
        made = json.loads((RESULTS / "speed" / f"{file}.json").read_text(encoding="utf-8"))["found"]
        for key, name in rows.items():
            for panel, ratio in RATIOS.items():
                found = made[key]["ratios"][ratio]
                values = found["value"], found["low"], found["high"]
                points.append(point(panel, name, values, found["n"], scale=1))
    return points


# ------------------------------------------------------------------------------------------------ drawings


def colour(row: str) -> str:
    """Return the colour of an editor: the loop, the loop without a part, the published forms, LoRA, or another."""
    row = row.rpartition(": ")[2] if row.split(":")[0] in FAMILIES else row
    if row in ("paper", "authors", "more:paper", "more:authors"):
        return PUBLISHED
    if row.lower().startswith("lora"):
        return LORA
    if row in ("naive", "polyak"):
        return PART
    return OTHER if row in ("none", "before", *RIVALS) else OURS


def bars(axes: Axes, points: Sequence[Point], *, limits: tuple[float, float], names: bool) -> None:
    """Draw one bar a row with its interval, the first row on top."""
    places = np.arange(len(points))[::-1]
    values = [one.value for one in points]
    errors = [[one.value - one.low for one in points], [one.high - one.value for one in points]]
    axes.barh(places, values, color=[colour(one.row) for one in points], height=0.7)
    if np.any(errors):
        axes.errorbar(values, places, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    axes.set(xlim=limits, ylim=(-0.6, len(points) - 0.4), yticks=places)
    axes.set_yticklabels([one.row for one in points] if names else [])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def draw_editors(points: Sequence[Point]) -> Figure:
    """Draw a panel a metric, a bar an editor."""
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        bars(axes, part, limits=(0, 104), names=panel == FIVE[0])
        axes.set_title(panel)
    figure.supxlabel("% after 100 edits, 95 % interval; embedded model, 2.9 M parameters", fontsize=9)
    return figure


def dots(axes: Axes, points: Sequence[Point], *, names: bool) -> None:
    """Draw one dot a row with its interval, the first row on top."""
    places = np.arange(len(points))[::-1]
    for one, place in zip(points, places, strict=True):
        kind, errors = colour(one.row), [[one.value - one.low], [one.high - one.value]]
        axes.errorbar([one.value], [place], xerr=errors, fmt="o", color=kind, ecolor=kind, markersize=5, capsize=2)
    axes.set(ylim=(-0.6, len(points) - 0.4), yticks=places)
    axes.set_yticklabels([one.row for one in points] if names else [])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def draw_costs(points: Sequence[Point]) -> Figure:
    """Draw the price of every row, and beside it a panel a quantity."""
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    found = panels(points)
    first, *others = figure.subplots(1, len(found) + 1)
    paid = [Point("", one.row, one.x, one.x, one.x, one.n) for one in found["Rel"]]
    bars(first, paid, limits=(0, 85), names=True)
    for one, place in zip(paid, np.arange(len(paid))[::-1], strict=True):
        first.annotate(f"{one.value:.1f}", (one.value, place), (3, -3), textcoords="offset points", fontsize=8)
    first.set(title="cost", xlabel="samples per edit")
    for axes, (panel, part) in zip(others, found.items(), strict=True):
        dots(axes, part, names=False)
        axes.set(title=panel, xlim=(48, 103))
    figure.supxlabel(
        "cost: samples sent forward and backward; the others: % after 100 edits, 95 % interval", fontsize=9
    )
    return figure


def draw_arrivals(points: Sequence[Point]) -> Figure:
    """Draw a panel a metric: ours minus LoRA with its interval, zero where both are the same."""
    figure = Figure(figsize=(9.5, 1.9), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(1, len(found), sharex=True), found.items(), strict=True):
        places = np.arange(len(part))[::-1]
        for one, place in zip(part, places, strict=True):
            errors = [[one.value - one.low], [one.high - one.value]]
            ahead = OURS if one.low > 0 else LORA if one.high < 0 else OTHER
            axes.errorbar([one.value], [place], xerr=errors, fmt="o", color=ahead, ecolor=ahead, markersize=5)
        axes.axvline(0, color=INK, linewidth=0.8)
        names = [f"minus {one.row}" for one in part]
        axes.set(title=panel, yticks=places, xlim=(-9, 9), ylim=(-0.5, len(part) - 0.5))
        axes.set_yticklabels(names if panel == FIVE[0] else [])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
    text = "points, ours minus LoRA, 95 % interval; blue: ours ahead, orange: LoRA ahead, grey: not shown"
    figure.supxlabel(text, fontsize=9)
    return figure


def draw_long(points: Sequence[Point]) -> Figure:
    """Draw time and memory against the number of the edit."""
    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(len(found), sharex=True), found.items(), strict=True):
        x = [one.x for one in part]
        axes.fill_between(x, [one.low for one in part], [one.high for one in part], color=OURS, alpha=0.25, linewidth=0)
        axes.plot(x, [one.value for one in part], color=OURS, linewidth=1.5)
        axes.set(ylabel=panel, ylim=(0, None), xlim=(0, 5000))
        axes.axvline(336, color=OTHER, linewidth=1, linestyle="--")
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_xlabel("edit; dashed: every question was asked once, rehearsal draws from 336 edits from here on")
    return figure


def draw_families(points: Sequence[Point]) -> Figure:
    """Draw a panel a metric, a group of bars a family."""
    figure = Figure(figsize=(9.5, 5.2), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        bars(axes, part, limits=(0, 104), names=panel == "Rel")
        axes.set_title(panel)
        for place in range(len(FAMILY_ROWS), len(part), len(FAMILY_ROWS)):
            axes.axhline(place - 0.5, color=OTHER, linewidth=0.8)
    figure.supxlabel("% after 100 edits, 95 % interval; models of 3 million parameters", fontsize=9)
    return figure


def draw_speed(points: Sequence[Point]) -> Figure:
    """Draw a panel a ratio, 1 where both take the same time."""
    figure = Figure(figsize=(9.5, 2.8), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        dots(axes, part, names=panel == next(iter(found)))
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.set(title=panel, xlim=(0, 3.5))
    figure.supxlabel("median of time ratios, 95 % interval; 1: as long", fontsize=9)
    return figure


FIGURES: dict[str, tuple[Callable[[], list[Point]], Callable[[Sequence[Point]], Figure]]] = {
    "editors": (editors, draw_editors),
    "cost": (costs, draw_costs),
    "arrivals": (arrivals, draw_arrivals),
    "long": (long, draw_long),
    "rivals": (rivals, draw_rivals),
    "standing": (standing, draw_standing),
    "families": (families, draw_families),
    "speed": (speed, draw_speed),
    "ablations": (ablations, draw_ablations),
}
"""By name of the file: what a figure shows, and how it is drawn."""


def draw(folder: Path) -> None:
    """Write every figure into a folder."""
    with mpl.rc_context(STYLE):
        for name, (data, drawing) in FIGURES.items():
            points = data()
            about = json.dumps([astuple(one) for one in points], separators=(",", ":"))
            metadata = {"Date": None, "Creator": None, "Title": name, "Description": about}
            drawing(points).savefig(folder / f"{name}.svg", metadata=metadata)


def drawn(path: Path) -> list[Point]:
    """Return the values that a figure shows, from its description."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{path} has no description"
    return [Point(*values) for values in json.loads(found[1].replace("&quot;", '"'))]


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
