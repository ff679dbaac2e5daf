"""Figures of one metric a panel against the number of corrections: of unseen-models.md, and of results.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from figure_parts import FAINT, FIVE, INK, LORA, OTHER, OURS, PART, PUBLISHED, RESULTS, Point, panels, point
from more_cli.evaluation.metrics import estimate

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


def _runs(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


def standing() -> list[Point]:
    """Return what 100 to 3,000 corrections that all stand leave, on one held-out model."""
    wanted = "D2", "long", "evaluation"
    runs = [run for run in _runs("panel.jsonl") if (run["model"], run["stream"], run["pool"]) == wanted]
    points = []
    for label in FIVE:
        for variant, (name, _) in STANDING.items():
            for run in sorted((run for run in runs if run["variant"] == variant), key=lambda run: run["limit"]):
                found = estimate([value for value in run["values"][label] if value is not None])
                points.append(point(label, name, (found.value, found.low, found.high), found.n, run["limit"]))
    return points


def rivals() -> list[Point]:
    """Return what editors keep of the first 10, 100 and 1,000 corrections of one stream, scored after the last."""
    runs = {run["row"]: run["readouts"] for run in _runs("thousand.jsonl")}
    return [
        point(label, editor, values[:3], values[3], mark)
        for label in FIVE
        for editor in RIVALS
        for mark in LENGTHS
        for values in [runs[editor][f"final@{mark}"][label]]
    ]


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
