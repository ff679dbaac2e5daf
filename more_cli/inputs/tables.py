"""Rows of tables: CSV by the standard library, Parquet by pyarrow (extra `tables`).

A row is a record like a line of JSON: its value has the columns' names, and None for an empty cell.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from more_cli.errors import DataError, UsageError, install_hint
from more_cli.inputs.records import LINE_BYTES, UTF16, Problem, Record, not_utf8, opened, packed
from more_cli.system.confined import Exceeded, confined
from more_cli.text import counted, first_line, shorten

PARQUET = b"PAR1"
"""First bytes of a Parquet file."""
_DELIMITERS = ",;\t"
_TOLD = re.compile(f"\ufeff?sep=([{_DELIMITERS}])\r?\n", re.IGNORECASE)
_SUFFIXES = {".csv", ".tsv"}
COLUMNS = 1_000
"""Most columns of a table."""
_ROWS = 64
"""Most rows of a Parquet file in memory at a time: they can hold pictures."""
_BATCH_BYTES = 128 << 20
"""Most that these rows may take."""
_TABLE_BYTES, _RATIO = 1 << 30, 100
"""All rows of a Parquet file take at most the first, and as many times its own size."""
_SAVE = "save it as UTF-8, for example with `iconv -f WINDOWS-1252 -t UTF-8`"
_SPLIT = "leave out what no edit needs, or split it into smaller files"
_SECONDS, _PER_SECOND = 60, 50_000_000
"""Processor time for checking a Parquet file: the first, and a second for so many bytes of it."""


def table_form(path: Path) -> str:
    """Return `CSV` or `Parquet` for a table, by its first bytes and its name; empty for another file.

    Raises:
        DataError: the file cannot be read.
    """
    with opened(path) as file:
        head = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(PARQUET):
        return "Parquet"
    return "CSV" if path.suffix.lower() in _SUFFIXES and not head.startswith((b"{", b"[")) else ""


def table_rows(path: Path) -> Iterator[Record]:
    """Yield the rows of a CSV file, by the line that each begins in, or of a Parquet file, by number.

    Raises:
        DataError: the file cannot be read, or its header cannot be used.
        UsageError: pyarrow is not installed.
    """
    return _parquet_rows(path) if table_form(path) == "Parquet" else _csv_rows(path)


def _csv_rows(path: Path) -> Iterator[Record]:
    csv.field_size_limit(LINE_BYTES)  # by default 128 KiB: less than a picture as a `data:` URI
    with opened(path) as file:
        delimiter, told = _delimiter(file)
        rows = _Rows(path, _text_of(file, path), delimiter)
        if told:
            rows.cells()
        names = rows.cells() or []
        if rows.problem:
            raise DataError(str(rows.problem), rows.problem.hint)
        header = _header(path, names)
        while (cells := rows.cells()) is not None:
            if rows.problem:
                yield Record(str(path), rows.first, problem=rows.problem)
            elif not any(cells):
                continue  # an empty line, or cells without text, as spreadsheets leave them at the end
            elif len(cells) == len(header):
                row = {column: cell or None for column, cell in zip(header, cells, strict=True)}
                yield Record(str(path), rows.first, row)
            else:
                text = f"has {counted(len(cells), 'cell')}, the header has {len(header)}"
                problem = rows.wrong(text, "put quotes around a cell with a delimiter in it")
                yield Record(str(path), rows.first, problem=problem)


class _Rows:
    """The rows of a CSV text; a bad one does not end them, unless nothing after it can be told apart."""

    def __init__(self, path: Path, text: io.TextIOWrapper, delimiter: str) -> None:
        self._path = path
        self._text = text
        self._reader = csv.reader(iter(self._line, ""), delimiter=delimiter, strict=True)
        self._line_number = self._size = self._quotes = 0
        """Lines read, and characters and quotes since the row began: a quoted cell can have many lines."""
        self._ended = self._broken = False
        """Whether the file ended, and whether the row before broke off, maybe in the middle of a cell."""
        self.first = 1
        """Line that the row begins in."""
        self.problem: Problem | None = None
        """What is wrong with it."""

    def cells(self) -> list[str] | None:
        """Read the next row and return its cells; None at the end."""
        self.first, self._size, self._quotes, self.problem = self._line_number + 1, 0, 0, None
        try:
            cells = next(self._reader, None)
            self._broken = self._broken and self._quotes % 2 == 1
            if self._broken and cells:
                self.problem = self.problem or self.wrong(
                    "not CSV: the rest of the row before", "a quote may be missing"
                )
            return cells
        except csv.Error as error:
            self._broken = True
            problem = self.wrong(f"not CSV: {error}", "a quote may be missing")
            if self._ended:
                raise DataError(str(problem), f"{problem.hint}: the row goes on to the end of the file") from None
            self.problem = self.problem or problem
            return []

    def wrong(self, text: str, hint: str) -> Problem:
        return Problem(f"{self._path}:{self.first}", text, hint, self.first)

    def _line(self) -> str:
        line = self._text.readline(LINE_BYTES + 1)
        self._line_number += 1
        self._size += len(line)
        self._quotes += line.count('"')
        self._ended = not line
        if self._size > LINE_BYTES:
            text = f"{self._path}:{self.first}: not CSV: a row of more than {LINE_BYTES >> 20} MiB"
            raise DataError(text, "a quote may be missing")
        try:
            line.encode()
        except UnicodeEncodeError:  # bytes that are not UTF-8 come as lone surrogates
            where = f"{self._path}:{self._line_number}"
            self.problem = self.problem or Problem(where, _not_utf8(line), _SAVE, self.first)
        return line


def _not_utf8(line: str) -> str:
    try:
        line.encode("utf-8", "surrogateescape").decode()
    except UnicodeDecodeError as error:
        return not_utf8(error)
    raise AssertionError(line)


def _text_of(file: BinaryIO, path: Path) -> io.TextIOWrapper:
    head = file.read(6)
    file.seek(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: is UTF-16, not UTF-8", UTF16)
    if kind := packed(head):
        raise DataError(f"{path}: is compressed ({kind})", "unpack it first")
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _delimiter(file: BinaryIO) -> tuple[str, bool]:
    """Return the delimiter of a table, and whether a first line such as `sep=;` tells it, as spreadsheets write it.

    Otherwise it is the one of which the header has most; a comma if it has none.
    """
    header = file.readline(LINE_BYTES).decode("utf-8", "replace")
    file.seek(0)
    if told := _TOLD.fullmatch(header):
        return told[1], True
    return max(_DELIMITERS, key=header.count), False


def _header(path: Path, names: list[str]) -> list[str]:
    _check_columns(f"{path}:1", len(names))
    header = [name.strip() for name in names]
    for name, count in Counter(header).items():
        if not name or count > 1:
            what = f"names column `{shorten(name)}` twice" if name else "has a column without a name"
            raise DataError(f"{path}:1: the header {what}", "name every column in the first line, each once")
    return header


def _check_columns(where: str, count: int) -> None:
    if count > COLUMNS:
        raise DataError(f"{where}: has {count:,} columns, more than {COLUMNS:,}", "leave out those that no edit needs")


def _parquet_rows(path: Path) -> Iterator[Record]:
    # pyarrow's own pool reserves a gigabyte of addresses when it is first used, which the limit below must not count.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        import pyarrow.parquet
    except ImportError:
        raise UsageError("a Parquet file needs pyarrow", install_hint("tables")) from None
    pyarrow.allocate_buffer(1)  # where somebody imported it before, the reserve is made now
    with opened(path) as file:
        seconds = _SECONDS + os.fstat(file.fileno()).st_size // _PER_SECOND
    try:  # a few bytes can become any number of them, and what the file says of itself may be wrong
        found = confined(lambda: _parquet_problem(path), seconds=seconds)
    except Exceeded as error:
        raise DataError(f"`{path}`: reading it {error}", _SPLIT) from None
    if found:
        raise DataError(*json.loads(found))
    for number, row in enumerate(chain.from_iterable(_parquet_batches(path)), 1):
        cells = {column: None if value == "" else value for column, value in row.items()}
        yield Record(str(path), number, cells)


def _parquet_problem(path: Path) -> str:
    """Return what is wrong with a Parquet file and a hint, as JSON; empty if all its rows can be read."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # the other ones reserve more than they need
    try:
        for _ in _parquet_batches(path):
            pass
    except DataError as error:
        return json.dumps([error.message, error.hint])
    return ""


