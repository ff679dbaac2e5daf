"""The page of a table of the paper, measured beside what is printed."""

from __future__ import annotations

from collections.abc import Iterator

from more_cli.render.page import Page, Table
from more_lab.experiments.reproduce import COLUMNS, SUITES, Reproduction, Row


def lines_of(row: Row) -> Iterator[tuple[object, ...]]:
    """Yield the lines of one editor after so many edits: measured, then printed and the difference if there are any."""
    values = row.measured or {}
    yield (
        row.editor,
        row.edits,
        "not run" if row.measured is None else "measured",
        *(f"{100 * values[name].value:.1f}" if name in values else "" for name in COLUMNS),
    )
    if row.printed is not None:
        yield "", "", "printed", *(f"{row.printed[name]:.1f}" for name in COLUMNS)
    if row.printed is not None and row.measured is not None:
        differences = (row.difference(name) for name in COLUMNS)
        yield "", "", "difference", *("" if value is None else f"{value:+.1f}" for value in differences)


def of_reproduction(found: Reproduction) -> Page:
    """Return the page of a measured table."""
    tables = [
        Table(
            suite,
            ("editor", "edits", "", *COLUMNS),
            [line for row in found.rows if row.suite == suite for line in lines_of(row)],
            "right after each edit, in %",
        )
        for suite in SUITES
    ]
    missing = [(row.reason, row.editor, row.suite) for row in found.missing]
    tables += [Table("Not run", ("why", "editor", "suite"), missing)] if missing else []
    told = [(warning,) for warning in found.warnings]
    tables += [Table("Says little about the method", ("",), told)] if told else []
    tables += [Table("What differs from the paper", ("",), [(notice,) for notice in found.notices])]
    ran = sum(row.measured is not None for row in found.rows)
    return Page(
        command="more reproduce",
        subject=f"{found.table}, {found.model.resolve().name}",
        headline=f"{ran} of {len(found.rows)} rows measured",
        scope=found.table,
        reading="metrics of the preset paper-table",
        tables=tables,
        reproduce={},
    )
