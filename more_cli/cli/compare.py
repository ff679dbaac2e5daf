"""`more compare`: editors side by side on one suite, or two results of `eval --json` in pairs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli import options as opt
from more_cli.cli import outlets, suite_eval
from more_cli.cli.output import Output
from more_cli.errors import UsageError

if TYPE_CHECKING:
    from more_cli.evaluation.paired import Difference
    from more_cli.experiments.compare_editors import EditorComparison
    from more_cli.experiments.compare_results import Comparison

TEST = "exact two-sided sign test over edits"


def compare(
    editors: Annotated[
        list[str] | None, typer.Argument(metavar="[EDITOR]...", help="Editors, as in `eval --editor`; the first leads.")
    ] = None,
    paired: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--paired", metavar="A.json B.json", help="Two outputs of `eval --json` about the same edits."),
    ] = None,
    suite: suite_eval.SuiteName = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Checkpoint folder; left out, as with `eval --suite`.")
    ] = None,
    data_root: suite_eval.DataRoot = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="EDITOR:KEY=VALUE", help="Change one value of an editor; repeatable."),
    ] = None,
    limit: suite_eval.Limit = 100,
    metrics: suite_eval.Metrics = None,
    checkpoints: suite_eval.Checkpoints = "1,10,100",
    cache: suite_eval.Cache = None,
    again: suite_eval.Again = False,
    calibrate: suite_eval.Calibrate = 0,
    anchors: suite_eval.Anchors = None,
    report: outlets.Reports = None,
    image_root: opt.ImageRoot = None,
    strict_paths: opt.StrictPaths = False,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Compare editors on a suite, or two results edit by edit.

    Every editor goes through the suite as with `eval --suite --editor`, and is held against the first one: every
    metric with the mean difference over edits, its 95 % interval and an exact sign test. What was measured before is
    only read, so an interrupted comparison goes on. With --paired two results are compared; those that did not
    measure the same edits the same way are refused.

    \b
    Examples:
      more compare more ft-l lora --suite e-vqa --calibrate 5
      more compare --paired before.json after.json
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    if paired is not None:
        if any((editors, suite, model, data_root, set_, metrics, cache, again, calibrate, anchors, report)):
            raise UsageError("`--paired` compares two results, not editors on a suite", "leave one of the two out")
        from more_cli.experiments.compare_results import compare_runs

        _show_pair(output, compare_runs(*paired))
        return
    if not editors or suite is None:
        hint = "for example: more compare more ft-l --suite e-vqa, or more compare --paired a.json b.json"
        raise UsageError("a comparison needs editors and --suite, or --paired", hint)
    from more_cli.experiments.compare_editors import compare_editors, settings_by_editor
    from more_cli.render.pages import of_comparison

    files = outlets.Outlets(report or ())
    files.check()
    settings = settings_by_editor(editors, set_ or ())
    options = suite_eval.run_options(
        editor=editors[0],
        recipe=None,
        settings=None,
        limit=limit,
        protocols=None,
        checkpoints=checkpoints,
        lags="",
        cache=cache,
        again=again,
        calibrate=calibrate,
        metrics=metrics,
        anchors=anchors,
    )
    loaded = suite_eval.edits_of(output, suite, data_root, image_root, strict_paths=strict_paths)
    target = suite_eval.target_of(output, model, None)
    with output.progress() as progress:
        found = compare_editors(
            loaded, target.model, settings, options, opt.machine(device, dtype, device_map, memory), progress
        )
    _show_editors(output, found)
    files.write(of_comparison(found))


def _show_editors(output: Output, found: EditorComparison) -> None:
    """Show every editor's metrics at the end and on the way, and how they differ from the first one's."""
    output.json("more.compare-editors/1", comparison_values(found))
    from more_cli.render.pages import difference_cells

    first, reports = found.first, found.reports
    output.line(f"{suite_eval.heading(first)}; editors {', '.join(reports)}")
    if first.preset:
        output.line(f"counted as {first.preset.name}: {first.preset.title}")
    readouts = dict.fromkeys(
        (first.headline, *(name for name in first.estimates if name == f"online@{len(first.edits)}"))
    )
    rows = [
        (metric, readout, *(suite_eval.cell(report.estimates[readout].get(metric)) for report in reports.values()))
        for metric in found.shown
        if metric in first.estimates[first.headline]
        for readout in readouts
    ]
    costs = ("cost per edit", "", *(f"{report.cost:.1f}" for report in reports.values()))
    output.table(("metric", "protocol", *reports), [*rows, costs], numbers=tuple(reports))
    if found.differences:
        output.line()
        output.line(f"{first.headline}: minus {first.editor}, mean over edits; p of the exact sign test")
    output.table(
        ("metric", "editor", "difference", "95 % interval", "up", "down", "same", "p"),
        [
            (metric, editor, *difference_cells(differences[metric]))
            for metric in found.shown
            for editor, differences in found.differences.items()
            if metric in differences
        ],
        numbers=("difference", "up", "down", "same", "p"),
    )
    for editor, report in reports.items():
        if report.resumed:
            output.note(f"{editor}: {report.resumed} steps were measured by an earlier run; --again measures them anew")


def comparison_values(found: EditorComparison) -> dict[str, Any]:
    """Return a comparison of editors as JSON values; the scores of each edit are in `eval --suite --json`."""
    return suite_eval.source_values(found.first) | {
        "editors": {name: suite_eval.summary_values(report) for name, report in found.reports.items()},
        "first": found.first.editor,
        "test": TEST,
        "differences": {name: difference_values(metrics) for name, metrics in found.differences.items()},
        "skipped": found.skipped,
    }


def difference_values(metrics: dict[str, Difference]) -> dict[str, Any]:
    """Return differences as JSON values."""
    return {name: asdict(value) | {"n": value.n} for name, value in metrics.items()}


def _show_pair(output: Output, found: Comparison) -> None:
    """Show every metric of two runs, and what the runs were made with where it differs."""
    from more_cli.render.pages import difference_cells

    output.json(
        "more.compare/1",
        {
            "first": str(found.first),
            "second": str(found.second),
            "source": found.run.source,
            "protocol": found.run.protocol,
            "baseline": found.run.baseline,
            "edits": len(found.run.per_edit),
            "test": TEST,
            "metrics": difference_values(found.metrics),
            "skipped": found.skipped,
            "differ": found.differ,
        },
    )
    output.line(
        f"{len(found.run.per_edit)} edits in both, protocol {found.run.protocol}, locality against "
        f"{found.run.baseline}; {found.second} minus {found.first}, p of the exact sign test"
    )
    output.table(
        ("metric", "first", "second", "difference", "95 % interval", "up", "down", "same", "p"),
        [
            (name, f"{value.first:.3f}", f"{value.second:.3f}", *difference_cells(value))
            for name, value in found.metrics.items()
        ],
        numbers=("first", "second", "difference", "up", "down", "same", "p"),
    )
    for name, reason in found.skipped.items():
        output.note(f"note: {name} is left out: {reason}")
    output.line(f"they differ in: {', '.join(found.differ) or 'nothing that is recorded'}")
