"""Records of users' files: JSON lines or one JSON array, each record with its line number.

A bad record does not stop reading: it becomes a problem with its line, and the next record is read.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import jsonlines

from more_cli.errors import DataError
from more_cli.text import quoted, reason_of, shorten, strict_json

LINE_BYTES = 16 * 2**20
"""Longest line of a stream, bytes."""
ARRAY_BYTES = 256 * 2**20
"""Largest JSON array that is read as a whole, bytes."""
UTF16 = "save it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"
PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""How compressed files begin."""
UNPACK = "unpack it first; gzip can be piped: zcat FILE | more edit MODEL -"
_URL = re.compile(r"(https?:)/(.*)", re.IGNORECASE | re.DOTALL)
"""A URL after it became a path, which has one slash of the two."""
_SPREAD = re.compile(rb'\{\s*\n\s*"')
"""The start of an object that is spelled over several lines; a line that was cut off is followed by another object."""
_PACKED_TABLE = re.compile(r"(.*\.(csv|tsv|parquet))\.\w+", re.IGNORECASE | re.DOTALL)
ONE_PER_LINE = "the file must hold one JSON object per line"
EACH_ON_A_LINE = "write each on a line of its own: jq -c . FILE > lines.jsonl"
_WORKBOOKS = (".xlsx", ".xlsm", ".ods")
PLAIN_VALUES = "an edit line has text, numbers, lists and mappings of Python, and paths of images"


class Readable(Protocol):
    """A source of lines."""

    def readline(self, limit: int, /) -> bytes | str:
        """Return the next line, at most `limit` bytes or characters of it; empty at the end."""


@dataclass(frozen=True)
class Problem:
    """A problem with one line of a file."""

    where: str
    """`edits.jsonl:17`"""
    text: str
    hint: str = ""
    line: int = 0
    """Line number from 1; 0 for the whole file."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True)
class Record:
    """One JSON value of a file, or the problem with it."""

    name: str
    line: int
    """Line number from 1; in a JSON array, the record's number."""
    value: object = None
    problem: Problem | None = None

    @property
    def where(self) -> str:
        """File name and line, the start of messages."""
        return f"{self.name}:{self.line}"

    def wrong(self, text: str, hint: str = "") -> Problem:
        """Return a problem with this record."""
        return Problem(self.where, text, hint, self.line)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a user's file for reading.

    Raises:
        DataError: there is no such file, or it is a pipe or cannot be read.
    """
    if path.is_fifo():  # also `<(...)` of a shell; most files are read more than once, and a pipe would wait for ever
        raise DataError(f"`{path}` is a pipe", "save it to a file first, then name the file")
    try:
        with open(path, "rb") as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise not_found(path) from None
    except OSError as error:
        hint = "name a file in it" if path.is_dir() else ""
        raise DataError(f"`{path}` cannot be read: {reason_of(error)}", hint) from None


def url_error(path: Path) -> DataError | None:
    """Return the error for a URL in place of a user's file; None for any other path."""
    if (url := _URL.match(path.as_posix())) is None:
        return None
    text = f"`{url[1]}//{url[2]}` is a URL, and files are not fetched"
    return DataError(text, "download it first, then name the file")


def not_found(path: Path) -> DataError:
    """Return the error for a missing user's file; its hint suggests a similar name, or that a URL is downloaded."""
    if url := url_error(path):
        return url
    folder = path.parent
    if not folder.is_dir():
        return DataError(f"file not found: `{path}`", f"there is no folder `{folder}`")
    names: list[str] = []
    with suppress(OSError):  # a folder that cannot be listed
        names = [name for name in os.listdir(folder) if name != path.name]  # `path` itself can be a dead link
    near = difflib.get_close_matches(path.name, names, 1)
    hint = f"did you mean `{folder / near[0]}`?" if near else f"searched in `{folder.absolute()}`"
    return DataError(f"file not found: `{path}`", hint)


