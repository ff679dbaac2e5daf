"""What the journal says about a stream: forgetting, cost, scope of the edits, and metrics by setting.

Paper: Fig. 3d (forgetting), Fig. "scaling" (efficiency), Figs. "Hyper_Rank" and "Hyper_lambda" (sensitivity); the scope
of edits is ScopeEdit's (arXiv 2607.01978).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from more_cli.evaluation.metrics import Estimate, change, estimate
from more_cli.evaluation.names import is_locality
from more_cli.recipe.settings import dotted
from more_cli.runner.report import summary
from more_lab.analyses.figures import colour, line
from more_lab.analyses.kept import KeptRun, NotKept
from more_lab.analyses.result import Cell, Result, Scalar
from more_lab.experiments.scaling import WINDOW, rolling, trend
from more_lab.figures import PALETTE

METRIC = "tf_token_acc"
"""Reliability in the paper's tables."""
FIVE = {
    "Rel.": "rel.tf_token_acc",
    "T-Gen.": "gen_text.tf_token_acc",
    "M-Gen.": "gen_image.tf_token_acc",
    "T-Loc.": "loc_text.loc_top1_answer",
    "M-Loc.": "loc_image.loc_top1_answer",
}
"""The paper's five columns, in metrics that every run has."""
SCOPES = ("proper", "under-generalised", "over-generalised", "entangled")
MIB = 1 << 20
SHORT = 30
"""Longest value of a constant in a legend, in characters."""


def forgetting(runs: Sequence[KeptRun]) -> Result:
    """Return the reliability of edit i after t edits, and how much of it is lost by the end."""
    matrices = [reliability(run) for run in runs]
    rows: list[Sequence[Cell]] = []
    scalars = []
    for run, matrix in zip(runs, matrices, strict=True):
        rows += [(run.label, i, t, value) for (t, i), value in sorted(matrix.items())]
        last = len(run)
        lost = [matrix[i, i] - matrix[last, i] for i in range(1, last) if {(i, i), (last, i)} <= set(matrix)]
        if not lost:
            hint = "run it with --protocol final --protocol online --protocol lag --lags 1-9"
            raise NotKept(f"`{run.folder}` scored no edit twice", hint)
        scalars.append(Scalar.of(run.label, f"{METRIC} lost by the end", change(lost)))

    def draw(figure: Any) -> None:
        curves, retained = figure.subplots(1, 2, sharey=True)
        for place, (run, matrix) in enumerate(zip(runs, matrices, strict=True)):
            for i in range(1, len(run) + 1):
                after = [t for t, j in sorted(matrix) if j == i]
                values = [matrix[t, i] for t in after]
                curves.plot(after, values, color=colour(place), alpha=0.45, linewidth=1, marker=".", markersize=4)
            lags = by_lag(matrix)
            line(retained, place, list(lags), list(lags.values()), label=run.label)
        curves.set(xlabel="edits t", ylabel="reliability of edit i after t edits", ylim=(-0.05, 1.05))
        retained.set(xlabel="lag, edits since")
        retained.legend(frameon=False, title="mean over edits")
        for axes in (curves, retained):
            axes.xaxis.get_major_locator().set_params(integer=True)

    note = f"Reliability is rel.{METRIC}. Left: a thin line per edit; right: the mean by lag."
    return Result(("run", "edit i", "after t edits", METRIC), rows, scalars, draw, size=(7.5, 3.4), note=note)


def reliability(run: KeptRun) -> dict[tuple[int, int], float]:
    """Return the reliability of edit i after t edits by (t, i), without edits that were scored alone."""
    return {
        (t, i): float(score["values"].get(METRIC, math.nan))
        for (t, i), scores in run.cells.items()
        for score in scores
        if t and score["kind"] == "rel"
    }


