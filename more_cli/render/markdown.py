"""A report as Markdown, short enough for a pull request; text of records and models is in code spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from more_cli.evaluation.per_edit import EditScores
from more_cli.render.page import Page, Table
from more_cli.text import plain, shorten

SHOWN = 20
"""Most edits shown that do not hold."""
_LENGTH = 120


def markdown(page: Page) -> str:
    """Return the report: the gates, every table, and the edits that do not hold."""
    return "\n\n".join(_parts(page)) + "\n"


def _parts(page: Page) -> Iterator[str]:
    yield f"### {page.command}: {page.headline}"
    yield f"{code(page.scope)}, {page.reading}."
    if page.gates:
        yield _table(
            ("gate", "", "measured"),
            [(code(str(found.gate)), "met" if found.met else "**missed**", found.reason) for found in page.gates],
        )
    for part in page.tables:
        yield from _part(part, titled=len(page.tables) > 1)
    bad = [scores for scores in page.edits if not scores.good]
    if bad:
        yield _bad(page, bad)


def _part(part: Table, *, titled: bool) -> Iterator[str]:
    if titled:
        yield f"#### {part.title}"
    if part.note:
        yield part.note
    yield _table(part.columns, [(code(str(row[0])), *map(str, row[1:])) for row in part.rows])


def _bad(page: Page, bad: Sequence[EditScores]) -> str:
    rows = []
    for scores in bad[:SHOWN]:
        question, before = scores.shown.probe.query.question, page.before.get(scores.id, "")
        rows.append([code(text) for text in (scores.id, question, before, scores.wanted, scores.shown.answer)])
    table = _table(("does not hold", "question", "before", "wanted", "answer"), rows)
    return f"{table}\n\nand {len(bad) - SHOWN} more" if len(bad) > SHOWN else table


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def code(text: str) -> str:
    """Return text as a code span that fits a table: nothing in it is markup, a link, a mention or an image."""
    shown = shorten(plain(text), _LENGTH).strip()
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    # A table is split at its pipes before code spans are read, so pipes are escaped; a backslash before a pipe gets a
    # space, as parsers differ in what two backslashes mean.
    return f"{fence}{pad}{shown}{pad}{fence}".replace("\\|", "\\ |").replace("|", "\\|")
