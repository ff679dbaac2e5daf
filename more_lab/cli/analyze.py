"""`more analyze`: the paper's figures from runs that were kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import UsageError
from more_cli.model.machine import Machine

if TYPE_CHECKING:
    from more_lab.analyses.run import AnalysisReport


@command
def analyze(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="An analysis, or all; without it they are listed.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--run", metavar="DIR", help="A run that `more run --keep` kept; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for tables, figures and the page.")
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Draw figures, which needs matplotlib.")
    ] = True,
    *,
    machine: Machine,
    output: Output,
) -> None:
    """Draw the paper's figures from runs that were kept.

    Each analysis writes NAME.csv, NAME.png and NAME.svg and prints one line. `all` also writes index.html, and says
    what could not be computed from these runs.

    \b
    Examples:
      more run --suite e-vqa --limit 10 --keep run --keep-updates --keep-states
      more analyze all --run run --out figures
      more analyze cosine --run run-more --run run-ft-l --out figures
    """
    if name is None:
        _list(output)
        return
    from more_lab.analyses.catalog import ALL, chosen

    chosen(name)  # a misspelt name before missing options
    if not runs or out is None:
        missing = "--run DIR" if not runs else "--out DIR"
        hint = (
            f"for example: more analyze {name} --run run --out figures, of a run by: more run --suite e-vqa --keep run"
        )
        raise UsageError(f"`analyze {name}` needs {missing}", hint)
    from more_lab.analyses.run import analyse

    with output.progress() as progress:
        report = analyse(name, runs, out, machine, figures=figures, progress=progress)
    if len({run.record.ids for run in report.runs}) > 1:
        output.note("note: the runs are not of the same edits in the same order, so their numbers cannot be paired")
    page = _write_page(report, out) if name == ALL else None
    _show(output, report, page)


def _list(output: Output) -> None:
    from more_lab.analyses.catalog import ANALYSES
    from more_lab.outputs.experiments import AnalysesOutput

    found = list(ANALYSES.values())
    output.json(AnalysesOutput.model_validate({"analyses": found}))
    output.table(("name", "shows", "paper", "reads"), [(one.name, one.title, one.paper, one.reads) for one in found])
    output.line("all: every one that the runs allow, and a page")


def _write_page(report: AnalysisReport, out: Path) -> Path:
    from more_cli.render.outlets import write_outlets
    from more_lab.render.analyses import of_analyses

    page = out / "index.html"
    write_outlets(of_analyses(report), [page], None)
    return page


def _show(output: Output, report: AnalysisReport, page: Path | None) -> None:
    from more_lab.outputs.experiments import AnalyzeOutput

    output.json(AnalyzeOutput.of_report(report, page))
    rows = [(done.analysis.name, str(scalar)) for done in report.done for scalar in done.result.scalars]
    output.table(("analysis", "95 % interval in brackets"), rows)
    for sentence in report.skipped_sentences:
        output.line(sentence)
    if page:
        output.line(f"page: {page}")
