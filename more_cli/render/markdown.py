"""A report as Markdown, short enough for a pull request; text of records and models is in code spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from more_cli.inputs.images import ImageSource
from more_cli.render.page import Page, Phrase, Sentence, Table
from more_cli.render.templates import Quoted
from more_cli.text import code, plain, span

LINES = 60
"""Most lines of a report whose long tables are folded."""
ABOVE = 46
"""Most lines above the tables, for which lists are cut."""
SHOWN = (20, 10, 5, 3)
"""Most items of a list: the first of these with which the lines above the tables are few enough."""
_WORDS = re.compile(r"(?!.*(?://|www\.))(?:[^\W_]|(?<=\w)_(?=\w)|[ .,:;+=%()/?'\"-])*", re.IGNORECASE)
"""Text in which nothing can be markup, a link or a mention."""
_LIST = re.compile(r"[-+=]|\d+[.)]$")
"""How a line begins that is no paragraph."""


def markdown(page: Page) -> str:
    """Return the report: what a reviewer needs first, the gates, the tables, and folded tables while there is room."""
    tried = ["\n\n".join(_above(page, shown)) for shown in SHOWN]
    pieces = [next((text for text in tried if _lines(text) <= ABOVE), tried[-1])]
    for part in page.tables:
        if not part.folded:
            pieces += _part(part, titled=len(page.tables) > 1)
    text, left = "\n\n".join(pieces), list[str]()
    for part in page.tables:
        if part.folded:
            opening = f"<details><summary>{escape(plain(part.title))}</summary>"
            longer = "\n\n".join([text, opening, *_part(part, titled=False), "</details>"])
            # Two lines are kept for the sentence about those that do not fit.
            if _lines(longer) <= LINES - 2:
                text = longer
            else:
                left.append(part.title)
    rest = f"\n\nNot shown here, but in the HTML report and `--json`: {_prose(', '.join(left))}." if left else ""
    return f"{text}{rest}\n"


def _lines(text: str) -> int:
    return text.count("\n") + 1


def _above(page: Page, shown: int) -> Iterator[str]:
    """Yield what comes before the tables, every list cut to so many items."""
    yield f"### {page.command}: {_prose(page.headline)}"
    for sentence in page.sentences:
        yield _sentence(sentence, shown)
    yield f"{code(page.scope)}, {_prose(page.reading)}."
    if page.left_out:
        yield _prose(f"{page.left_out}.")
    if page.gates:
        gates = sorted(page.gates, key=lambda found: found.met)
        rows = [(code(str(found.gate)), "met" if found.met else "**missed**", found.reason) for found in gates[:shown]]
        yield _table(("gate", "", "measured"), rows)
        if len(gates) > shown:
            yield f"and {len(gates) - shown} more"


def _sentence(sentence: Sentence, shown: int) -> str:
    words = _phrase(sentence.words)
    lines = [words if sentence.good else f"**{words}**"]
    lines += [f"- {_phrase(item)}" for item in sentence.items[:shown]]
    if len(sentence.items) > shown:
        lines.append(f"- and {len(sentence.items) - shown:,} more")
    return "\n".join(lines)


def _phrase(parts: Phrase) -> str:
    return "".join(map(_part_of, parts))


def _part_of(part: str | ImageSource) -> str:
    if isinstance(part, ImageSource):  # two pictures of one question are told apart
        return f"picture {part.sha256[:8]}, "
    return span(part) if isinstance(part, Quoted) else part


def _part(part: Table, *, titled: bool) -> Iterator[str]:
    if titled:
        yield f"#### {_prose(part.title)}"
    if part.note:
        yield _prose(part.note)
    rows = [(code(str(row[0])), *(_cell(str(cell)) for cell in row[1:])) for row in part.rows]
    yield _table([_cell(name) for name in part.columns], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _cell(text: str) -> str:
    return text if _WORDS.fullmatch(text) else code(text)


def _prose(text: str) -> str:
    """Return a text of ours that may name what is not."""
    return " ".join(
        word if _WORDS.fullmatch(word) and (at or not _LIST.match(word)) else span(word)
        for at, word in enumerate(plain(text).split())
    )
