"""A report as Markdown, short enough for a pull request; text of records and models is in code spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from more_cli.evaluation.per_edit import EditScores, moved
from more_cli.evaluation.probes import ProbeScore
from more_cli.render.page import Page, Table
from more_cli.text import plain, shorten

SHOWN = 20
"""Most edits shown that do not hold, and most other answers that are not as expected."""
_LENGTH = 120
_SENTENCE = 1000


def markdown(page: Page) -> str:
    """Return the report: the gates, every table, the edits that do not hold, and what else is not as expected."""
    return "\n\n".join(_parts(page)) + "\n"


def _parts(page: Page) -> Iterator[str]:
    yield f"### {page.command}: {page.headline}"
    yield f"{code(page.scope)}, {page.reading}."
    if page.failed:
        yield code(page.failed, _SENTENCE)
    if page.left_out:
        yield f"{page.left_out}."
    if page.gates:
        yield _table(
            ("gate", "", "measured"),
            [(code(str(found.gate)), "met" if found.met else "**missed**", found.reason) for found in page.gates],
        )
    for part in page.tables:
        yield from _part(part, titled=len(page.tables) > 1)
    bad = [scores for scores in page.edits if not scores.good]
    if bad:
        yield from _bad(page, bad)
    if others := moved(page.edits):
        yield from _moved(others)


def _part(part: Table, *, titled: bool) -> Iterator[str]:
    if titled:
        yield f"#### {part.title}"
    if part.note:
        yield part.note
    yield _table(part.columns, [(code(str(row[0])), *map(str, row[1:])) for row in part.rows])


def _bad(page: Page, bad: Sequence[EditScores]) -> Iterator[str]:
    rows = []
    for scores in bad[:SHOWN]:
        question, before = scores.shown.probe.query.question, page.before.get(scores.id, "")
        cells = scores.id, question, before, scores.wanted, scores.shown.answer or "", scores.why
        rows.append([code(text) for text in cells])
    yield _table(("does not hold", "question", "before", "wanted", "answer", "why"), rows)
    if len(bad) > SHOWN:
        yield f"and {len(bad) - SHOWN} more"


def _moved(others: Sequence[tuple[EditScores, ProbeScore]]) -> Iterator[str]:
    rows = []
    for scores, score in others[:SHOWN]:
        texts = score.probe.query.question, score.expected, score.answer or ""
        rows.append([code(scores.id), scores.words(score), *map(code, texts)])
    yield _table(("not as expected", "asked", "question", "expected", "answer"), rows)
    if len(others) > SHOWN:
        yield f"and {len(others) - SHOWN} more"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def code(text: str, limit: int = _LENGTH) -> str:
    """Return text as a code span that fits a table: nothing in it is markup, a link, a mention or an image."""
    shown = shorten(plain(text), limit).strip()
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    # A table is split at its pipes before code spans are read, so pipes are escaped; a backslash before a pipe gets a
    # space, as parsers differ in what two backslashes mean.
    return f"{fence}{pad}{shown}{pad}{fence}".replace("\\|", "\\ |").replace("|", "\\|")
