"""`more compare`: editors on one suite, or two results of `eval --json`, compared edit by edit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion
from more_cli.cli.outlets import Reports
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.cli.suite_eval import heading, note_editor, note_fit, note_resumed
from more_cli.cli.suite_source import suite_target
from more_cli.errors import UsageError
from more_cli.evaluation.cells import value_cell
from more_cli.model.machine import Machine
from more_cli.options import SUITE, FileOptions, given, option
from more_cli.text import counted
from more_lab.cli import suite_options as suites

if TYPE_CHECKING:
    from more_cli.runner.report import SuiteReport
    from more_lab.experiments.compare_editors import EditorComparison
    from more_lab.experiments.compare_results import Comparison

TEST = "exact two-sided sign test over edits"


@dataclass(frozen=True)
class ComparedOptions:
    """What is compared: editors on a suite, or two results."""

    paired: tuple[Path, Path] | None = option(
        None, "Two outputs of `eval --json` on the same edits.", metavar="A.json B.json", panel="Two results"
    )
    suite: str | None = option(
        None,
        "Suite to run on, from the untouched base; see `more suites list`.",
        metavar="NAME|FILE",
        complete="suites",
        panel=SUITE,
    )
    model: Path | None = option(None, "Checkpoint folder. [default: as in `run`]", metavar="DIR", panel=SUITE)
    settings: tuple[str, ...] = option(
        (), "Change one value of an editor; repeatable.", "--set", metavar="EDITOR:KEY=VALUE", panel=SUITE
    )


@command
def compare(
    editors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EDITOR",
            help="Names as in `run --editor`; the others are compared with the first.",
            autocompletion=completion.editors,
        ),
    ] = None,
    *,
    of: ComparedOptions,
    stream: suites.StreamOptions,
    files: Reports,
    images: FileOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Compare editors on a suite, or two results edit by edit.

    Every editor runs on the suite as with `more run --editor`, and is compared with the first one: for every
    metric the mean difference over edits, its 95 % interval and an exact sign test. Finished runs are read from the
    cache, so an interrupted comparison continues. With --paired two results are compared; both must have measured the
    same edits in the same way.

    \b
    Examples:
      more compare more ft-l lora --suite e-vqa --calibrate 5
      more compare more more@paper-llava --suite e-vqa
      more compare --paired before.json after.json
    """
    if of.paired is not None:
        others = [*(editors or ()), *given(of), *given(stream), *given(images)]
        others.remove("--paired")
        if others or files.reports:
            what = "`--paired` compares two files and takes no editors and no suite"
            raise UsageError(what, f"leave out {', '.join(others) or 'the reports'}")
        from more_lab.experiments.compare_results import compare_runs

        _show_pair(output, compare_runs(*of.paired))
        return
    if not editors or len(editors) < 2 or of.suite is None:
        hint = "for example: more compare more ft-l --suite e-vqa, or more compare --paired a.json b.json"
        raise UsageError("`compare` needs two editors or more and --suite, or --paired", hint)
    from more_lab.experiments.compare_editors import compare_editors, settings_by_editor
    from more_lab.render.comparison import of_comparison

    files.check()
    settings = settings_by_editor(editors, of.settings)
    options = stream.run_options(editors[0])
    loaded = suites.loaded_edits(output, of.suite, stream.data_root, images)
    usage = "more compare EDITOR... --suite NAME --model DIR"
    target = suite_target(output, loaded, of.model, None, usage=usage)
    with output.progress() as progress:
        comparison = compare_editors(loaded, target.model, settings, options, machine, progress=progress)
    files.write(of_comparison(comparison), lambda: _show_editors(output, comparison))


def _show_editors(output: Output, comparison: EditorComparison) -> None:
    from more_lab.outputs.comparisons import CompareEditorsOutput
    from more_lab.render.comparison import DIFFERENCE, difference_rows

    output.json(CompareEditorsOutput.of_comparison(comparison, TEST))

    first, reports = comparison.first, comparison.reports
    output.line(f"{heading(first)}; editors {', '.join(reports)}")
    if first.left_out:
        output.line(first.left_out_sentence)
    if first.preset:
        output.line(f"metrics of {first.preset.name}: {first.preset.title}")
    readouts = dict.fromkeys(
        (first.headline, *(name for name in first.estimates if name == f"online@{len(first.edits)}"))
    )
    rows = [
        (metric, readout, *(value_cell(report.estimates[readout].get(metric)) for report in reports.values()))
        for metric in comparison.shown
        if metric in first.estimates[first.headline]
        for readout in readouts
    ]
    costs = ("cost per edit", "", *(f"{report.cost:.1f}" for report in reports.values()))
    kept = ("state, kB", "", *(_kilobytes(report) for report in reports.values()))
    output.table(("metric", "protocol", *reports), [*rows, costs, kept], numbers=tuple(reports))
    if comparison.differences:
        output.line()
        output.line(f"{first.headline}: mean difference from {first.editor} over edits; p of the exact sign test")
    output.table(("metric", "editor", *DIFFERENCE), difference_rows(comparison), numbers=DIFFERENCE)
    for editor, report in reports.items():
        note_fit(output, report)
        note_editor(output, report)
        note_resumed(output, report, editor)


def _kilobytes(report: SuiteReport) -> str:
    """Return the size of the editor's state after the last edit, and how much of it grew with the edits."""
    if not report.footprints:
        return ""
    _, last = max(report.footprints.items())
    growing = f" ({last['growing'] / 1000:,.0f} for edits)" if last["growing"] else ""
    return f"{(last['fixed'] + last['growing']) / 1000:,.0f}{growing}"


def _show_pair(output: Output, pair: Comparison) -> None:
    from more_lab.outputs.comparisons import CompareOutput
    from more_lab.render.comparison import DIFFERENCE, difference_cells

    output.json(CompareOutput.of_pair(pair, TEST))
    output.line(
        f"{counted(len(pair.run.per_edit), 'edit')} in both, protocol {pair.run.protocol}, locality against "
        f"{pair.run.baseline}; {pair.second} minus {pair.first}, p of the exact sign test"
    )
    output.table(
        ("metric", "first", "second", *DIFFERENCE),
        [
            (name, f"{value.first:.3f}", f"{value.second:.3f}", *difference_cells(value))
            for name, value in pair.metrics.items()
        ],
        numbers=("first", "second", *DIFFERENCE),
    )
    for name, reason in pair.skipped.items():
        output.note(f"note: {name} is not compared: {reason}")
    output.line(f"the runs differ in: {', '.join(pair.differ) or 'nothing recorded'}")
