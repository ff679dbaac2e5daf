"""Records as they come from outside: lines of JSON or one JSON array, each with where it stands.

Reading never fails on a record: what is wrong with one is said with its line, and the next is read.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from more_cli.errors import DataError
from more_cli.files import strict_json

LINE_BYTES = 16 * 2**20
"""Longest line of a stream, bytes."""
ARRAY_BYTES = 256 * 2**20
"""Largest JSON array that is read as a whole, bytes."""
ONE_PER_LINE = "an edits file holds one JSON object per line"


class Readable(Protocol):
    """What lines are read from."""

    def readline(self, limit: int, /) -> bytes | str:
        """Return the next line, or the first `limit` of it; nothing at the end."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one line of a file."""

    where: str
    """`edits.jsonl:17`"""
    text: str
    hint: str = ""
    line: int = 0
    """0 when it is the whole file."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True)
class Record:
    """One JSON value of a file, or why there is none."""

    name: str
    line: int
    """Counted from 1; in an array the record's number."""
    value: object = None
    problem: Problem | None = None

    @property
    def where(self) -> str:
        """Name and line, as messages start."""
        return f"{self.name}:{self.line}"

    def wrong(self, text: str, hint: str = "") -> Problem:
        """Return a problem with this record."""
        return Problem(self.where, text, hint, self.line)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a user's file for reading.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from None


def not_found(path: Path) -> DataError:
    """Return the error for a user's file that is not there, with the name that may have been meant."""
    folder = path.parent
    if not folder.is_dir():
        return DataError(f"file not found: `{path}`", f"there is no folder `{folder}`")
    names: list[str] = []
    with suppress(OSError):  # a folder that cannot be listed
        names = [name for name in os.listdir(folder) if name != path.name]  # a link that leads nowhere
    near = difflib.get_close_matches(path.name, names, 1)
    hint = f"did you mean `{folder / near[0]}`?" if near else f"looked for in `{folder.absolute()}`"
    return DataError(f"file not found: `{path}`", hint)


def records(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yield the records of a file of JSON lines, or of one JSON array if it starts with `[`."""
    head = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "save it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"
        return iter([Record(name, 0, problem=Problem(name, "is UTF-16, not UTF-8", hint))])
    return _array(file, name) if head.startswith(b"[") else lines(file, name)


def _array(file: BinaryIO, name: str) -> Iterator[Record]:
    raw = file.read(ARRAY_BYTES + 1)
    try:
        if len(raw) > ARRAY_BYTES:
            raise ValueError(f"is a JSON array of more than {ARRAY_BYTES >> 20} MiB")
        values = strict_json(_decoded(raw))
    except ValueError as error:
        yield Record(name, 0, problem=Problem(name, str(error), ONE_PER_LINE))
        return
    assert isinstance(values, list)
    for number, value in enumerate(values, 1):
        yield Record(name, number, value)


def lines(stream: Readable, name: str) -> Iterator[Record]:
    """Yield the records of a stream of JSON lines as they come; blank lines are passed over."""
    stream = getattr(stream, "buffer", stream)  # the bytes below a text stream
    number = 0
    while piece := stream.readline(LINE_BYTES + 1):
        number += 1
        where = f"{name}:{number}"
        raw = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        if len(raw) > LINE_BYTES:
            while piece and piece[-1:] not in (b"\n", "\n"):
                piece = stream.readline(LINE_BYTES)
            text = f"line is longer than {LINE_BYTES >> 20} MiB"
            yield Record(name, number, problem=Problem(where, text, ONE_PER_LINE, number))
            continue
        try:
            if text := _decoded(raw).strip(" \t\r\n"):
                yield Record(name, number, strict_json(text))
        except ValueError as error:
            hint = ONE_PER_LINE if str(error).startswith("not JSON") else ""
            cut = "" if raw.endswith(b"\n") else "; there is no newline behind it: was it cut off?"
            yield Record(name, number, problem=Problem(where, f"{error}{cut}", hint, number))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1}") from None
