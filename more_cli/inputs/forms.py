"""The forms in which corrections come beside edit lines, and every form as rows for `more convert`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from more_cli.errors import DataError
from more_cli.inputs.chats import chat_form
from more_cli.inputs.label_studio import FORM as LABEL_STUDIO
from more_cli.inputs.label_studio import is_task
from more_cli.inputs.records import Record, opened, records
from more_cli.inputs.tables import table_form, table_rows
from more_cli.text import quoted

ROWS = "JSON rows"


def form_of(record: Mapping[str, Any]) -> str:
    """Return the form of a JSON record that `more convert` reads and `more edit` does not; empty for another one."""
    return chat_form(record) or (LABEL_STUDIO if is_task(record) else "")


def needs_conversion(name: str, form: str) -> DataError:
    """Return the error of `more edit` for a file of another form."""
    file = "FILE" if name.startswith("<") else quoted(name)
    return DataError(f"{name} is {form}: more convert {file} -o edits.jsonl")


def refuse_table(path: Path) -> None:
    """Refuse a table where edit lines are read.

    Raises:
        DataError: it is CSV or Parquet, or cannot be read.
    """
    if form := table_form(path):
        raise needs_conversion(str(path), form)


def raw_records(path: Path) -> Iterator[Record]:
    """Yield the rows of a table, or the records of a file of JSON lines or of one JSON array.

    Raises:
        DataError: the file cannot be read.
        UsageError: it is Parquet, and pyarrow is not installed.
    """
    if table_form(path):
        yield from table_rows(path)
        return
    with opened(path) as file:
        yield from records(file, str(path))
