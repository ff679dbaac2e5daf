"""The page of a sweep: its trials or its checkpoints side by side, and a figure by matplotlib where that is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.evaluation.metrics import Estimate
from more_cli.render.page import Page, Sentence, Table
from more_cli.render.plots import Bars
from more_cli.render.templates import Quoted
from more_cli.text import counted
from more_lab.experiments.compare_results import Comparison
from more_lab.figures import save_figure
from more_lab.render.comparison import DIFFERENCE, difference_cells
from more_lab.sweep.fleet import FleetReport, metrics_of
from more_lab.sweep.report import SweepReport
from more_lab.sweep.trials import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = (".png", ".svg")


def of_sweep(found: SweepReport) -> Page:
    """Return the page of a grid."""
    names = shown_metrics(found)
    groups = {(trial.names.model, trial.names.suite) for trial in found.trials}
    headlines = {found.done.values[trial.key]["headline"]: None for trial in found.finished.values()}
    return Page(
        command="more sweep",
        subject=found.file.path.name,
        headline=f"{len(found.finished)} of {counted(len(found.trials) - found.repeated, 'trial')} done",
        scope=f"{found.file.path.name}, {counted(len(groups), 'model and suite', 'models and suites')}",
        reading=f"{', '.join(headlines) or 'nothing measured'}, differences are from the first trial of the same "
        "model, suite and number of edits",
        tables=[
            Table(
                "Trials",
                ("trial", *names, "cost per edit"),
                trial_rows(found, names),
                plots=[
                    Bars(
                        name, {label: metrics[name] for label, metrics in _estimates(found).items() if name in metrics}
                    )
                    for name in names
                ],
            ),
            *_differences(found),
            *_problems(found.done.problems),
        ],
        reproduce={label: trial.key for label, trial in found.finished.items()},
    )


def shown_metrics(found: SweepReport) -> list[str]:
    """Return the metrics that any trial has, in the order of tables."""
    return [name for name in found.shown if any(name in metrics for metrics in _estimates(found).values())]


def trial_rows(found: SweepReport, names: Sequence[str]) -> list[tuple[object, ...]]:
    """Return a row with the metrics of each finished trial."""
    return [
        (
            label,
            *(f"{metrics[name].value:.3f}" if name in metrics else "" for name in names),
            f"{found.done.values[found.finished[label].key]['cost']:.1f}",
        )
        for label, metrics in _estimates(found).items()
    ]


def difference_rows(found: SweepReport) -> Iterator[tuple[object, ...]]:
    """Yield a row for each trial and metric that was compared with the first trial, or one that says why not."""
    names = shown_metrics(found)
    for label, comparison in found.comparisons.items():
        if isinstance(comparison, Comparison):
            for name in names:
                if name in comparison.metrics:
                    yield label, name, *difference_cells(comparison.metrics[name])
        else:
            yield label, f"not compared: {comparison}", *("" for _ in DIFFERENCE)


def of_fleet(found: FleetReport) -> Page:
    """Return the page of a fleet."""
    rows = fleet_rows(found)
    return Page(
        command="more sweep",
        subject=found.file.path.name,
        headline=f"{len(rows)} of {counted(len(found.members), 'checkpoint')} done",
        scope=f"{found.file.path.name}, {found.members[0].stream.name}",
        reading="protocol final, locality against each checkpoint without its edits",
        sentences=[
            Sentence((Quoted(label), ": edits that do not stand:"), [(Quoted(id),) for id in ids], good=False)
            for label, ids in found.failed_edits.items()
        ],
        tables=[Table("Checkpoints", FLEET, rows), *_problems(found.done.problems)],
        reproduce={line["model"]: key for key, line in found.lines.items()},
    )


FLEET = ("model", "edits", "by status", "rel.gen_exact", "95 % interval", "state", "written")
"""Columns of the table of a fleet."""


def fleet_rows(found: FleetReport) -> list[tuple[object, ...]]:
    """Return a row for each checkpoint that is done, in the order of the file."""
    rows = list[tuple[object, ...]]()
    for member in found.members:
        if line := found.lines.get(member.key):
            right = metrics_of(line).get("rel.gen_exact")
            cells = (f"{right.value:.3f}", right.between()) if right else ("", "")
            counts = ", ".join(f"{count} {status}" for status, count in line["counts"].items())
            rows.append((member.label, line["edits"], counts, *cells, line["state"], line["written"]))
    return rows


def _estimates(found: SweepReport) -> dict[str, dict[str, Estimate]]:
    return {label: found.estimates(trial) for label, trial in found.finished.items()}


def _differences(found: SweepReport) -> Iterator[Table]:
    if rows := list(difference_rows(found)):
        note = "mean difference from the first trial over edits; p of the exact sign test"
        yield Table("Differences", ("trial", "metric", *DIFFERENCE), rows, note)


def _problems(problems: Mapping[str, str]) -> Iterator[Table]:
    if problems:
        yield Table("Failed", ("", "why"), list(problems.items()))


def draw_figures(found: SweepReport, stem: Path) -> list[Path]:
    """Draw the metrics over the one setting that varies, or by trial, and return the files; none without matplotlib.

    The same results give the same bytes.

    Raises:
        StateError: not writable.
        ResourceError: no space.
    """
    names = shown_metrics(found)
    if find_spec("matplotlib") is None or not names:
        return []
    files = [stem.with_suffix(suffix) for suffix in FIGURES]
    for path in files:
        save_figure(path, (7, 2.2 * len(names)), lambda figure: _draw(figure, found, names))
    return files


def _draw(figure: Figure, found: SweepReport, names: Sequence[str]) -> None:
    axis = _axis(found)
    lines, level = _lines(found, axis)
    panels = figure.subplots(len(names), sharex=True, squeeze=False)[:, 0]
    for panel, name in zip(panels, names, strict=True):
        panel.set_title(name, fontsize="small", loc="left")
        panel.ticklabel_format(axis="y", useOffset=False)
        for label, points in lines.items():
            shown = [(x, metrics[name]) for x, metrics in points if name in metrics]
            values = [value.value for _, value in shown]
            # No less than nothing: the ends of an interval are rounded on their own.
            spread = [[max(0.0, v.value - v.low), max(0.0, v.high - v.value)] for _, v in shown]
            panel.errorbar(
                [x for x, _ in shown], values, yerr=list(zip(*spread, strict=True)), marker="o", capsize=3, label=label
            )
        for label, metrics in level.items():
            if name in metrics:
                panel.axhline(metrics[name].value, linestyle="--", color="0.6", label=label)
    panels[-1].set_xlabel(axis or "")
    if axis:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize="small")
    else:
        panels[-1].tick_params(axis="x", rotation=60, labelsize="small")


def _axis(found: SweepReport) -> str | None:
    """Return the one setting with several values, all of them numbers; None if there is not exactly one."""
    values = dict[str, set[str]]()
    for trial in found.finished.values():
        for key, value in _settings(trial).items():
            values.setdefault(key, set()).add(value)
    varied = [key for key, found in values.items() if len(found) > 1]
    return varied[0] if len(varied) == 1 and all(map(_is_number, values[varied[0]])) else None


Points = list[tuple[float | str, dict[str, Estimate]]]


def _lines(found: SweepReport, axis: str | None) -> tuple[dict[str, Points], dict[str, dict[str, Estimate]]]:
    """Return the points over the varied setting by the rest of their label, and by label the trials that lack it.

    Without such a setting each trial is a line of one point.
    """
    lines, level = dict[str, Points](), dict[str, dict[str, Estimate]]()
    for label, metrics in _estimates(found).items():
        value = _settings(found.finished[label]).get(axis or "")
        if axis is None:
            lines[label] = [(label, metrics)]
        elif value is None:
            level[label] = metrics
        else:
            words = (part.split(" ") for part in label.split(", "))
            rest = (" ".join(word for word in part if word != f"{axis}={value}") for part in words)
            lines.setdefault(", ".join(filter(None, rest)), []).append((float(value), metrics))
    return {label: sorted(points, key=lambda point: point[0]) for label, points in lines.items()}, level


def _settings(trial: Trial) -> dict[str, str]:
    return {key: value for key, _, value in (text.partition("=") for text in trial.names.settings)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
