"""Rows of tables: CSV by the standard library, Parquet by pyarrow (extra `tables`).

A row is a record like a line of JSON: its value has the columns' names, and None for an empty cell.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from more_cli.errors import DataError, UsageError, install_hint
from more_cli.inputs.records import LINE_BYTES, UTF16, Problem, Record, not_utf8, opened
from more_cli.text import shorten

PARQUET = b"PAR1"
"""First bytes of a Parquet file."""
_DELIMITERS = ",;\t"
_SUFFIXES = {".csv", ".tsv"}
_ROWS = 64
"""Rows of a Parquet file in memory at a time: they can hold pictures."""


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
    name = str(path)
    csv.field_size_limit(LINE_BYTES)  # by default 128 KiB: less than a picture as a `data:` URI
    with opened(path) as file:
        reader, first = csv.reader(_text_of(file, path), delimiter=_delimiter(file), strict=True), 1
        try:
            header = _header(path, next(reader, []))
            while True:
                first = reader.line_num + 1
                cells = next(reader, None)
                if cells is None:
                    return
                if len(cells) == len(header):
                    yield Record(
                        name, first, {column: cell or None for column, cell in zip(header, cells, strict=True)}
                    )
                elif cells:  # an empty line has none
                    text = f"has {len(cells)} cells, the header has {len(header)}"
                    hint = "put quotes around a cell with a delimiter in it"
                    yield Record(name, first, problem=Problem(f"{name}:{first}", text, hint, first))
        except UnicodeDecodeError as error:
            yield Record(name, first, problem=Problem(f"{name}:{first}", not_utf8(error), "save it as UTF-8", first))
        except csv.Error as error:
            text = f"not CSV: {error}"
            yield Record(name, first, problem=Problem(f"{name}:{first}", text, "a quote may be missing", first))


def _text_of(file: BinaryIO, path: Path) -> io.TextIOWrapper:
    head = file.read(2)
    file.seek(0)
    if head in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: is UTF-16, not UTF-8", UTF16)
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def _delimiter(file: BinaryIO) -> str:
    """Return the delimiter of a table: the one of which the header has most; a comma if it has none."""
    header = file.readline(LINE_BYTES).decode("utf-8", "replace")
    file.seek(0)
    return max(_DELIMITERS, key=header.count)


def _header(path: Path, names: list[str]) -> list[str]:
    header = [name.strip() for name in names]
    for name in header:
        if not name or header.count(name) > 1:
            what = f"names column `{shorten(name)}` twice" if name else "has a column without a name"
            raise DataError(f"{path}:1: the header {what}", "name every column in the first line, each once")
    return header


def _parquet_rows(path: Path) -> Iterator[Record]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise UsageError("a Parquet file needs pyarrow", install_hint("tables")) from None
    try:
        with parquet.ParquetFile(os.fspath(path)) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_ROWS):
                for value in batch.to_pylist():
                    number += 1
                    yield Record(str(path), number, _cells(value))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = shorten((str(error).splitlines() or [""])[0], 120)
        raise DataError(f"`{path}` is not a readable Parquet file: {reason}", "write it again") from None


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {column: None if value == "" else value for column, value in row.items()}
