"""`more convert`: corrections in the form they exist in, as checked lines for `more edit`.

Every line is checked as `more edit` would check it, pictures included, before the file appears.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from more_cli.errors import DataError, StreamErrors, UsageError
from more_cli.files import check_free_file, disk_errors, replacing
from more_cli.inputs.chats import chat_form, rounds_of
from more_cli.inputs.columns import Columns, inner_rows
from more_cli.inputs.edits import EditLine, checked_line, iter_edits
from more_cli.inputs.foreign import is_foreign, to_native
from more_cli.inputs.forms import ROWS, form_of, raw_records
from more_cli.inputs.label_studio import min_row, task_row
from more_cli.inputs.records import Problem, Record
from more_cli.inputs.respelling import Respell, relative, respelled
from more_cli.inputs.tables import table_form
from more_cli.options import ConvertOptions
from more_cli.progress import Progress, no_progress


@dataclass
class ConvertReport:
    """The result of a conversion."""

    source: Path
    form: str = ROWS
    rows: int = 0
    """Rows, tasks or conversations that were read."""
    edits: int = 0
    """Lines written; a repeated correction is written once."""
    skipped: int = 0
    """Rows left out because of a problem."""
    problems: list[str] = field(default_factory=list)
    """Each with file, row, field, and what to do."""
    tagged: list[str] = field(default_factory=list)
    """Columns that are kept in `tags`."""


def convert(source: Path, out: Path, options: ConvertOptions, progress: Progress = no_progress) -> ConvertReport:
    """Write the corrections of a file as edit lines to `out`, which appears whole or not at all.

    Image paths become relative to the folder of `out`.

    Raises:
        StreamErrors: rows have problems, and `skip_bad` was not given, or no row is left.
        DataError: the file cannot be read.
        UsageError: `out` exists, or an option cannot be used.
    """
    if out.exists() and source.exists() and out.samefile(source):
        raise UsageError(f"`{out}` is the file that is read", "name another file with -o")
    check_free_file(out, options.force)
    with replacing(out) as scratch, disk_errors(out), open(scratch, "wb") as file:
        return convert_into(source, file, out.parent, options, progress)


def convert_into(
    source: Path, file: BinaryIO, folder: Path, options: ConvertOptions, progress: Progress = no_progress
) -> ConvertReport:
    """Write the corrections of a file as edit lines whose image paths are relative to `folder`.

    Raises:
        StreamErrors, DataError, UsageError: as `convert`; some lines may be written already.
    """
    rows = _Rows(source, options, progress)
    report, root = rows.report, options.image_root or source.parent
    respell, bad = relative(root, folder), set[int]()
    for item in iter_edits(rows, root, strict_paths=options.strict_paths, whole=True):
        if isinstance(item, Problem):
            report.problems.append(f"{item}; {item.hint}" if item.hint else str(item))
            bad.add(item.line)
        else:
            file.write(_line(rows.latest, respell))
            report.edits += 1
    rows.columns.check()
    if options.each_round and report.rows and not rows.conversations:
        raise UsageError(f"`--each-round`: {source} holds no conversation", "leave it out")
    report.skipped, report.tagged = len(bad), sorted(rows.columns.tagged)
    if report.problems and not (options.skip_bad and report.edits):
        inner = inner_rows(rows.row) if (report.rows, report.form) == (1, ROWS) else ""
        how = "--skip-bad leaves these rows out" if report.edits else inner
        raise StreamErrors(report.problems, f"nothing was written; {how}" if how else "nothing was written")
    if not report.rows:
        raise DataError(f"{source}: holds no rows", "the first line of a table names its columns")
    return report


def _line(record: Record, respell: Respell) -> bytes:
    line = checked_line(record, EditLine)
    assert isinstance(line, EditLine)
    values = respelled(line.model_dump(exclude_defaults=True), respell)
    return f"{json.dumps(values, ensure_ascii=False)}\n".encode()


class _Rows:
    """The corrections of a file as records of edit lines, one after the other."""

    def __init__(self, source: Path, options: ConvertOptions, progress: Progress) -> None:
        self.source = source
        self.each_round = options.each_round
        self.progress = progress
        self.columns = Columns.parse(options.columns)
        self.report = ConvertReport(source)
        self.latest = Record(str(source), 0)
        """The one that was read last."""
        self.row: dict[str, Any] = {}
        """The last row, conversation or task as it was read."""
        self.conversations = False
        """Whether one was read."""

    def __iter__(self) -> Iterator[Record]:
        table = table_form(self.source)
        self.report.form = table or ROWS
        for record in raw_records(self.source):
            self.report.rows += 1
            self.progress(self.report.rows, None, "converting")
            for line in self._converted(record):
                self.latest = line
                yield line

    def _converted(self, record: Record) -> Iterator[Record]:
        value = record.value
        if record.problem or not isinstance(value, dict):
            yield record
            return
        self.row = value
        try:
            for line in self._lines(value):
                yield Record(record.name, record.line, line)
        except DataError as error:
            yield Record(record.name, record.line, problem=record.wrong(error.message, error.hint))

    def _lines(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the edit lines of a row, a conversation or a task."""
        form = form_of(value)
        if form and self.report.form == ROWS:
            self.report.form = form
        if chat_form(value):
            self.conversations = True
            rows = rounds_of(value, each=self.each_round)
        elif form:
            rows = [task_row(value)]
        elif is_foreign(value):
            return [to_native(value)]
        else:
            rows = [min_row(value)]
        return [self.columns.edit_line(row) for row in rows]
