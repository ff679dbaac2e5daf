"""The page of editors side by side."""

from __future__ import annotations

from more_cli.evaluation.cells import value_cell
from more_cli.evaluation.metrics import TOO_FEW
from more_cli.evaluation.names import FEW
from more_cli.render.page import Page, Table
from more_cli.render.pages import notices
from more_cli.render.plots import Bars
from more_cli.runner.report import SuiteReport
from more_cli.text import counted
from more_lab.experiments.compare_editors import EditorComparison
from more_lab.experiments.paired import Difference


def of_comparison(found: EditorComparison) -> Page:
    """Return the page of editors side by side."""
    first, reports = found.first, found.reports
    tables = [
        Table(
            readout,
            ("metric", *reports),
            [
                (name, *(value_cell(report.estimates[readout].get(name)) for report in reports.values()))
                for name in first.estimates[readout]
            ],
            plots=[
                Bars(name, {editor: report.estimates[readout][name] for editor, report in reports.items()})
                for name in found.shown
                if readout == first.headline and name in first.estimates[readout]
            ],
        )
        for readout in first.estimates
    ]
    differences = difference_rows(found)
    note = f"{first.headline}: mean difference from {first.editor} over edits; p of the exact sign test"
    costs = [(editor, f"{report.cost:.1f}", _chosen(report)) for editor, report in reports.items()]
    return Page(
        command="more compare",
        subject=f"{first.suite.name}: {', '.join(reports)}",
        headline=", ".join(f"{editor} {_holding(report)}" for editor, report in reports.items()),
        scope=f"{first.suite.name}, {counted(len(first.edits), 'edit')}",
        reading=first.locality,
        left_out=first.left_out_sentence,
        tables=[
            *tables[:1],
            *([Table("Differences", ("metric", "editor", *DIFFERENCE), differences, note)] if differences else []),
            Table("Cost", ("editor", "samples forward and backward per edit", "calibrated"), costs),
            *tables[1:],
            *notices(reports),
        ],
        reproduce={editor: report.reproduce for editor, report in reports.items()},
    )


DIFFERENCE = ("difference", "95 % interval", "up", "down", "same", "p")
"""Columns of a difference."""


def difference_rows(found: EditorComparison) -> list[tuple[object, ...]]:
    """Return a row for each metric in tables and each editor that was compared with the first one in it."""
    return [
        (name, editor, *difference_cells(metrics[name]))
        for name in found.shown
        for editor, metrics in found.differences.items()
        if name in metrics
    ]


def difference_cells(value: Difference) -> tuple[object, ...]:
    """Return a difference, its interval, the edits that moved and p as table cells."""
    interval = f"{value.low:+.3f} to {value.high:+.3f}" if value.n >= FEW else TOO_FEW
    return f"{value.difference:+.3f}", interval, value.up, value.down, value.same, f"{value.p:.3g}"


def _holding(report: SuiteReport) -> str:
    return f"{sum(scores.good for scores in report.per_edit)}/{len(report.edits)}"


def _chosen(report: SuiteReport) -> str:
    calibration = report.reproduce.get("calibration")
    return "no" if calibration is None else ", ".join(calibration["chosen"]) or "default settings"
