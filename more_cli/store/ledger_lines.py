"""Lines of a ledger: a few words of each in memory, the rest read from disk when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from more_cli.files import disk_errors
from more_cli.store.entry import Entry, Status, parse_entry

LINE_BYTES = 64 * 2**20
"""Longest line of a ledger, bytes."""


class Mark(NamedTuple):
    """What stays in memory of a line: where it is, and what statuses are derived from."""

    seq: int
    offset: int
    kind: str
    id: str
    status: Status
    content: bytes
    subject: bytes


class Cut(NamedTuple):
    """A revert, and what it took out of the history: everything from a place on."""

    revert: Mark
    since: int
    marks: list[Mark]


class Entries(Sequence[Entry]):
    """Lines of a ledger, read from disk when asked for, so that a long ledger costs little memory."""

    def __init__(self, path: Path, marks: Sequence[Mark]) -> None:
        self._path = path
        self._marks = marks

    def __len__(self) -> int:
        return len(self._marks)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Entries: ...
    def __getitem__(self, index: int | slice) -> Entry | Entries:
        if isinstance(index, slice):
            return Entries(self._path, self._marks[index])
        return next(iter(Entries(self._path, [self._marks[index]])))

    def __iter__(self) -> Iterator[Entry]:
        if not self._marks:
            return
        with disk_errors(self._path), open(self._path, "rb") as file:
            for mark in self._marks:
                file.seek(mark.offset)
                yield parse_entry(file.readline(LINE_BYTES), self._path, mark.seq)

    def contents(self) -> Iterator[tuple[str, str]]:
        """Yield id and content hash of each line, without reading the disk."""
        return ((mark.id, mark.content.hex()) for mark in self._marks)

    def kinds(self) -> Iterator[tuple[str, str]]:
        """Yield kind and id of each line, without reading the disk."""
        return ((mark.kind, mark.id) for mark in self._marks)

    def numbers(self) -> list[int]:
        """Return `seq` of each line, without reading the disk."""
        return [mark.seq for mark in self._marks]


class ById(Mapping[str, Entry]):
    """The last "edit" line of each id."""

    def __init__(self, path: Path, marks: Mapping[str, Mark]) -> None:
        self._path = path
        self._marks = marks

    def __getitem__(self, id: str) -> Entry:
        return Entries(self._path, [self._marks[id]])[0]

    def __contains__(self, id: object) -> bool:
        return id in self._marks

    def __iter__(self) -> Iterator[str]:
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)