def records(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yield the records of a file of JSON lines, of one JSON array if it starts with `[`, or of one JSON object."""
    head = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return iter([Record(name, 0, problem=Problem(name, "is UTF-16, not UTF-8", UTF16))])
    if kind := packed(head):
        return iter([Record(name, 0, problem=Problem(name, f"is compressed ({kind})", _unpack(name)))])
    if head.startswith(b"["):
        return _array(file, name)
    return _object(file, name) if _SPREAD.match(head) else lines(file, name)


def _object(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yield the only object of a file, spelled over several lines."""
    try:
        value = _whole(file, "object")
    except ValueError as error:
        hint = EACH_ON_A_LINE if "extra data" in str(error) else ONE_PER_LINE
        yield Record(name, 0, problem=Problem(name, _reason(error), hint))
    else:
        yield Record(name, 1, value)


def _whole(file: BinaryIO, what: str) -> object:
    raw = file.read(ARRAY_BYTES + 1)
    if len(raw) > ARRAY_BYTES:
        raise ValueError(f"is a JSON {what} of more than {ARRAY_BYTES >> 20} MiB")
    return strict_json(raw.decode("utf-8").removeprefix("\ufeff"))


def _reason(error: ValueError) -> str:
    return not_utf8(error) if isinstance(error, UnicodeDecodeError) else str(error)


def _unpack(name: str) -> str:
    """Return what to do with a compressed file: a table cannot be piped."""
    if name.lower().endswith(_WORKBOOKS):
        return "save the sheet as CSV in UTF-8"
    if not (table := _PACKED_TABLE.fullmatch(name)):
        return UNPACK
    how = f": gunzip {quoted(name)}" if name.lower().endswith(".gz") else ""
    return f"unpack it first{how}, then make edit lines of it: more convert {quoted(table[1])} -o edits.jsonl"


def packed(head: bytes) -> str:
    """Return how a file that begins so is compressed; empty if it is not."""
    return next((kind for magic, kind in PACKED.items() if head.startswith(magic)), "")


def _array(file: BinaryIO, name: str) -> Iterator[Record]:
    try:
        values = _whole(file, "array")
    except ValueError as error:
        yield Record(name, 0, problem=Problem(name, _reason(error), ONE_PER_LINE))
        return
    assert isinstance(values, list)
    for number, value in enumerate(values, 1):
        yield Record(name, number, value)


def lines(stream: Readable, name: str) -> Iterator[Record]:
    """Yield the records of a stream of JSON lines as they arrive; blank lines are skipped."""
    bounded = _BoundedLines(stream)
    reader = jsonlines.Reader(bounded, loads=_value)
    while True:
        try:
            value = reader.read(allow_none=True)
        except EOFError:
            return
        except jsonlines.InvalidLineError as error:
            cause = error.__cause__
            reason = not_utf8(cause) if isinstance(cause, UnicodeDecodeError) else str(cause)
            hint = ONE_PER_LINE if reason.startswith("not JSON") else ""
            torn = reason.startswith("not ") and not bounded.terminated  # what can be parsed was not cut off
            cut = "; there is no newline after it: was it cut off?" if torn else ""
            yield _bad_line(name, bounded.number, f"{reason}{cut}", hint)
        except _LineTooLong:
            yield _bad_line(name, bounded.number, f"line is longer than {LINE_BYTES >> 20} MiB", ONE_PER_LINE)
        else:
            if value is not _BLANK:
                yield Record(name, bounded.number, value)


def given(values: Iterable[object], name: str) -> Iterator[Record]:
    """Yield values of Python as records of a stream of that name.

    A path becomes its text, and so do bytes. A field that is NaN is left out: it is an empty cell of a data frame.
    """
    for number, value in enumerate(values, 1):
        fields = _without_empty(value) if isinstance(value, Mapping) else value
        try:
            record = Record(name, number, strict_json(json.dumps(fields, default=os.fsdecode)))
        except (TypeError, ValueError, RecursionError) as error:
            record = _bad_line(name, number, f"{_named(fields)}: {reason_of(error)}", PLAIN_VALUES)
        yield record


def _without_empty(fields: Mapping[str, object]) -> dict[str, object]:
    return {key: item for key, item in fields.items() if not (isinstance(item, float) and math.isnan(item))}


def _named(fields: object) -> str:
    """Return what of an edit line cannot be written as JSON."""
    for key, item in fields.items() if isinstance(fields, Mapping) else ():
        try:
            strict_json(json.dumps(item, default=os.fsdecode))
        except (TypeError, ValueError, RecursionError):
            return f"`{key}` is not JSON"
    return "not JSON"


def text_lines(stream: Readable, name: str) -> Iterator[Record]:
    """Yield the lines of a stream of text as they arrive, each as a record whose value is its text; blank ones are
    skipped."""
    bounded = _BoundedLines(stream)
    while True:
        try:
            text = next(bounded).decode("utf-8").removeprefix("\ufeff").strip()
        except StopIteration:
            return
        except _LineTooLong:
            yield _bad_line(name, bounded.number, f"line is longer than {LINE_BYTES >> 20} MiB")
        except UnicodeDecodeError as error:
            yield _bad_line(name, bounded.number, not_utf8(error))
        else:
            if text:
                yield Record(name, bounded.number, text)


_BLANK = object()
"""The value of a blank line."""


class _LineTooLong(Exception):
    """A line has more than `LINE_BYTES`; it was skipped."""


class _BoundedLines:
    """The lines of a stream; memory holds at most `LINE_BYTES` + 1 bytes of one."""

    def __init__(self, stream: Readable) -> None:
        self._stream: Readable = getattr(stream, "buffer", stream)  # the bytes below a text stream
        self.number = 0
        """Of the last line, counted from 1."""
        self.terminated = False
        """Whether the last line ends with a newline."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = self._stream.readline(LINE_BYTES + 1)
        if not piece:
            raise StopIteration
        self.number += 1
        raw = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        self.terminated = raw.endswith(b"\n")
        if len(raw) <= LINE_BYTES:
            return raw
        while piece and piece[-1:] not in (b"\n", "\n"):
            piece = self._stream.readline(LINE_BYTES)
        raise _LineTooLong


def _value(line: str | bytes) -> object:
    assert isinstance(line, str)  # jsonlines decodes
    text = line.strip(" \t\r\n")
    return strict_json(text) if text else _BLANK


def _bad_line(name: str, number: int, text: str, hint: str = "") -> Record:
    return Record(name, number, problem=Problem(f"{name}:{number}", text, hint, number))


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return what is wrong with bytes that are not UTF-8, in words."""
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start + 1}"


