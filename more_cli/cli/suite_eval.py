"""`more eval --suite`: its options, its tables and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli.output import Output
from more_cli.errors import UsageError

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate
    from more_cli.model.machine import Machine
    from more_cli.ops.session import Target
    from more_cli.ops.suite_report import SuiteReport
    from more_cli.ops.suite_run import RunOptions
    from more_cli.suites.load import Suite as LoadedSuite

SHOWN_METRICS = (
    "rel.gen_exact",
    "rel.tf_exact",
    "rel.tf_token_acc",
    "gen_text.gen_exact",
    "gen_image.gen_exact",
    "loc_text.loc_top1_answer",
    "loc_text.loc_expkl_answer",
    "loc_image.loc_top1_answer",
    "loc_image.loc_expkl_answer",
)
"""What people see of a run; `--json` has every metric."""

Suite = Annotated[
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
) -> RunOptions:
    """Return the options of a run, checked.

    Raises:
        UsageError: no such protocol, or not a list of numbers.
    """
    from more_cli.evaluation.protocols import PROTOCOLS, checked, marks_of
    from more_cli.ops.suite_run import RunOptions

    try:
        chosen = checked(protocols or ("final", "online"))
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
    )


def loaded(
    output: Output, name: str, data_root: Path | None, image_root: Path | None, strict_paths: bool
) -> LoadedSuite:
    """Load a suite and say what whoever sees its numbers should know."""
    from more_cli.suites.load import load_suite

    suite = load_suite(name, data_root, image_root, strict_paths=strict_paths)
    for notice in suite.notices:
        output.note(f"note: {notice}")
    return suite


def evaluate_suite(
    output: Output,
    suite: LoadedSuite,
    model: Path | None,
    state: Path | None,
    options: RunOptions,
    machine: Machine,
) -> None:
    """Run a suite and show what it measured."""
    from more_cli.ops.suite_run import run_suite
    from more_cli.suites.load import YesNoSuite

    target = _target(output, model, state)
    if isinstance(suite, YesNoSuite):
        from more_cli.cli.capability import evaluate_capability

        evaluate_capability(output, suite, target, machine)
        return
    with output.progress() as progress:
        report = run_suite(suite, target.model, options, machine, progress)
    show_suite(output, report)


def _target(output: Output, model: Path | None, state: Path | None) -> Target:
    """Return what a command means or, where it names nothing and no state lies here, the embedded demo model."""
    from more_cli.ops.session import Target, locate
    from more_cli.state import sidecar_path

    if model is not None or state is not None or any(Path.cwd().glob("*.more")):
        return locate(model, state)
    from more_cli.demo.files import demo_model_dir

    output.note("note: no MODEL and no `*.more` here: this is the embedded demo model")
    return Target(demo_model_dir(), sidecar_path(demo_model_dir()))


def show_suite(output: Output, report: SuiteReport) -> None:
    """Show the metrics by protocol and checkpoint."""
    if output.as_json:
        output.json("more.eval/1", suite_values(report))
    taken = len(report.edits)
    whole = "" if taken == report.available else f" (the first of {report.available}; --limit 0 for all)"
    output.line(f"{report.suite.name}, editor {report.editor}, {taken} edits{whole}; locality against the base")
    names = list(report.estimates)
    rows = [name for name in SHOWN_METRICS if name in report.estimates[report.headline]]
    output.table(
        ("metric", *names),
        [(row, *(_cell(report.estimates[name].get(row)) for name in names)) for row in rows],
        numbers=names,
    )
    rel = report.estimates[report.headline]["rel.gen_exact"]
    output.line(
        f"headline {report.headline}: rel.gen_exact {rel.value:.3f}, 95 % interval {rel.low:.3f} to {rel.high:.3f}"
    )
    if report.forgetting is not None:
        lost = report.forgetting
        output.line(f"forgotten by the end: {lost.value:.3f} ({lost.low:.3f} to {lost.high:.3f}) of rel.gen_exact")
    if report.first_failing is not None:
        output.line(f"first edit that does not hold: {report.first_failing}")
    cost = sum(line["outcome"]["cost"] + line["catch_up"] for line in report.lines[:taken])
    counts = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
    output.line(f"{counts}; {cost / taken:.1f} samples forward and backward per edit; {report.seconds:.0f} s")
    if calibration := report.reproduce.get("calibration"):
        chosen = ", ".join(calibration["chosen"]) or "as it is"
        output.line(f"calibrated on {calibration['n']} other edits: of {len(calibration['tried'])} settings, {chosen}")
    if report.resumed:
        output.note(f"{report.resumed} steps were measured by an earlier run; --again measures them anew")


def suite_values(report: SuiteReport) -> dict[str, Any]:
    """Return a run as JSON values: what `eval --json` has of a state, and every protocol beside it."""
    from more_cli.ops.suite_report import per_edit

    return {
        "source": report.suite.name,
        "suite": {"name": report.suite.name, "from": report.suite.source, "notices": list(report.suite.notices)},
        "model": str(report.model),
        "editor": report.editor,
        "edits": len(report.edits),
        "available": report.available,
        "protocol": report.headline.partition("@")[0],
        "baseline": "base",
        "headline": report.headline,
        "metrics": {name: asdict(value) for name, value in report.estimates[report.headline].items()},
        "protocols": {
            readout: {name: asdict(value) for name, value in found.items()}
            for readout, found in report.estimates.items()
        },
        "forgetting": asdict(report.forgetting) if report.forgetting else None,
        "first_failing": report.first_failing,
        "counts": report.statuses,
        "stream": [
            {key: line[key] for key in ("t", "id", "seconds", "catch_up")} | {"outcome": _told(line["outcome"])}
            for line in report.lines
        ],
        "matrix": [{"after": t, "edit": i, "scores": scores} for (t, i), scores in sorted(report.cells.items())],
        "per_edit": per_edit(report),
        "base_asked": report.base_asked,
        "resumed": report.resumed,
        "wall_seconds": round(report.seconds, 3),
        "reproduce": report.reproduce,
    }


def _told(outcome: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in outcome.items() if key != "looks"}


def _cell(value: Estimate | None) -> str:
    return "" if value is None else f"{value.value:.3f}"
