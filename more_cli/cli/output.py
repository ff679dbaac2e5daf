"""The only module that prints: results on stdout, everything else on stderr, control characters escaped.

One object per command holds `--json`, `-q` and `-v`. Rich is imported when a bar is drawn.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from more_cli.cli.layout import laid_out, wrapped
from more_cli.cli.styles import BOLD, STYLES, styled
from more_cli.errors import MoreError
from more_cli.options import OUTPUT, option
from more_cli.progress import no_progress
from more_cli.text import counted, finite, inert, plain, verb

if TYPE_CHECKING:
    from more_cli.outputs.base import Printed
    from more_cli.progress import Progress

LOG_SECONDS = 30.0
"""Between two progress lines when stderr is not a terminal."""
ROWS = 20
"""Rows of a list of edits or images that people see; `--json` has them all."""
_WIDTH = 140
"""Characters per line of a table if neither a terminal nor COLUMNS says how many."""
_NARROWEST = 40


def fail(error: MoreError) -> None:
    """Print `error: ...` and its hint on stderr, each problem on its own line."""
    for problem in error.message.split("\nerror: "):
        _say(f"error: {problem}", sys.stderr)
    if error.hint:
        _say(f"hint: {error.hint}", sys.stderr)


def _say(text: str, stream: TextIO) -> None:
    word, space, rest = plain(text).partition(" ")
    # A message that cannot be printed ends no command: only a result does.
    with suppress(OSError) if stream is sys.stderr else nullcontext():
        print(styled(word, STYLES.get(word), stream) + space + rest, file=stream)


def _fitting(text: str) -> str:
    """Return JSON as standard output can print it."""
    return inert(text, getattr(sys.stdout, "encoding", None) or "utf-8")


class _Inert(logging.Formatter):
    """Escapes control characters in log lines, also in those of libraries, so that they cannot steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(plain, super().format(record).splitlines()))


def close_stdout(*, saved: bool) -> None:
    """Discard the rest of standard output, which its reader closed, and say that what was done is `saved`."""
    with suppress(OSError, ValueError):  # a stream in memory, or standard error closed too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if saved:
            print("output pipe closed; finished work is saved", file=sys.stderr)  # noqa: T201


@dataclass
class Output:
    """Where one command's results and messages go."""

    as_json: bool = option(False, "Print one JSON object.", "--json", panel=OUTPUT)
    quiet: bool = option(False, "No progress and no summary, only errors and --json.", "--quiet", "-q", panel=OUTPUT)
    verbose: int = option(0, "More messages on stderr; -vv for all.", "--verbose", "-v", repeats=True, panel=OUTPUT)

    def __post_init__(self) -> None:
        level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(self.verbose, 2)]
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Inert("%(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=level, handlers=[handler], force=True)
        if not self.verbose:
            logging.disable(logging.WARNING)
            os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def json(self, printed: Printed) -> None:
        """Print one JSON object on stdout if `--json` was given, flushed at once.

        A number that is not finite becomes null.
        """
        if self.as_json:
            text = json.dumps(finite(printed.values()), sort_keys=True, ensure_ascii=False, allow_nan=False)
            print(_fitting(text), flush=True)  # noqa: T201

    def text(self, lines: str) -> None:
        """Print lines of JSON that are a result themselves, whatever `--json` and `-q` say."""
        print("\n".join(map(_fitting, lines.split("\n"))), end="", flush=True)  # noqa: T201

    def line(self, text: str = "") -> None:
        """Print one line of a result for people."""
        if not self.as_json and not self.quiet:
            _say(text, sys.stdout)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        numbers: Sequence[str] = (),
        cut: Sequence[str] = (),
        left_out: int = 0,
    ) -> None:
        """Print a table for people, as wide as the terminal, else `COLUMNS`, else 140 characters.

        Columns in `numbers` are aligned to the right. Texts of the columns in `cut` end in an ellipsis where they do
        not fit; other texts go on in the next line. The last cell of a row that is too short takes the rest of the
        line. If further rows are `left_out`, a line under the table says how many.
        """
        if self.as_json or self.quiet or not rows:
            return
        texts = [["" if cell is None else plain(cell) for cell in row] for row in rows]
        right, short = ([name in chosen for name in columns] for chosen in (numbers, cut))

        def shown(text: str, header: bool) -> str:
            return styled(text, BOLD if header else STYLES.get(text), sys.stdout)

        for line in laid_out([plain(name) for name in columns], texts, self.width, right, short, shown):
            print(line)  # noqa: T201
        if left_out > 0:
            self.line(f"and {left_out:,} more: --json has all")

    def fields(self, rows: Mapping[str, str | Sequence[str]]) -> None:
        """Print names and values for people, without empty values.

        Each item of a list, and what of a value does not fit into a line, goes into a line of its own.
        """
        shown = {name: [value] if isinstance(value, str) else value for name, value in rows.items() if value}
        indent = max(map(len, shown), default=0) + 2
        for name, values in shown.items():
            lines = [line for value in values for line in wrapped(plain(value), self.width - indent, whole_words=True)]
            for start, line in zip_longest((name,), lines, fillvalue=""):
                self.line(f"{start:{indent}}{line}")

    @property
    def width(self) -> int:
        """Characters per line of standard output."""
        width = os.environ.get("COLUMNS", "")
        with suppress(OSError, ValueError):  # not a terminal, or a stream in memory
            width = str(os.get_terminal_size(sys.stdout.fileno()).columns or width)
        return max(_NARROWEST, int(width)) if width.isdecimal() and int(width) else _WIDTH

    def note(self, text: str) -> None:
        """Print a message on stderr."""
        if not self.quiet:
            _say(text, sys.stderr)

    def prompt(self, text: str) -> None:
        """Ask a person for a line: print a text on stderr and leave the line open."""
        print(text, end="", file=sys.stderr, flush=True)  # noqa: T201

    def replayed(self, lines: int) -> None:
        """Report on stderr how many lines of the ledger were applied again because the state lacked them, if any."""
        if lines:
            self.note(f"replayed {counted(lines, 'ledger line')} that {verb(lines, 'was', 'were')} not in the state")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show the progress of long work: a bar on a terminal, else a line every 30 s; nothing with `-q`."""
        if self.quiet:
            yield no_progress
        elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            with _bar() as report:
                yield report
        else:
            yield _log_lines(self)


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        BarColumn(20),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("starting", total=None, count="")

        def report(done: int, total: int | None, text: str) -> None:
            count = f"{done}/{total}" if total else ""
            bar.tasks[task].total = total  # `update` keeps the former one instead of None
            bar.update(task, completed=done, total=total, description=plain(text)[:60], count=count)

        yield report


def _log_lines(output: Output) -> Progress:
    last = time.monotonic()

    def report(done: int, total: int | None, text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            output.note(f"{text}: {done} of {total}" if total else text)

    return report