def by_lag(matrix: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return the mean of (i + lag, i) by lag."""
    found: dict[int, list[float]] = {}
    for (t, i), value in sorted(matrix.items()):
        found.setdefault(t - i, []).append(value)
    return {lag: fmean(values) for lag, values in sorted(found.items())}


def efficiency(runs: Sequence[KeptRun]) -> Result:
    """Return seconds and peak memory of each edit, what the editor keeps and how long it takes to route a question."""
    rows: list[Sequence[Cell]] = []
    scalars: list[Scalar] = []
    for run in runs:
        stream = run.lines[: len(run)]
        for row in stream:
            about = row.get("peak"), _kept(row), row.get("routing")
            rows.append((run.label, row["t"], row["seconds"], row["outcome"]["cost"], *about))
        scalars += _costs(run.label, stream)

    def draw(figure: Any) -> None:
        latency, peak, memory = figure.subplots(3, sharex=True)
        for place, run in enumerate(runs):
            stream = run.lines[: len(run)]
            t, seconds = [row["t"] for row in stream], [row["seconds"] for row in stream]
            latency.plot(t, seconds, ".", color=colour(place), alpha=0.4)
            latency.plot(t, rolling(seconds), color=colour(place), label=run.label)
            peaks = [(row["t"], row["peak"] / MIB) for row in stream if "peak" in row]
            peak.plot(*zip(*peaks, strict=True) if peaks else ([], []), ".", color=colour(place), alpha=0.4)
            sizes = [(row["t"], kept / MIB) for row in stream if (kept := _kept(row)) is not None]
            line(memory, place, [t for t, _ in sizes], [size for _, size in sizes])
        latency.set(ylabel="seconds per edit", ylim=(0, None))
        latency.legend(frameon=False)
        peak.set(ylabel="peak memory, MiB", ylim=(0, None))
        memory.set(xlabel="edits t", ylabel="state, MiB", ylim=(0, None))
        memory.xaxis.get_major_locator().set_params(integer=True)

    note = f"Dots are edits, lines the mean of the last {WINDOW}. Peak memory is above what was held before the edit."
    columns = (
        *("run", "edit", "seconds", "samples forward and backward"),
        *("peak bytes", "bytes kept", "seconds to route a question"),
    )
    return Result(columns, rows, scalars, draw, size=(6.0, 5.6), note=note)


def scope(runs: Sequence[KeptRun]) -> Result:
    """Return how far the edits reach that hold at the end: as they should, too little, too far, or both wrong."""
    counts = {run.label: found for run in runs if sum((found := scopes(run)).values())}
    rows = [
        (label, name, found[name], found[name] / sum(found.values()))
        for label, found in counts.items()
        for name in SCOPES
    ]
    if not counts:
        raise NotKept("no edit of these runs holds at the end", "there is nothing to divide")
    scalars = [
        Scalar.of(
            label, "proper scope", estimate([float(name == "proper") for name in SCOPES for _ in range(found[name])])
        )
        for label, found in counts.items()
    ]
    shades = (PALETTE[0], PALETTE[5], PALETTE[4], PALETTE[1])

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(counts), squeeze=False)[0]
        for axes, (label, found) in zip(panels, counts.items(), strict=True):
            shown = [(name, shade) for name, shade in zip(SCOPES, shades, strict=True) if found[name]]
            axes.pie(
                [found[name] for name, _ in shown],
                labels=[f"{name}\n{found[name]}" for name, _ in shown],
                colors=[shade for _, shade in shown],
                startangle=90,
                counterclock=False,
                wedgeprops={"edgecolor": "white"},
            )
            axes.set_title(f"{label}: {sum(found.values())} edits hold")

    return Result(("run", "scope", "edits", "share"), rows, scalars, draw, size=(4.6 * len(counts), 3.4))


def scopes(run: KeptRun) -> dict[str, int]:
    """Return the number of edits of each scope, among those that hold after the last edit.

    Generalised: every other wording and picture of the edit is answered with the target. Kept: every locality question
    is answered as by the base. Proper: both; under-generalised: only kept; over-generalised: only generalised;
    entangled: neither.
    """
    found = dict.fromkeys(SCOPES, 0)
    for i in range(1, len(run) + 1):
        scores = run.cells.get((len(run), i))
        if scores is None:
            raise NotKept(f"`{run.folder}` was not scored after its last edit", "run it with --protocol final")
        if all(score["values"]["gen_exact"] == 1.0 for score in scores if score["kind"] == "rel"):
            others = [score for score in scores if score["kind"] in ("gen_text", "gen_image")]
            reached = all(score["values"]["gen_exact"] == 1.0 for score in others)
            kept = all(score["values"]["loc_flip"] == 0.0 for score in scores if is_locality(score["kind"]))
            names = {(1, 1): "proper", (0, 1): "under-generalised", (1, 0): "over-generalised", (0, 0): "entangled"}
            found[names[reached, kept]] += 1
    return found


def sensitivity(runs: Sequence[KeptRun]) -> Result:
    """Return the paper's five metrics and their mean by what differs between runs, after every checkpoint."""
    if len(runs) < 2:
        raise NotKept(
            "sensitivity needs at least two runs", "give --run for each, such as the same editor with other --set"
        )
    settings = differing(
        [
            run.record.reproduce
            | {"editor": run.record.editor, "on": {"suite": run.record.suite, "model": run.record.model.name}}
            for run in runs
        ]
    )
    found = {
        (number, readout.edits): _five(summary(readout, run.cells))
        for number, run in enumerate(runs)
        for readout in run.record.schedule.readouts()
        if readout.protocol == "final"
    }
    rows = [
        (settings[number], edits, name, value.value, value.low, value.high, value.n)
        for (number, edits), values in found.items()
        for name, value in values.items()
    ]
    if not found:
        raise NotKept("no run was scored after its last edit", "run them with --protocol final")
    ends, why = _ends(found)
    scalars = [
        Scalar(settings[number], f"mean of five after {edits}{why}", found[number, edits]["Avg."].value)
        for number, edits in ends.items()
        if "Avg." in found[number, edits]
    ]
    names = list(dict.fromkeys(name for values in found.values() for name in values))

    def draw(figure: Any) -> None:
        marks = sorted({edits for _, edits in found})
        panels = figure.subplots(1, len(marks), sharey=True, squeeze=False)[0]
        for axes, edits in zip(panels, marks, strict=True):
            for number in range(len(runs)):
                values = found.get((number, edits), {})
                place = [names.index(name) + (number - (len(runs) - 1) / 2) * 0.8 / len(runs) for name in values]
                heights = [value.value for value in values.values()]
                axes.bar(place, heights, 0.75 / len(runs), color=colour(number), label=settings[number])
            axes.set(xticks=range(len(names)), xticklabels=names, title=f"after {edits}", ylim=(0, 1.02))
            axes.tick_params(axis="x", rotation=60)
        panels[0].set_ylabel("score")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)

    columns = ("setting", "edits", "metric", "value", "low", "high", "n")
    return Result(columns, rows, scalars, draw, size=(8.5, 4.2))


