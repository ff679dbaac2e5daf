"""`more convert`: writes corrections of other forms as edit lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import UsageError
from more_cli.options import ConvertOptions
from more_cli.text import counted, quoted

if TYPE_CHECKING:
    from more_cli.ops.convert import ConvertReport

STDOUT = Path("-")


@command
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="CSV, Parquet, or a file of JSON or JSON lines.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="JSON Lines file to write, or - for standard output.")
    ] = ...,  # type: ignore[assignment]
    *,
    options: ConvertOptions,
    output: Output,
) -> None:
    """Make edit lines from a table, conversations or annotations.

    Reads CSV, Parquet, LLaVA's conversations, chat messages with images, preference pairs of them, Label Studio's JSON
    export, and the records of MMEdit, VLKEB, MMKE-Bench, zsRE, CounterFact and KnowEdit. What has no field in an edit
    line is kept in its `tags`.

    \b
    Examples:
      more convert fixes.csv -o edits.jsonl --column image=path --column target=right_answer
      more convert llava.json -o edits.jsonl --each-round
      more convert export.json -o - --skip-bad | more edit llava/ -
    """
    if source == STDOUT:
        raise UsageError("`convert` reads a file, not standard input", "save it first, then name the file")
    if out == STDOUT and output.as_json:
        raise UsageError("`--json` and `-o -` both print on standard output", "name a file with -o")
    from more_cli.ops.convert import convert as run
    from more_cli.ops.convert import convert_into

    with output.progress() as progress:
        if out == STDOUT:
            lines = io.BytesIO()  # printed when every row is checked
            report = convert_into(source, lines, Path(), options, progress)
        else:
            report = run(source, out, options, progress)
    for problem in report.problems:
        output.note(f"skipped: {problem}")
    if out == STDOUT:
        output.text(lines.getvalue().decode())
        return
    _show_convert(output, report, out)


def _show_convert(output: Output, report: ConvertReport, out: Path) -> None:
    from more_cli.outputs.products import ConvertOutput

    output.json(ConvertOutput.of(report, out=out))
    read = f"{counted(report.rows, 'row')} of {report.source} ({report.form})"
    output.line(f"wrote {out}: {counted(report.edits, 'edit')} from {read}, {report.skipped} skipped")
    if report.tagged:
        output.line(f"kept in tags: {', '.join(report.tagged)}")
    output.note(f"next: more edit MODEL {quoted(out)} --dry-run")
