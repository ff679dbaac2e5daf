"""The figure of unseen-models.md: corrections that all stand."""

from __future__ import annotations

import json
from collections.abc import Sequence

from matplotlib.figure import Figure

from figure_parts import FAINT, FIVE, LORA, OURS, PART, RESULTS, Point, panels, point
from more_cli.evaluation.metrics import estimate

STANDING = {"auto-anchors": "anchors made", "default": "anchors by hand", "lora": "LoRA"}


def standing() -> list[Point]:
    """Return what 100, 300 and 1,000 corrections that all stand leave, on one held-out model."""
    made = map(json.loads, (RESULTS / "panel.jsonl").read_text(encoding="utf-8").splitlines())
    runs = [run for run in made if (run["model"], run["stream"], run["pool"]) == ("D2", "long", "evaluation")]
    points = []
    for label in FIVE:
        for variant, name in STANDING.items():
            for run in sorted((run for run in runs if run["variant"] == variant), key=lambda run: run["limit"]):
                found = estimate([value for value in run["values"][label] if value is not None])
                points.append(point(label, name, (found.value, found.low, found.high), found.n, run["limit"]))
    return points


def draw_standing(points: Sequence[Point]) -> Figure:
    """Draw a panel a metric, a line an editor, against the number of corrections."""
    figure = Figure(figsize=(9.5, 2.9), layout="constrained")
    found = panels(points)
    for axes, (panel, part) in zip(figure.subplots(1, len(found), sharey=True), found.items(), strict=True):
        for name, colour in zip(STANDING.values(), (OURS, PART, LORA), strict=True):
            mine = [one for one in part if one.row == name]
            errors = [[one.value - one.low for one in mine], [one.high - one.value for one in mine]]
            x, y = [one.x for one in mine], [one.value for one in mine]
            axes.errorbar(x, y, yerr=errors, fmt="o-", color=colour, markersize=4, capsize=2, label=name)
        axes.set(title=panel, xscale="log", xticks=[100, 300, 1000], ylim=(0, 104))
        axes.set_xticks([100, 300, 1000], ["100", "300", "1,000"])
        axes.minorticks_off()
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure
