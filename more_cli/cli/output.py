"""The only module that prints: results on stdout, everything else on stderr, control characters escaped.

One object per command holds `--json`, `-q` and `-v`. Rich is imported when a table or a bar is drawn.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from more_cli.errors import MoreError
from more_cli.text import inert, plain

if TYPE_CHECKING:
    from more_cli.progress import Progress

LOG_SECONDS = 30.0
"""Between two progress lines when stderr is not a terminal."""
ROWS = 20
"""Rows of a list of edits or images that people see; `--json` has them all."""
_WIDTH = 140
"""Characters per line of a table that does not go to a terminal."""


def fail(error: MoreError) -> None:
    """Print `error: ...` and its hint on stderr, each problem on its own line."""
    for problem in error.message.split("\nerror: "):
        print(plain(f"error: {problem}"), file=sys.stderr)  # noqa: T201
    if error.hint:
        print(plain(f"hint: {error.hint}"), file=sys.stderr)  # noqa: T201


class _Inert(logging.Formatter):
    """Escapes control characters in log lines, also in those of libraries, so that they cannot steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(plain, super().format(record).splitlines()))


def _log_handler() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Inert("%(levelname)s %(name)s: %(message)s"))
    return handler


def close_stdout() -> None:
    """Report that the output pipe was closed by its reader, and discard the rest of standard output."""
    with suppress(OSError, ValueError):  # a stream in memory, or standard error closed too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("output pipe closed; finished work is saved", file=sys.stderr)  # noqa: T201


class Output:
    """Where one command's results and messages go."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: int = 0) -> None:
        self.as_json = as_json
        self.quiet = quiet
        level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
        logging.basicConfig(level=level, handlers=[_log_handler()], force=True)
        if not verbose:
            logging.disable(logging.WARNING)
            os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def json(self, schema: str, values: Mapping[str, Any]) -> None:
        """Print one JSON object on stdout if `--json` was given, flushed at once.

        A number that is not finite becomes null.
        """
        if self.as_json:
            whole = finite({"schema": schema, **values})
            text = json.dumps(whole, sort_keys=True, ensure_ascii=False, allow_nan=False)
            print(inert(text), flush=True)  # noqa: T201

    def line(self, text: str = "") -> None:
        """Print one line of a result for people."""
        if not self.as_json and not self.quiet:
            print(plain(text))  # noqa: T201

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()) -> None:
        """Print a table for people; columns in `numbers` are aligned to the right."""
        if self.as_json or self.quiet or not rows:
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        terminal = sys.stdout.isatty()
        table = Table(box=None, pad_edge=False, header_style="bold" if terminal else "")
        for column in columns:
            table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(plain(cell)) for cell in row))
        # Rendered first and then printed: rich would end the process by itself when the output pipe is closed.
        rendered = io.StringIO()
        Console(file=rendered, width=None if terminal else _WIDTH, force_terminal=terminal).print(table)
        print(rendered.getvalue(), end="")  # noqa: T201

    def note(self, text: str) -> None:
        """Print a message on stderr."""
        if not self.quiet:
            print(plain(text), file=sys.stderr)  # noqa: T201

    def replayed(self, edits: int) -> None:
        """Report on stderr how many edits were replayed from the ledger, if any."""
        if edits:
            self.note(f"replayed {edits} edits that were in the ledger but not in the state")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show the progress of long work: a bar on a terminal, else a line every 30 s; nothing with `-q`."""
        if self.quiet:
            yield lambda done, total, text: None
        elif sys.stderr.isatty():
            with _bar() as report:
                yield report
        else:
            yield _log_lines(self)


def finite(value: Any) -> Any:
    """Return JSON values with None for every infinity and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=plain(text)[:60])


def _log_lines(output: Output) -> Progress:
    last = time.monotonic()

    def report(done: int, total: int | None, text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_SECONDS:
            last = time.monotonic()
            output.note(f"{text}: {done}" + (f" of {total}" if total else ""))

    return report
