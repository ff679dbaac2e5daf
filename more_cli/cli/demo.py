"""`more demo`: corrects mistakes of the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli.failures import EDITS_FAILED
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.evaluation.cells import estimate_cells
from more_cli.text import counted, quoted, verb

if TYPE_CHECKING:
    from more_cli.demo.run import DemoReport

SHOWN = (".gen_exact", ".loc_expkl_answer", ".loc_gen_same")
"""Metrics that the demo prints; `--json` has every one, and `more eval` lists more."""


@command
def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for model, edits and results.")] = Path(
        "more-demo"
    ),
    files: Annotated[
        bool,
        typer.Option("--files", help="Only write the model, pictures, edits and anchors that the pages of docs/ use."),
    ] = False,
    force: Annotated[bool, typer.Option(help="Replace what an earlier demo wrote.")] = False,
    *,
    output: Output,
) -> None:
    """Correct 24 mistakes of the embedded model.

    Runs init, edit, eval and merge on it, in half a minute to three minutes. A finished demo is left as it is.

    \b
    Examples:
      more demo
      more demo /tmp/try --json
      more demo --files tutorial
    """
    if files:
        _write_files(output, folder, force)
        return
    from more_cli.demo.run import is_finished, run_demo

    if is_finished(folder) and not force:
        _leave(output, folder, f"more eval {quoted(folder / 'llava')}", f"more demo {quoted(folder)} --force")
        return
    with output.progress() as progress:
        report = run_demo(folder, force=force, progress=progress)
    _show_demo(output, report)
    if report.edit.failed:
        raise typer.Exit(EDITS_FAILED)


def _write_files(output: Output, folder: Path, force: bool) -> None:
    """Write the files that the pages use, and name them; a folder that has them is left as it is."""
    from more_cli.demo.files import FILES, write_files
    from more_cli.outputs.evaluations import DemoFilesOutput

    if (folder / FILES).is_file() and not force:
        _leave(output, folder, f"cd {quoted(folder)}", f"more demo --files {quoted(folder)} --force")
        return
    write_files(folder, force=force)
    output.json(DemoFilesOutput(folder=folder, written=True))
    output.line(f"wrote {folder}: llava/, images/, edits.jsonl, anchors.jsonl, regression.jsonl")
    output.line(f"next: cd {quoted(folder)}")


def _leave(output: Output, folder: Path, go_on: str, anew: str) -> None:
    """Say that a folder was written earlier and is left as it is, and what to type to go on or to begin anew."""
    from more_cli.outputs.evaluations import DemoFilesOutput

    output.json(DemoFilesOutput(folder=folder, written=False))
    output.line(f"{folder} is there from an earlier demo: `{go_on}` goes on with it, `{anew}` replaces it")


def _show_demo(output: Output, report: DemoReport) -> None:
    from more_cli.evaluation.per_edit import variants
    from more_cli.outputs.edits import WholeStream
    from more_cli.outputs.evaluations import DemoOutput

    output.json(
        DemoOutput.of(
            report,
            wall_seconds=round(report.wall_seconds, 1),
            base_answers=report.evaluation.base_answers,
            edit=WholeStream.of_report(report.edit),
            metrics=report.evaluation.estimates,
            lost_in_merge=report.merge.verification.lost if report.merge.verification else [],
        )
    )
    base, ends = report.evaluation.base_answers, report.answers_at_end
    output.table(
        ("edit", "question", "target", "base", "after", "now"),
        [(e.id, e.question, e.target, base.get(e.id), e.greedy_after, ends.get(e.id)) for e in report.edit.entries],
        cut=("question",),
    )
    total = len(report.edit.entries)
    right = sum(bool(entry.right_after) for entry in report.edit.entries)
    output.line()
    hold = verb(report.holding, "holds", "hold")
    held = f"{right} of {total} right when applied; {report.holding} of {total} still {hold} after all {total}"
    output.line("; ".join(filter(None, [held, variants(report.evaluation.per_edit)])))
    output.table(
        ("metric", "value", "95 % interval", "n"),
        [(name, *estimate_cells(value)) for name, value in report.evaluation.estimates.items() if name.endswith(SHOWN)],
        numbers=("value", "n"),
    )
    if report.merge.verification is not None:
        lost = report.merge.verification.lost
        named = f": {', '.join(lost)}" if lost else ""
        output.line(f"merged into {report.merge.out}: {counted(len(lost), 'edit')} lost to rounding{named}")
    output.line(f"{report.wall_seconds:.0f} s; all files are in {report.folder}")
    model = quoted(report.folder / "llava")
    output.line(
        f"next: more eval {model} --report demo.html shows every answer; docs/tutorial.md corrects your own model"
    )
