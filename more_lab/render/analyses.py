"""The page of `more analyze all`: every figure with what it says."""

from __future__ import annotations

from more_cli.render.page import Page, Table
from more_cli.render.plots import Picture
from more_cli.text import counted
from more_lab.analyses.run import Analysed, AnalysisReport


def of_analyses(report: AnalysisReport) -> Page:
    """Return the page."""
    first = report.runs[0].record
    return Page(
        command="more analyze",
        subject=", ".join(run.label for run in report.runs),
        headline=f"{counted(len(report.done), 'analysis', 'analyses')} of {counted(len(report.runs), 'run')}",
        scope=f"{first.suite}, {counted(first.order.edits, 'edit')}, model {first.model.name}",
        reading="tables are in the CSV files beside this page",
        left_out="; ".join(report.skipped_sentences),
        tables=[section(done, done.analysis.title) for done in report.done],
        reproduce={run.label: run.record.reproduce for run in report.runs},
        seconds=report.seconds,
    )


def section(done: Analysed, title: str) -> Table:
    """Return the section of one analysis: its numbers, and its figure."""
    interval = [
        "" if scalar.low is None or scalar.high is None else f"{scalar.low:.3g} to {scalar.high:.3g}"
        for scalar in done.result.scalars
    ]
    rows = [
        (scalar.run, scalar.name, f"{scalar.value:.3g}", ends)
        for scalar, ends in zip(done.result.scalars, interval, strict=True)
    ]
    plots = (
        [Picture(f"{done.analysis.name} ({done.analysis.paper})", done.picture.read_bytes())] if done.picture else []
    )
    columns = ("run", "what", "value", "95 % interval")
    return Table(title, columns, rows, done.result.note, plots)
