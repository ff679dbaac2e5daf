"""Make every figure and every table of the results from the raw results (needs the extras `plots` and `lora`).

    python docs/figures.py

Figures are SVG files in docs/img, tables are the pages beside the results. docs/img/manifest.json says what each was
made from, with the SHA-256 of every file: a test compares these with the files, and says what has to be made again.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from more_cli.evaluation.metrics import estimate
from more_lab.experiments.paired import compare
from more_lab.panel.__main__ import PAGES
from more_lab.panel.ranked import ranked
from more_lab.panel.table import FIVE, RESULTS

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "img"
MANIFEST = IMAGES / "manifest.json"

# Okabe and Ito's colours, which people with any colour vision can tell apart.
OURS, PART, PUBLISHED, LORA, OTHER = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#999999"
INK, FAINT = "#222222", "#D0D0D0"
STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": "white",  # the same card on a light and on a dark page
    "svg.fonttype": "none",
    "svg.hashsalt": "more",
}


@dataclass(frozen=True)
class Point:
    """One value of a figure with its 95 % interval, rounded to what a table shows."""

    panel: str
    row: str
    value: float
    low: float
    high: float
    n: int
    x: float = 0.0
    """Where it lies on the horizontal axis, in figures that have one."""


def point(panel: str, row: str, values: Sequence[float], n: int, x: float = 0.0, *, scale: float = 100.0) -> Point:
    """Return a point from a value and the ends of its interval."""
    value, low, high = (round(scale * float(number), 2) for number in values)
    return Point(panel, row, value, low, high, n, round(x, 1))


def panels(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return the points by panel, in order."""
    found: dict[str, list[Point]] = {}
    for one in points:
        found.setdefault(one.panel, []).append(one)
    return found


# ------------------------------------------------------------------------------------------------ data


@cache
def runs(name: str) -> tuple[dict[str, Any], ...]:
    """Return the runs of a file of results."""
    return tuple(map(json.loads, (RESULTS / name).read_text(encoding="utf-8").splitlines()))


def retention(table: str) -> list[dict[str, Any]]:
    """Return the runs of one table of RETENTION.md."""
    return [run for run in runs("retention.jsonl") if run["table"] == table]


def by_edit(table: str, row: str, label: str) -> list[float]:
    """Return a metric of each edit, its mean over the runs of a row."""
    mine = [run for run in retention(table) if run["row"] == row]
    labels = FIVE if label == "mean of five" else (label,)
    means: list[float] = np.mean([[run["values"][one] for one in labels] for run in mine], axis=(0, 1)).tolist()
    return means


def cost(table: str, row: str) -> float:
    """Return the samples sent forward and backward per edit, a consolidation included."""
    mine = [run for run in retention(table) if run["row"] == row]
    return float(np.mean([(sum(run["cost"]) + (run["consolidation"] or 0)) / max(1, len(run["cost"])) for run in mine]))


def measured(table: str, row: str, label: str, panel: str = "", name: str = "") -> Point:
    """Return a row's metric, in %, over its row's cost."""
    found = estimate(by_edit(table, row, label))
    values = found.value, found.low, found.high
    return point(panel or label, name or row, values, found.n, cost(table, row))


OTHERS = (
    *("grace", "ike", "serac", "liveedit", "wise", "alphaedit", "memit", "rome", "mend", "ultraedit", "scopeedit"),
    *("ft-l", "ft-m"),
)
"""Editors of others, but LoRA, which has a colour of its own."""


