"""`more log`: the lines of a ledger, or everything it records about one edit; needs neither model nor torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from more_cli.errors import StateError, UsageError
from more_cli.ops.held import anchors_of
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger
from more_cli.store.snapshots import require_ledger
from more_cli.store.state import load_meta
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.text import did_you_mean, shorten


@dataclass(frozen=True)
class LineFilter:
    """Which lines to list: those that meet every condition."""

    id: str = "*"
    """A shell pattern."""
    statuses: Sequence[Status] = ()
    """Current statuses; empty for any."""
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""

    def matches(self, entry: Entry) -> bool:
        """Return whether id and time match."""
        if not fnmatchcase(entry.id, self.id):
            return False
        if self.since is None and self.until is None:
            return True
        time = _moment(entry)
        return (self.since is None or time >= self.since) and (self.until is None or time < self.until)


@dataclass(frozen=True)
class Line:
    """One line of the ledger and the current status of its edit."""

    entry: Entry
    now: Status
    retried: bool = False
    """Whether a later line tries the edit again."""


@dataclass(frozen=True)
class LogReport:
    """Lines of a ledger, oldest first."""

    target: Target
    head: str
    """Hash of the ledger's last line."""
    total: int
    """Lines in the ledger."""
    matching: int
    """Lines that match the filter."""
    lines: list[Line]
    """The last of the matching lines, up to the limit."""


@dataclass(frozen=True)
class EditRecord:
    """Everything the ledger records about one edit."""

    target: Target
    line: Line
    """The last time it was applied."""
    numbers: list[int]
    """All ledger lines about it."""
    superseded_by: str
    """Id of the later edit with another target for the same images and question; empty for none."""
    stored: dict[str, bool]
    """Whether the image is stored, by its hash."""
    moved: str = ""
    """Question of the watched anchor that moved most; empty if none was scored, or the anchors are missing."""


def log(target: Target, chosen: LineFilter, limit: int | None = None) -> LogReport:
    """Return the last `limit` of the lines that match; None for all.

    Raises:
        StateError: there is no ledger, or it is damaged.
    """
    matching: list[tuple[int, str, Status]] = []
    retries: dict[str, int] = {}

    def note(entry: Entry) -> None:
        if entry.retry:
            retries[entry.id] = entry.seq
        if chosen.matches(entry):
            matching.append((entry.seq, entry.id, entry.status))

    ledger = _open(target, note)
    now = ledger.statuses()
    if chosen.statuses:
        matching = [line for line in matching if now.get(line[1], line[2]) in chosen.statuses]
    shown = {number for number, _, _ in (matching if limit is None else matching[max(0, len(matching) - limit) :])}
    rest = ledger.entries[min(shown) - 1 :] if shown else ()
    lines = [
        Line(entry, now.get(entry.id, entry.status), retries.get(entry.id, 0) > entry.seq)
        for entry in rest
        if entry.seq in shown
    ]
    return LogReport(target, ledger.head, len(ledger.entries), len(matching), lines)


def show(target: Target, id: str) -> EditRecord:
    """Return everything the ledger records about one edit.

    Raises:
        StateError: there is no ledger, or it is damaged.
        UsageError: it holds no edit of that id.
    """
    numbers: list[int] = []

    def note(entry: Entry) -> None:
        if entry.id == id or id in entry.ids:
            numbers.append(entry.seq)

    ledger = _open(target, note)
    if not numbers:
        hint = did_you_mean(id, ledger.by_id) or "`more log` lists the ids"
        raise UsageError(f"no edit `{id}` in `{ledger.path}`", hint)
    entry = ledger.by_id.get(id) or ledger.entries[numbers[-1] - 1]
    now = ledger.statuses().get(id, entry.status)
    return EditRecord(
        target=target,
        line=Line(entry, now),
        numbers=numbers,
        superseded_by=ledger.superseding(id) if now is Status.SUPERSEDED else "",
        stored={image: image in ledger.images for image in (*entry.images, *entry.image_rephrases)},
        moved=_moved(target, entry) if entry.drifts else "",
    )


def _moved(target: Target, entry: Entry) -> str:
    """Return the question of the watched anchor that moved most."""
    place, _ = max(entry.drifts, key=lambda row: row[1])
    with suppress(StateError):  # the log can be read without the state
        return anchors_of(target.folder, load_meta(target.sidecar))[place].question
    return ""


def _open(target: Target, note: Callable[[Entry], None]) -> Ledger:
    ledger = Ledger(target.folder, note)
    if not ledger.entries:
        require_ledger(load_meta(target.sidecar), ledger, target.sidecar)
    return ledger


def _moment(entry: Entry) -> datetime:
    if entry.moment is None:
        text = f"ledger line {entry.seq} has no valid time: `{shorten(entry.time)}`"
        raise StateError(text, "leave out --since and --until")
    return entry.moment