class Repeats:
    """Recognises records of one stream that repeat an earlier one."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        self._latest: dict[str, str] = {}  # subject -> content of the last edit about it
        self._read: set[str] = set()  # ids since the stream began; a watched file can begin anew
        self._line = 0

    def admit(self, record: Record, id: str, content: str, subject: str) -> bool | Problem:
        """Return whether the record is new (a plain repeat is not), or why it cannot be accepted."""
        if clash := id_conflict(record, self._seen, id, content):
            return clash
        if record.line <= self._line:
            self._read.clear()
            self._latest.clear()
        self._line = record.line
        if id not in self._read:
            is_new = id not in self._seen
            self._seen.setdefault(id, (content, record.line))
            self._read.add(id)
            self._latest[subject] = content
            return is_new
        if self._latest[subject] != content:
            first = f"repeats line {self._seen[id][1]}, which a later line corrected"
            return record.wrong(first, "to make it again, give this line an `id` of its own")
        return False


def id_conflict(record: Record, seen: Mapping[str, tuple[str, int]], id: str, content: str) -> Problem | None:
    """Return the problem if a record's id was `seen` before with other content; `seen` maps ids to content and line."""
    before, line = seen.get(id, (content, 0))
    if before == content:
        return None
    text = f"id `{shorten(id)}` is used in line {line} with other content"
    return record.wrong(text, "give each edit an id of its own, or leave `id` out")
