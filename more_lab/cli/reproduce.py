"""`more reproduce`: a table of the M-ORE paper, measured beside what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion
from more_cli.cli.outlets import Reports
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import FailedEditsError
from more_cli.model.machine import Machine
from more_lab.cli import suite_options as suites

if TYPE_CHECKING:
    from more_lab.experiments.reproduce import Reproduction


@command
def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="table-1: the paper's editors, E-VQA and E-IC.")],
    model: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="Checkpoint folder. [default: the embedded demo model]")
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the files of E-VQA and E-IC. [default: the embedded suites]"),
    ] = None,
    editor: Annotated[
        list[str] | None,
        typer.Option(
            "--editor",
            metavar="NAME",
            help="Only this editor; repeatable. [default: the paper's editors and `more`]",
            autocompletion=completion.editors,
        ),
    ] = None,
    image_root: suites.ImageRoot = None,
    *,
    measured: suites.MeasureOptions,
    files: Reports,
    machine: Machine,
    output: Output,
) -> None:
    """Measure a table of the M-ORE paper, beside the printed numbers.

    Every editor of the table runs on both suites, with the metrics that explain the table best (`--metrics
    paper-table`). A second run continues an interrupted one. What cannot be run has a row that says why.

    \b
    Examples:
      more reproduce table-1 --editor ft-m --editor more --checkpoints 1,10
      more reproduce table-1 llava-1.5-7b-hf/ --data-root editing-data/ --device cuda
    """
    from more_lab.experiments.reproduce import reproduce as measure
    from more_lab.render.reproduction import of_reproduction

    files.check()
    options = suites.checked(measured, "more", metrics="paper-table", limit=None)
    with output.progress() as progress:
        found = measure(
            table,
            model or _demo(output),
            data_root,
            options,
            machine,
            editors=editor or (),
            image_root=image_root,
            progress=progress,
        )
    files.write(of_reproduction(found), lambda: _show(output, found))
    if found.missing:
        raise FailedEditsError("not every row of the table was measured", "the lines `not run` say why")


def _demo(output: Output) -> Path:
    from more_cli.demo.files import demo_model_dir

    output.note("note: no MODEL given; using the embedded demo model")
    return demo_model_dir()


def _show(output: Output, found: Reproduction) -> None:
    """Show the table by suite, and what differs from the paper."""
    from more_lab.experiments.reproduce import COLUMNS, SUITES
    from more_lab.outputs.comparisons import ReproduceOutput
    from more_lab.render.reproduction import lines_of

    output.json(ReproduceOutput.of(found))
    for suite in SUITES:
        output.line(f"{suite}, right after each edit, in %")
        rows = [line for row in found.rows if row.suite == suite for line in lines_of(row)]
        output.table(("editor", "edits", "", *COLUMNS), rows, numbers=("edits", *COLUMNS))
        output.line()
    for row in found.missing:
        output.line(f"not run: {row.editor} on {row.suite}: {row.reason}")
    for warning in found.warnings:
        output.line(warning)
    for notice in found.notices:
        output.note(f"note: {notice}")
