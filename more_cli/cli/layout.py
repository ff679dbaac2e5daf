"""Lays a table out in so many characters per line: which columns give way, and where their texts are broken or cut.

Not Rich: it has no cell that runs across columns, which rows with a reason need, and it breaks names at any letter.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

GAP = 2
"""Spaces between two columns."""
_BREAKABLE = 20
"""Shorter texts are broken only if the table does not fit otherwise."""
_CUT = 8
"""A column whose texts are cut is not made narrower than this."""


def laid_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    right: Sequence[bool],
    cut: Sequence[bool],
    styled: Callable[[str, bool], str],
) -> Iterator[str]:
    """Yield the lines of a table with a header that is, if possible, at most `width` characters wide.

    `right` and `cut` say of each column whether it is aligned to the right, which also keeps its texts whole, and
    whether texts that do not fit end in an ellipsis. The last cell of a row that is too short takes the rest of the
    line. `styled` puts a text into its style; it is also told whether the text is of the header.
    """
    count = len(columns)
    texts = [[row[index] for row in rows if index < len(row) - (len(row) < count)] for index in range(count)]
    widths = _widths(columns, texts, width, right, cut)
    for row in (columns, *rows):
        header = row is columns
        rooms = widths[: len(row)]
        short = len(row) < count
        if short:
            rooms[-1] = max(1, width - sum(rooms[:-1]) - GAP * (len(row) - 1))
        cells = [
            [shortened(text, room)] if cut[index] and not (header or short) else wrapped(text, room)
            for index, (text, room) in enumerate(zip(row, rooms, strict=True))
        ]
        for line in zip_longest(*cells, fillvalue=""):
            parts = []
            for text, room, to_right in zip(line, rooms, right, strict=False):
                space = " " * (room - cells_of(text))
                shown = styled(text, header) if text else ""
                parts.append(space + shown if to_right else shown + space)
            yield (" " * GAP).join(parts).rstrip()


def _widths(
    columns: Sequence[str], texts: Sequence[Sequence[str]], width: int, right: Sequence[bool], cut: Sequence[bool]
) -> list[int]:
    """Return the width of each column: that of its longest text if the table fits, else less for the longest.

    If nothing helps, words stay whole and the table is too wide.
    """
    room = width - GAP * (len(columns) - 1)
    heads = [max(map(cells_of, name.split()), default=0) for name in columns]
    longest = [max(map(cells_of, cells), default=0) for cells in texts]
    words = [max((cells_of(word) for cell in cells for word in cell.split()), default=0) for cells in texts]
    natural = [max(cells_of(name), most) for name, most in zip(columns, longest, strict=True)]

    def least(breakable: int) -> list[int]:
        rows = zip(heads, longest, words, right, cut, strict=True)
        return [
            max(head, most if whole else min(most, _CUT if short else max(word, breakable)))
            for head, most, word, whole, short in rows
        ]

    narrow = [size if whole else min(size, _CUT) for size, whole in zip(least(0), right, strict=True)]
    tries = (least(_BREAKABLE), least(0), narrow)
    widths = next((widths for widths in tries if sum(widths) <= room), least(0))
    for _ in range(room - sum(widths)):
        growing = [index for index, most in enumerate(natural) if widths[index] < most]
        if not growing:
            break
        widths[min(growing, key=widths.__getitem__)] += 1
    return widths


def wrapped(text: str, width: int, *, whole_words: bool = False) -> list[str]:
    """Return the text as lines of at most `width` characters, broken between words.

    A longer word is cut, if possible after one of `./_-`, or kept if `whole_words`.
    """
    if cells_of(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cells_of(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        rest = word
        while cells_of(rest) > width and not whole_words:
            start = _start(rest, width)
            joint = max(map(start.rfind, "./_-")) + 1
            lines[-1] = start[:joint] if joint > width // 2 else start
            rest = rest[len(lines[-1]) :]
            lines.append("")
        lines[-1] = rest
    return lines


def shortened(text: str, width: int) -> str:
    """Return the text, cut to at most `width` characters with an ellipsis at its end."""
    return text if cells_of(text) <= width else _start(text, width - 1).rstrip() + "…"


def _start(text: str, width: int) -> str:
    """Return as much of the text's start as is at most `width` characters wide, at least one letter."""
    start = text[: max(1, width)]
    while cells_of(start) > width and len(start) > 1:
        start = start[:-1]
    return start


def cells_of(text: str) -> int:
    """Return how many characters of a terminal's line a text takes: Chinese letters take two, accents none."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1
