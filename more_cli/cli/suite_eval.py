"""`more eval --suite`: its options, its tables and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli.outlets import Outlets, gate_values, show_gates
from more_cli.cli.output import Output
from more_cli.cli.scores import estimate_cells, metrics_values
from more_cli.errors import UsageError

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate
    from more_cli.experiments.report import SuiteReport
    from more_cli.experiments.run import RunOptions
    from more_cli.model.machine import Machine
    from more_cli.ops.session import Target
    from more_cli.suites.load import EditSuite, Suite

SuiteName = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", help="Run an editor through a suite from the untouched base; see `more suites`."),
]
DataRoot = Annotated[Path | None, typer.Option(metavar="DIR", help="With --suite: the folder with the suite's files.")]
EditorName = Annotated[str, typer.Option("--editor", metavar="NAME", help="With --suite: which editor runs.")]
Limit = Annotated[int, typer.Option(min=0, help="With --suite: the first N edits; 0 for all.")]
Checkpoints = Annotated[
    str, typer.Option(metavar="1,10,..", help="With --suite: after which edits `final` and `online` are read off.")
]
ProtocolNames = Annotated[
    list[str] | None,
    typer.Option("--protocol", help="With --suite: final, online, lag or single; repeatable. [default: final, online]"),
]
Lags = Annotated[str, typer.Option(metavar="10,..", help="With --protocol lag: further edits before one is scored.")]
Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="With --suite: for what the base says and what was measured.")
]
Calibrate = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="With --suite: try N settings of the editor on the calibration pool first."),
]
Metrics = Annotated[
    str | None,
    typer.Option("--metrics", metavar="NAME", help="With --suite: count as a source does; see `more suites metrics`."),
]
Anchors = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --suite: JSON Lines of questions whose answers must not move, for M-ORE."),
]
Again = Annotated[bool, typer.Option("--again", help="With --suite: measure anew what an earlier run has measured.")]


def check_together(suite: str | None, probes: Path | None, given: Sequence[str]) -> None:
    """Refuse options that say nothing together.

    Raises:
        UsageError: a suite and a file of questions, or options of a suite without one.
    """
    if suite is not None and probes is not None:
        raise UsageError("`--suite` and `--probes` were both given", "leave one of them out")
    if suite is None and given:
        raise UsageError(f"`{given[0]}` says how an editor goes through a suite", "name one with --suite")


def run_options(
    *,
    editor: str,
    recipe: str | None,
    settings: list[str] | None,
    limit: int,
    protocols: list[str] | None,
    checkpoints: str,
    lags: str,
    cache: Path | None,
    again: bool,
    calibrate: int,
    metrics: str | None,
    anchors: Path | None,
) -> RunOptions:
    """Return the options of a run, checked.

    Raises:
        UsageError: no such protocol or preset, both given, or not a list of numbers.
    """
    from more_cli.experiments.presets import preset_of
    from more_cli.experiments.protocols import PROTOCOLS, checked, marks_of
    from more_cli.experiments.run import RunOptions

    preset = preset_of(metrics) if metrics is not None else None
    if preset and protocols:
        raise UsageError(f"`--metrics {metrics}` has its protocol: {', '.join(preset.protocols)}", "drop --protocol")
    try:
        chosen = checked(protocols or (preset.protocols if preset else ("final", "online")))
    except ValueError as error:
        raise UsageError(f"unknown protocol `{error}`", f"there are {', '.join(PROTOCOLS)}") from None
    numbers = {}
    for option, text in (("--checkpoints", checkpoints), ("--lags", lags)):
        try:
            numbers[option] = marks_of(text)
        except ValueError:
            raise UsageError(f"`{option} {text}` is no list of numbers", f"for example {option} 1,10,100") from None
    return RunOptions(
        editor=editor,
        recipe=recipe,
        settings=tuple(settings or ()),
        limit=limit or None,
        protocols=chosen,
        checkpoints=numbers["--checkpoints"],
        lags=numbers["--lags"],
        cache=cache,
        again=again,
        calibrate=calibrate,
        preset=preset,
        anchors=anchors,
    )


def evaluate_suite(
    output: Output,
    name: str,
    data_root: Path | None,
    image_root: Path | None,
    model: Path | None,
    state: Path | None,
    options: RunOptions,
    machine: Machine,
    files: Outlets,
    *,
    strict_paths: bool = False,
) -> None:
    """Run a suite and show what it measured.

    Raises:
        UsageError: a suite of yes/no questions was to be counted as one of edits.
    """
    from more_cli.evaluation.gates import judge
    from more_cli.experiments.report import gate_names
    from more_cli.experiments.run import run_suite, schedule_of
    from more_cli.render.pages import of_suite
    from more_cli.suites.load import YesNoSuite

    suite = loaded_suite(output, name, data_root, image_root, strict_paths=strict_paths)
    target = target_of(output, model, state)
    if isinstance(suite, YesNoSuite):
        from more_cli.cli.capability import evaluate_capability

        if options.preset is not None:
            raise UsageError("--metrics says how edits are counted", f"{suite.name} has none: leave it out")
        evaluate_capability(output, suite, target, machine, files)
        return
    for notice in options.preset.notices if options.preset else ():
        output.note(f"note: {notice}")
    gates = files.gates_on(gate_names(schedule_of(suite, options)))
    with output.progress() as progress:
        report = run_suite(suite, target.model, options, machine, progress)
    report.gates = judge(gates, report.gated)
    show_suite(output, report)
    files.write(of_suite(report))


def loaded_suite(
    output: Output, name: str, data_root: Path | None, image_root: Path | None, *, strict_paths: bool = False
) -> Suite:
    """Load a suite and say what whoever sees its numbers should know."""
    from more_cli.suites.load import load_suite

    suite = load_suite(name, data_root, image_root, strict_paths=strict_paths)
    for notice in suite.notices:
        output.note(f"note: {notice}")
    return suite


def edits_of(
    output: Output, name: str, data_root: Path | None, image_root: Path | None, *, strict_paths: bool = False
) -> EditSuite:
    """Load a suite of edits.

    Raises:
        UsageError: it has none.
    """
    from more_cli.suites.load import EditSuite

    suite = loaded_suite(output, name, data_root, image_root, strict_paths=strict_paths)
    if not isinstance(suite, EditSuite):
        raise UsageError(
            f"suite `{suite.name}` has no edits for an editor", "`more eval MODEL --suite` asks its questions"
        )
    return suite


def target_of(output: Output, model: Path | None, state: Path | None) -> Target:
    """Return what a command means or, where it names nothing and no state lies here, the embedded demo model."""
    from more_cli.ops.session import Target, locate
    from more_cli.store.state import sidecar_path

    if model is not None or state is not None or any(Path.cwd().glob("*.more")):
        return locate(model, state)
    from more_cli.demo.files import demo_model_dir

    output.note("note: no MODEL and no `*.more` here: this is the embedded demo model")
    return Target(demo_model_dir(), sidecar_path(demo_model_dir()))


def show_suite(output: Output, report: SuiteReport) -> None:
    """Show the metrics by protocol and checkpoint, and the gates."""
    if output.as_json:
        output.json("more.eval/1", suite_values(report))
    output.line(f"{heading(report)}; editor {report.editor}")
    _show_numbers(output, report)
    rel = report.estimates[report.headline]["rel.gen_exact"]
    output.line(
        f"headline {report.headline}: rel.gen_exact {rel.value:.3f}, 95 % interval {rel.low:.3f} to {rel.high:.3f}"
    )
    _show_forgetting(output, report)
    if report.first_failing is not None:
        output.line(f"first edit that does not hold: {report.first_failing}")
    counts = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
    output.line(f"{counts}; {report.cost:.1f} samples forward and backward per edit; {report.seconds:.0f} s")
    if calibration := report.reproduce.get("calibration"):
        chosen = ", ".join(calibration["chosen"]) or "as it is"
        output.line(f"calibrated on {calibration['n']} other edits: of {len(calibration['tried'])} settings, {chosen}")
    if report.resumed:
        output.note(f"{report.resumed} steps were measured by an earlier run; --again measures them anew")
    show_gates(output, report.gates)


def heading(report: SuiteReport) -> str:
    """Say which edits of a suite were run and what locality is measured against."""
    taken = len(report.edits)
    whole = "" if taken == report.available else f" (the first of {report.available}; --limit 0 for all)"
    return f"{report.suite.name}, {taken} edits{whole}; {report.locality}"


def _show_numbers(output: Output, report: SuiteReport) -> None:
    from more_cli.experiments.report import SHOWN

    readouts = list(report.estimates)
    if report.preset is None:
        rows = {name: name for name in SHOWN}
        found = report.estimates
    else:
        output.line(f"counted as {report.preset.name}: {report.preset.title}")
        rows = {**report.preset.columns, "Avg": "mean of these"}
        found = report.preset_values
    shown = {row: name for row, name in rows.items() if any(row in found[readout] for readout in readouts)}
    cells = [(row, name, *(cell(found[readout].get(row)) for readout in readouts)) for row, name in shown.items()]
    if all(row == name for row, name in shown.items()):
        output.table(("metric", *readouts), [(row, *values) for row, _, *values in cells], numbers=readouts)
    else:
        output.table(("there", "metric", *readouts), cells, numbers=readouts)


def _show_forgetting(output: Output, report: SuiteReport) -> None:
    if any(report.retention):
        output.table(
            ("edits since", "rel.gen_exact", "95 % interval", "n", "forgotten"),
            [(lag, *estimate_cells(value), cell(report.lost.get(lag))) for lag, value in report.retention.items()],
            numbers=("edits since", "rel.gen_exact", "n", "forgotten"),
        )
    if report.forgetting is not None:
        lost = report.forgetting
        output.line(f"forgotten by the end: {lost.value:.3f} ({lost.low:.3f} to {lost.high:.3f}) of rel.gen_exact")


def suite_values(report: SuiteReport) -> dict[str, Any]:
    """Return a run as JSON values: what `eval --json` has of a state, and every protocol beside it."""
    from more_cli.cli.scores import values_of_edit

    before = report.base_answers
    return (
        source_values(report)
        | summary_values(report)
        | {
            "source": report.suite.name,
            "gates": [gate_values(found) for found in report.gates],
            "stream": [
                {key: line[key] for key in ("t", "id", "seconds", "catch_up")} | {"outcome": _told(line["outcome"])}
                for line in report.lines
            ],
            "matrix": [{"after": t, "edit": i, "scores": scores} for (t, i), scores in sorted(report.cells.items())],
            "per_edit": [values_of_edit(scores, before[scores.id]) for scores in report.per_edit],
        }
    )


def source_values(report: SuiteReport) -> dict[str, Any]:
    """Return what was run and how it is read, as JSON values."""
    return {
        "suite": {"name": report.suite.name, "from": report.suite.source, "notices": list(report.suite.notices)},
        "model": str(report.model),
        "edits": len(report.edits),
        "available": report.available,
        "protocol": report.headline.partition("@")[0],
        "baseline": report.yardstick.baseline,
        "prefix": report.yardstick.prefix,
        "headline": report.headline,
    }


def summary_values(report: SuiteReport) -> dict[str, Any]:
    """Return what one editor measured, but for the scores of each edit, as JSON values."""
    baseline = report.yardstick.baseline
    return {
        "editor": report.editor,
        "metrics": metrics_values(report.estimates[report.headline], report.headline.partition("@")[0], baseline),
        "protocols": {
            readout: metrics_values(found, readout.partition("@")[0], baseline)
            for readout, found in report.estimates.items()
        },
        "preset": _preset_values(report) if report.preset else None,
        "retention": {str(lag): asdict(value) for lag, value in report.retention.items()},
        "forgetting": asdict(report.forgetting) if report.forgetting else None,
        "forgetting_by_lag": {str(lag): asdict(value) for lag, value in report.lost.items()},
        "first_failing": report.first_failing,
        "counts": report.statuses,
        "cost": report.cost,
        "base_asked": report.base_asked,
        "resumed": report.resumed,
        "wall_seconds": round(report.seconds, 3),
        "reproduce": report.reproduce,
    }


def _preset_values(report: SuiteReport) -> dict[str, Any]:
    assert report.preset is not None
    return {
        "name": report.preset.name,
        "title": report.preset.title,
        "columns": dict(report.preset.columns),
        "notices": list(report.preset.notices),
        "protocols": {
            readout: {column: asdict(value) for column, value in found.items()}
            for readout, found in report.preset_values.items()
        },
    }


def _told(outcome: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in outcome.items() if key != "looks"}


def cell(value: Estimate | None) -> str:
    """Return a value as a table cell."""
    return "" if value is None else f"{value.value:.3f}"
