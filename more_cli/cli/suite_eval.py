"""`more eval --suite`: runs M-ORE on a suite and shows the result as tables or JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from more_cli.cli.capability import evaluate_capability
from more_cli.cli.outlets import Outlets, show_gates
from more_cli.cli.output import Output
from more_cli.cli.tracked import track_suite, tracked
from more_cli.errors import UsageError
from more_cli.evaluation.cells import estimate_cells, value_cell
from more_cli.options import given as set_options
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.model.machine import Machine
    from more_cli.options import SuiteOptions, TrackOptions
    from more_cli.progress import Progress
    from more_cli.runner.plan import RunOptions
    from more_cli.runner.report import SuiteReport
    from more_cli.store.target import Target
    from more_cli.suites.load import EditSuite, Suite

WRITTEN = {"batch": "--batch", "all": "--consolidate all", "anew": "--consolidate anew"}
"""What is typed to write edits together."""


def evaluate_suite(
    output: Output,
    suite: Suite,
    target: Target,
    given: SuiteOptions,
    machine: Machine,
    files: Outlets,
    tracker: TrackOptions,
) -> None:
    """Run M-ORE on a suite of edits, or ask model and state the questions of a yes/no suite, and show the scores.

    Raises:
        UsageError: a tracker was named for a suite of questions.
        GateError: a gate was missed.
    """
    from more_cli.runner.plan import RunOptions, anchors_of
    from more_cli.runner.run import run_suite
    from more_cli.suites.load import YesNoSuite

    if isinstance(suite, YesNoSuite):
        if tracker.track is not None:
            raise UsageError(f"`--track` needs a suite of edits, and {suite.name} has questions", "leave it out")
        # A recipe or anchors may be those of more.toml.
        kept = "--suite", "--data-root", "--recipe", "--anchors"
        if other := [name for name in set_options(given) if name not in kept]:
            raise UsageError(f"`{other[0]}` needs a suite of edits, and {suite.name} has questions", "leave it out")
        evaluate_capability(output, suite, target, machine, files)
        return
    options = RunOptions(
        recipe=given.recipe,
        settings=given.settings,
        limit=given.limit or None,
        anchors=anchors_of(given.anchors),
        cache=given.cache,
        again=given.again,
    )
    run_and_show(
        output,
        suite,
        options,
        files,
        lambda progress: run_suite(suite, target.model, options, machine, progress),
        tracker,
    )


def run_and_show(
    output: Output,
    suite: EditSuite,
    options: RunOptions,
    files: Outlets,
    run: Callable[[Progress], SuiteReport],
    tracker: TrackOptions,
    command: str = "more eval --suite",
) -> None:
    """Run an editor on a suite, write the reports, and show the scores.

    Raises:
        GateError: a gate was missed.
    """
    from more_cli.evaluation.gates import judge
    from more_cli.render.pages import of_suite
    from more_cli.runner.plan import schedule_of
    from more_cli.runner.report import gate_names

    gates = files.gates_on(gate_names(schedule_of(suite, options)))
    with tracked(output, tracker) as to:
        with output.progress() as progress:
            report = run(progress)
        if to is not None:
            track_suite(to, report, command)
    report.gates = judge(gates, report.gated)
    files.write(of_suite(report, command), lambda: _show_suite(output, report))


def _show_suite(output: Output, report: SuiteReport) -> None:
    if output.as_json:
        from more_cli.outputs.runs import SuiteEvalOutput

        output.json(SuiteEvalOutput.of_report(report))
    output.line(f"{heading(report)}; editor {report.editor}")
    if report.left_out:
        output.line(report.left_out_sentence)
    _show_numbers(output, report)
    rel = report.estimates[report.headline]["rel.gen_exact"]
    output.line(f"headline {report.headline}: rel.gen_exact {rel.value:.3f}, 95 % interval {rel.between()}")
    _show_forgetting(output, report)
    if report.first_failing is not None:
        output.line(f"first edit that does not hold: {report.first_failing}")
    counts = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
    output.line(f"{counts}; {report.cost:.1f} samples forward and backward per edit; {report.work.seconds:.0f} s")
    if calibration := report.reproduce.get("calibration"):
        chosen = ", ".join(calibration["chosen"]) or "as given"
        tried = f"{counted(calibration['n'], 'other edit')}, {counted(len(calibration['tried']), 'setting')} tried"
        output.line(f"calibrated on {tried}; best: {chosen}")
        if edge := calibration["at_edge"]:
            output.note(f"note: {', '.join(edge)} is at the edge of what was tried: a better value may lie beyond")
    note_fit(output, report)
    note_editor(output, report)
    note_resumed(output, report)
    show_gates(output, report.gates)


def note_fit(output: Output, report: SuiteReport) -> None:
    """Report how an editor was fitted, if it was, and whether that suffices."""
    if fit := report.fit:
        output.note(f"editor `{report.editor}` was fitted on {counted(fit.records, 'record')} in {fit.seconds:.0f} s")
        if fit.warning:  # a result: who reads the numbers must see it
            output.line(f"{report.editor}: {fit.warning}")
        else:
            output.note(f"it learns {fit.right} of {counted(fit.held_out, 'held-out edit')}, each alone")


def note_editor(output: Output, report: SuiteReport) -> None:
    """Report what to know about an editor's scores, such as how it differs from what was published."""
    for notice in report.notices:
        output.note(f"note: {report.editor}: {notice}")