def editors() -> list[Point]:
    """Return the editors of `e-vqa` after 100 edits, each calibrated with nine tries, from the highest mean on."""
    shown = ranked([run for run in runs("nine.jsonl") if run["suite"] == "e-vqa"])
    found = {run["editor"]: run["readouts"]["final@100"] for run in shown}
    order = sorted(found, key=lambda editor: -sum(found[editor][label][0] for label in FIVE))
    return [
        point(label, editor, values[:3], values[3])
        for editor in order
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
        mine = [run for run in retention("arrivals") if run["row"] == row and run["seed"] % STREAMS == stream]
        found += np.mean([run["values"][label] for run in mine], axis=0).tolist()
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


STANDING = {
    "auto-anchors": ("anchors made", OURS),
    "default": ("anchors by hand", PART),
    "anew-whole-rank": ("whole ranks, written anew", PUBLISHED),
    "lora": ("LoRA, rate chosen on 40", LORA),
    "lora-0.0005": ("LoRA, the lowest rate", OTHER),
}
RIVALS = {
    "more, anchors made": (OURS, "o"),
    "more": (PART, "o"),
    "naive": ("#7A5195", "o"),
    "ike": ("#CC79A7", "^"),
    "grace": ("#009E73", "s"),
    "serac": (OTHER, "v"),
    "alphaedit": (INK, "D"),
    "lora": (LORA, "P"),
    "more:paper": (PUBLISHED, "X"),
}
"""Editors of the figure of rivals, each with a colour and a marker, since colours alone do not tell nine apart."""

LENGTHS = 10, 100, 1000


def standing() -> list[Point]:
    """Return what 100 to 3,000 corrections that all stand leave, on one held-out model."""
    wanted = "D2", "long", "evaluation"
    mine = [run for run in runs("panel.jsonl") if (run["model"], run["stream"], run["pool"]) == wanted]
    points = []
    for label in FIVE:
        for variant, (name, _) in STANDING.items():
            for run in sorted((run for run in mine if run["variant"] == variant), key=lambda run: run["limit"]):
                found = estimate([value for value in run["values"][label] if value is not None])
                points.append(point(label, name, (found.value, found.low, found.high), found.n, run["limit"]))
    return points


def rivals() -> list[Point]:
    """Return what editors keep of the first 10, 100 and 1,000 corrections of one stream, scored after the last."""
    found = {run["row"]: run["readouts"] for run in runs("thousand.jsonl")}
    return [
        point(label, editor, values[:3], values[3], mark)
        for label in FIVE
        for editor in RIVALS
        for mark in LENGTHS
        for values in [found[editor][f"final@{mark}"][label]]
    ]


ABLATED = ("Rel", "M-Gen", "M-Loc", "mean of five")
SWEEPS = {
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
        (RESULTS / "ABLATIONS.md")
        .read_text(encoding="utf-8")
        .split("## Means over worlds and suites\n")[1]
        .split("\n## ")[0]
        .splitlines()
    )
    columns, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line[:1] == "|"]
    points = []
    for sweep, setting, count, *cells in rows:
        if sweep in SWEEPS:
            shown = dict(zip(columns[3:], cells, strict=True))
            for panel in ABLATED:
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
    return SWEEPS[sweep] if sweep == "pooling" else f"{SWEEPS[sweep]} {values[0]}"


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
    return OTHER if row in ("none", "before", *OTHERS) else OURS


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


def draw_standing(points: Sequence[Point]) -> Figure:
    """Draw a panel a metric, a line an editor, against the number of corrections."""
    return _lines(points, {name: (colour, "o") for name, colour in STANDING.values()}, (100, 300, 1000, 3000))


def draw_rivals(points: Sequence[Point]) -> Figure:
    """Draw a panel a metric, a line an editor, against the number of corrections."""
    return _lines(points, RIVALS, LENGTHS)


def _lines(points: Iterable[Point], kinds: Mapping[str, tuple[str, str]], ticks: Sequence[int]) -> Figure:
    figure = Figure(figsize=(9.5, 3.2), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(1, len(found), sharey=True), found.items(), strict=True):
        for name, (colour, marker) in kinds.items():
            mine = [one for one in part if one.row == name]
            errors = [[one.value - one.low for one in mine], [one.high - one.value for one in mine]]
            x, y = [one.x for one in mine], [one.value for one in mine]
            axes.errorbar(x, y, yerr=errors, fmt=f"{marker}-", color=colour, markersize=4, capsize=2, label=name)
        axes.set(title=panel, xscale="log", ylim=(0, 104))
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(5, len(kinds)), frameon=False
    )
    return figure


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
        axes.set_yticklabels([one.row for one in part] if panel == ABLATED[0] else [])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=FAINT, linewidth=0.6)
    figure.supxlabel("points, minus the paper's setting, mean of eleven worlds and suites, 95 % interval", fontsize=9)
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


def draw(name: str) -> None:
    """Write a figure."""
    data, drawing = FIGURES[name]
    with mpl.rc_context(STYLE):
        drawing(data()).savefig(IMAGES / f"{name}.svg", metadata={"Date": None, "Creator": None, "Title": name})


# ------------------------------------------------------------------------------------------------ tables


def tabulate(name: str) -> None:
    """Write a page of tables."""
    (RESULTS / name).write_text("".join(f"{line}\n" for line in PAGES[name]()), encoding="utf-8")


# ------------------------------------------------------------------------------------------------ what was read

_opened: set[Path] = set()


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str) and arguments[1] == "r":
        path = Path(arguments[0]).resolve()
        if path.suffix in (".json", ".jsonl", ".md") and RESULTS in path.parents:
            _opened.add(path)


def made(path: Path, make: Callable[[], None]) -> dict[str, dict[str, str]]:
    """Make a file and return, by its path, the SHA-256 of every result and text that was read for it."""
    runs.cache_clear()
    _opened.clear()
    make()
    hashes = {str(one.relative_to(ROOT)): hashlib.sha256(one.read_bytes()).hexdigest() for one in sorted(_opened)}
    return {str(path.relative_to(ROOT)): hashes}


def main() -> None:
    """Make all tables, then all figures, of which one is drawn from a table, then the manifest."""
    sys.addaudithook(_note)
    manifest: dict[str, dict[str, str]] = {}
    for name in PAGES:
        manifest |= made(RESULTS / name, partial(tabulate, name))
    for name in FIGURES:
        manifest |= made(IMAGES / f"{name}.svg", partial(draw, name))
    MANIFEST.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
