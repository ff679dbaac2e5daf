"""The pages of what the paper shows, measured beside what it prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from more_cli.render.page import Page, Table
from more_lab.paper.reproduce import COLUMNS, COMMAND, Reproduction, Row
from more_lab.render.analyses import section

HEADER = ("run", "edits", "", *COLUMNS)


def lines_of(row: Row) -> Iterator[tuple[object, ...]]:
    """Yield the lines of one run after so many edits: measured, then printed and the difference if there are any."""
    values = row.measured or {}
    yield (
        row.name if row.name == row.editor else f"{row.name} ({row.editor})",
        row.edits,
        "not run" if row.measured is None else row.protocol,
        *(f"{100 * values[name].value:.1f}" if name in values else "" for name in COLUMNS),
    )
    if row.printed is not None:
        yield "", "", "printed", *(f"{row.printed[name]:.1f}" if name in row.printed else "" for name in COLUMNS)
    if row.printed is not None and row.measured is not None:
        differences = (row.difference(name) for name in COLUMNS)
        yield "", "", "difference", *("" if value is None else f"{value:+.1f}" for value in differences)


def status_of(found: Reproduction) -> str:
    """Return how much of an exhibit was measured, in words."""
    if found.complete:
        return "measured"
    return "measured in part" if found.measured else "not run"


def printed_beside(found: Reproduction) -> list[tuple[object, ...]]:
    """Return what the paper prints beside a figure: the row's name, then each value with its column."""
    return [
        (row.name or row.backbone, ", ".join(f"{name} {value}" for name, value in row.values.items()))
        for row in found.printed
    ]


def tables_of(found: Reproduction) -> Iterator[Table]:
    """Yield the sections of one exhibit on one model."""
    where = f"{found.exhibit.title}, {found.model.resolve().name}"
    for suite in dict.fromkeys(row.suite for row in found.rows):
        lines = [line for row in found.rows if row.suite == suite for line in lines_of(row)]
        note = "in %; online: right after each edit, against the model before; final: after the last, against the base"
        yield Table(f"{where}: {suite}", HEADER, lines, note)
    for suite, analyses in found.figures.items():
        for done in analyses:
            yield section(done, f"{where}: {done.analysis.title.lower()}, {suite}")
    lists: dict[str, Sequence[Sequence[object]]] = {
        "The paper prints": printed_beside(found),
        "Not run": [(row.reason, row.name, row.suite) for row in found.missing]
        + [(problem, "", "") for problem in found.problems],
        "Says little about the method": [(warning,) for warning in found.warnings],
        "What differs from the paper": [(notice,) for notice in found.notices],
    }
    for title, rows in lists.items():
        if rows:
            yield Table(f"{where}: {title[0].lower()}{title[1:]}", ("",) * len(rows[0]), rows, folded=True)


def of_reproductions(results: Sequence[Reproduction]) -> Page:
    """Return the page of what was measured."""
    whole = sum(found.complete for found in results)
    overview = Table(
        "Tables and figures",
        ("name", "shows", "in the paper", "model", ""),
        [
            (
                found.exhibit.name,
                found.exhibit.title,
                ", ".join(found.exhibit.labels),
                found.model.resolve().name,
                status_of(found),
            )
            for found in results
        ],
    )
    return Page(
        command=COMMAND,
        subject=", ".join(dict.fromkeys(found.exhibit.name for found in results)),
        headline=f"{whole} of {len(results)} measured in full",
        scope=", ".join(dict.fromkeys(found.model.resolve().name for found in results)),
        reading="metrics of the presets paper-table and paper-final",
        tables=[overview, *(table for found in results for table in tables_of(found))],
        reproduce={},
    )
