"""Accuracy on unrelated yes/no questions against the number of edits (paper, Figs. "mme_six" and "mme_eight")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from more_cli.evaluation.metrics import Estimate, change, estimate
from more_cli.ops.capability import accuracy_of
from more_cli.suites.yes_no import parse_answer
from more_lab.analyses.figures import band, line
from more_lab.analyses.kept import KeptRun, Pairs
from more_lab.analyses.result import Cell, Result, Scalar

ACROSS = 4
"""Panels beside each other."""
BANDS = 4
"""Most runs whose intervals are drawn; the table has all."""
CHANCE = 50.0


def capability(runs: Sequence[KeptRun]) -> Result:
    """Return accuracy by category and number of edits, with intervals over images, and unparsable answers."""
    kept = {run.label: run.answers() for run in runs}
    categories = list(dict.fromkeys(name for found in kept.values() for pairs in found.values() for name in pairs))
    rows: list[Sequence[Cell]] = []
    curves: dict[tuple[str, str], dict[int, Estimate]] = {}
    for label, found in kept.items():
        for t, by_category in found.items():
            for name, pairs in by_category.items():
                curves.setdefault((label, name), {})[t] = value = accuracy(pairs)
                rows.append((label, name, t, value.value, value.low, value.high, value.n, unparsable(pairs)))
    scalars = [Scalar.of(label, "change of accuracy by the end", _change(found)) for label, found in kept.items()]

    def draw(figure: Any) -> None:
        down = -(-len(categories) // ACROSS)
        panels = figure.subplots(down, min(ACROSS, len(categories)), squeeze=False, sharex=True, sharey=True)
        for axes, name in zip(panels.flat, categories, strict=False):
            for place, label in enumerate(kept):
                curve = curves.get((label, name), {})
                values = list(curve.values())
                line(axes, place, list(curve), [100 * value.value for value in values], label=label)
                if len(kept) <= BANDS:
                    low, high = [100 * value.low for value in values], [100 * value.high for value in values]
                    band(axes, place, list(curve), low, high)
                if 0 in curve:
                    axes.axhline(100 * curve[0].value, color="0.3", linestyle="--", linewidth=1)
            axes.axhline(CHANCE, color="0.6", linestyle=":", linewidth=1)
            axes.set_title(name.replace("_", " "), fontsize=9)
            axes.set_ylim(0, 102)
            axes.xaxis.get_major_locator().set_params(integer=True)
        for axes in panels.flat[len(categories) :]:
            axes.set_visible(False)
        for axes in panels.flat[max(0, len(categories) - panels.shape[1]) : len(categories)]:
            axes.set_xlabel("edits", fontsize=9)
            axes.tick_params(labelbottom=True)
        figure.supylabel("accuracy, %", fontsize=9)
        if len(kept) > 1:
            figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)

    columns = ("run", "category", "edits", "accuracy", "low", "high", "images", "unparsable")
    size = (8.0, 1.0 + 1.5 * -(-len(categories) // ACROSS) + 0.2 * -(-len(kept) // ACROSS))
    note = f"Dashed: the unedited model; dotted: chance. Bands, up to {BANDS} runs, are 95 % intervals over images."
    return Result(columns, rows, scalars, draw, size=size, note=note)


def accuracy(pairs: Pairs) -> Estimate:
    """Return the share of right answers with its 95 % interval; an image's questions are kept together."""
    return estimate([accuracy_of(image) for image in pairs])


def unparsable(pairs: Pairs) -> float:
    """Return the share of answers that say neither yes nor no."""
    given = [parse_answer(answer) for image in pairs for _, answer in image]
    return given.count("other") / len(given)


def _change(found: dict[int, dict[str, Pairs]]) -> Estimate:
    first, last = found[min(found)], found[max(found)]
    return change(
        [
            accuracy_of(after) - accuracy_of(before)
            for name in first
            for before, after in zip(first[name], last[name], strict=True)
        ]
    )