def note_resumed(output: Output, report: SuiteReport, editor: str = "") -> None:
    """Report how many steps were read from the cache of an earlier run, if any."""
    if report.work.resumed:
        prefix = f"{editor}: " if editor else ""
        them = "step is from an earlier run; --again measures it again"
        if report.work.resumed > 1:
            them = "steps are from an earlier run; --again measures them again"
        output.note(f"{prefix}{report.work.resumed:,} {them}")


def heading(report: SuiteReport) -> str:
    """Return which edits of a suite were run and what locality is compared with."""
    taken = len(report.edits)
    whole = "" if taken == report.available else f" (the first of {report.available}; --limit 0 runs all)"
    order = f" in order {seed}" if (seed := report.reproduce.get("order")) else ""
    writing = report.options.writing
    together = "" if writing == "online" else f", written together ({WRITTEN[writing]})"
    return f"{report.suite.name}, {counted(taken, 'edit')}{order}{whole}{together}; {report.locality}"


def _show_numbers(output: Output, report: SuiteReport) -> None:
    from more_cli.runner.report import SHOWN

    readouts = list(report.estimates)
    if report.preset is None:
        rows = {name: name for name in SHOWN}
        values = report.estimates
    else:
        output.line(f"metrics of {report.preset.name}: {report.preset.title}")
        rows = {**report.preset.columns, "Avg": "mean of these"}
        values = report.preset_values
    shown = {row: name for row, name in rows.items() if any(row in values[readout] for readout in readouts)}
    cells = [
        (row, name, *(value_cell(values[readout].get(row)) for readout in readouts)) for row, name in shown.items()
    ]
    if all(row == name for row, name in shown.items()):
        output.table(("metric", *readouts), [(row, *numbers) for row, _, *numbers in cells], numbers=readouts)
    else:
        output.table(("column", "metric", *readouts), cells, numbers=readouts)


def _show_forgetting(output: Output, report: SuiteReport) -> None:
    if any(report.retention):
        output.table(
            ("edits since", "rel.gen_exact", "95 % interval", "n", "forgotten"),
            [
                (lag, *estimate_cells(value), value_cell(report.lost.get(lag)))
                for lag, value in report.retention.items()
            ],
            numbers=("edits since", "rel.gen_exact", "n", "forgotten"),
        )
    if report.forgetting is not None:
        lost = report.forgetting
        output.line(f"forgotten by the end: {lost.value:.3f} ({lost.between()}) of rel.gen_exact")