def _parquet_batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a Parquet file, some at a time."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(os.fspath(path), pre_buffer=False) as file:
            names = file.schema_arrow.names
            _check_columns(str(path), max(len(names), file.metadata.num_columns))
            size, left = _rows_at_once(file.metadata), _TABLE_BYTES + _RATIO * path.stat().st_size
            first = 1
            for batch in file.iter_batches(batch_size=size, use_threads=False):
                rows = batch.to_pylist()
                held, last = _size(rows), first + len(rows) - 1
                left -= held
                if held > _BATCH_BYTES:
                    where = f"{path}:{first}" if last == first else f"{path}:{first}-{last}"
                    raise DataError(f"{where}: holds {held:,} bytes, more than {_BATCH_BYTES >> 20} MiB", _SPLIT)
                if left < 0:
                    raise DataError(f"`{path}`: its rows take more than {_RATIO} times the bytes of the file", _SPLIT)
                first = last + 1
                yield rows
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = shorten(first_line(error), 120)
        raise DataError(f"`{path}` is not a readable Parquet file: {reason}", "write it again") from None


def _rows_at_once(metadata: Any) -> int:
    """Return how many rows are surely small enough, if the file is right about itself: a dictionary may hold one cell
    as large as its column, of which every row takes a copy."""
    largest = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        largest = max([largest, *(group.column(place).total_uncompressed_size for place in range(group.num_columns))])
    return max(1, min(_ROWS, _BATCH_BYTES // largest))


def _size(value: object) -> int:
    """Return the rough bytes of a cell's value: Arrow counts a text that many rows share only once."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values())
    return sum(map(_size, value)) if isinstance(value, list) else 8