def _ends(scored: Iterable[tuple[int, int]]) -> tuple[dict[int, int], str]:
    """Return after how many edits the mean of each run is shown, and why where that is not its end.

    Only means after equally many edits compare, so it is the last checkpoint that all runs have, if there is one.
    """
    marks = dict[int, set[int]]()
    for number, edits in scored:
        marks.setdefault(number, set()).add(edits)
    shared = set.intersection(*marks.values())
    ends = {number: max(shared or own) for number, own in marks.items()}
    is_cut = any(max(own) > ends[number] for number, own in marks.items())
    return ends, ", the last checkpoint of all runs" if is_cut else ""


def differing(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what differs between runs: suite, model, editor and, between runs of one editor, three constants."""
    shared = [fact.get("on", {}) | {"editor": fact["editor"]} for fact in facts]
    own = [dotted(fact.get("constants", {})) for fact in facts]
    names = [
        [f"{name}={one[name]}" for name in one if len({str(other[name]) for other in shared}) > 1] for one in shared
    ]
    for number, constants in enumerate(own):
        alike = [other for other, fact in zip(own, facts, strict=True) if fact["editor"] == facts[number]["editor"]]
        differ = [name for name in constants if len({str(other.get(name)) for other in alike}) > 1]
        short = [f"{name}={constants[name]}" for name in differ if len(str(constants[name])) <= SHORT]
        names[number] += short[:3]  # a legend holds no whole recipe
    labels = [", ".join(parts) for parts in names]
    return [
        label if labels.count(label) == 1 else ", ".join(filter(None, (label, f"run {number}")))
        for number, label in enumerate(labels, 1)
    ]


def _five(estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
    values = {name: estimates[metric] for name, metric in FIVE.items() if metric in estimates}
    if len(values) < len(FIVE):
        return values
    mean = fmean(value.value for value in values.values())
    return values | {"Avg.": Estimate(mean, math.nan, math.nan, len(values), "none")}


def _costs(label: str, stream: Sequence[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Yield the median of time and peak memory, how each grows over the stream, and the time to route at its end."""
    measured = {
        "the time per edit": ("median seconds per edit", [row["seconds"] for row in stream]),
        "an edit's peak memory": (
            "median peak memory of an edit, MiB above what was held",
            [row["peak"] / MIB for row in stream if "peak" in row],
        ),
    }
    for what, (median, values) in measured.items():
        if found := trend(values):
            name = f"growth of {what} over the stream, as a share of its median"
            yield Scalar(label, name, found.growth, found.low, found.high)
        if values:
            yield Scalar(label, median, float(np.median(values)))
    if routed := [row["routing"] for row in stream if "routing" in row]:
        yield Scalar(label, f"milliseconds to route a question after {len(stream)} edits", 1e3 * routed[-1])


def _kept(row: Mapping[str, Any]) -> int | None:
    footprint = row.get("footprint")
    return None if footprint is None else int(footprint["fixed"]) + int(footprint["growing"])
