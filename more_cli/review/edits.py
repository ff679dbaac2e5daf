"""The list of edits, from the ledger alone: no picture is opened and no model is loaded."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from more_cli.errors import UsageError
from more_cli.files import disk_errors
from more_cli.inputs.edits import Edit
from more_cli.store.entry import START, Entry
from more_cli.store.ledger import Ledger
from more_cli.store.status import FAILED, Status
from more_cli.store.target import Target
from more_cli.text import shorten

COLUMNS = ("id", "status", "question", "target", "base", "after", "drift")
"""Columns by which the list can be sorted."""
PAGE = 50
"""Edits on one page."""


@dataclass(frozen=True)
class Row:
    """One edit, as its last line in the ledger says, and its status now."""

    id: str
    status: Status
    question: str
    target: str
    base: str | None
    before: str | None
    """Before this edit, if that is not the base's answer."""
    after: str | None
    drift: float | None
    time: str
    images: tuple[str, ...]

    @classmethod
    def of(cls, entry: Entry, status: Status) -> Row:
        """Return the row of a ledger line."""
        answers = entry.greedy_base, entry.said_before, entry.greedy_after
        shown = entry.id, status, entry.question, entry.target, *answers, entry.drift, entry.time
        return cls(*shown, tuple(entry.images))

    def mentions(self, words: Sequence[str]) -> bool:
        """Return whether every word, in lower case, is in its id, question, target or answers."""
        text = "\n".join(
            (self.id, self.question, self.target, self.base or "", self.before or "", self.after or "")
        ).lower()
        return all(word in text for word in words)


@dataclass(frozen=True)
class Listing:
    """All edits at one moment, the newest first."""

    head: str = START
    """Hash of the ledger's last line."""
    rows: Sequence[Row] = ()
    counts: Mapping[Status, int] = field(default_factory=dict)
    """Number of edits by status."""

    def chosen(self, status: str = "", text: str = "", sort: str = "") -> list[Row]:
        """Return the edits of a status (empty for any) that mention every word of a text.

        `sort` is a name of `COLUMNS`, with `-` before it for the other way round; the newest come first otherwise.
        """
        words, column = text.lower().split(), sort.removeprefix("-")
        rows = [row for row in self.rows if status in ("", row.status) and row.mentions(words)]
        if column not in COLUMNS:
            return rows
        empty = [row for row in rows if getattr(row, column) is None]
        known = [row for row in rows if getattr(row, column) is not None]
        return sorted(known, key=attrgetter(column), reverse=sort != column) + empty

    @property
    def failed(self) -> int:
        """Number of edits that can be tried again."""
        return sum(self.counts.get(status, 0) for status in FAILED)

    def pictures(self) -> list[str]:
        """Return the hashes of the pictures that were edited, the last ones first."""
        return list(dict.fromkeys(image for row in self.rows for image in row.images))


class Edits:
    """Reads the ledger again whenever its file has changed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._known: tuple[tuple[int, int, int] | None, Listing] = None, Listing()
        self._lock = threading.Lock()

    def now(self) -> Listing:
        """Return the edits as of now; none before there is a ledger.

        Raises:
            StateError: the ledger is damaged.
        """
        path = self.target.folder / self.target.ledger_name
        with self._lock, disk_errors(path):
            if not path.exists():
                return Listing()
            status = os.stat(path)
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if self._known[0] != stamp:
                self._known = stamp, _read(self.target)
            return self._known[1]

    def edit(self, id: str) -> Edit:
        """Return an edit as it was applied last.

        Raises:
            UsageError: there is none of that id.
            StateError: the ledger is damaged.
        """
        ledger = Ledger(self.target.folder)
        if id not in ledger.by_id:
            raise UsageError(f"no edit `{shorten(id)}`", "the list has every edit")
        return ledger.edit_of(ledger.by_id[id])


def _read(target: Target) -> Listing:
    last: dict[str, Row] = {}

    def note(entry: Entry) -> None:
        if entry.kind == "edit":
            last.pop(entry.id, None)  # a further try stands at its own place
            last[entry.id] = Row.of(entry, entry.status)

    ledger = Ledger(target.folder, note)
    statuses = ledger.statuses()
    rows = [replace(row, status=statuses[id]) for id, row in reversed(last.items())]
    return Listing(ledger.head, rows, Counter(row.status for row in rows))
