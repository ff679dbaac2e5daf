"""Lines of a ledger: an index of them in memory, the lines themselves read from disk when needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from more_cli.files import disk_errors
from more_cli.store.entry import RIGHT, Entry, Status, parse_entry

LINE_BYTES = 64 * 2**20
"""Longest line of a ledger, bytes."""


class LineRef(NamedTuple):
    """What memory keeps of a line: its offset in the file, and the fields that statuses are derived from."""

    seq: int
    offset: int
    kind: str
    id: str
    status: Status
    content: bytes
    subject: bytes


class Revert(NamedTuple):
    """A "revert" line, and the part of the history that it removed: everything from place `since` on."""

    line: LineRef
    since: int
    removed: list[LineRef]


class Entries(Sequence[Entry]):
    """Lines of a ledger, read from disk when needed, so that a long ledger takes little memory."""

    def __init__(self, path: Path, refs: Sequence[LineRef]) -> None:
        self._path = path
        self._refs = refs

    def __len__(self) -> int:
        return len(self._refs)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Entries: ...
    def __getitem__(self, index: int | slice) -> Entry | Entries:
        if isinstance(index, slice):
            return Entries(self._path, self._refs[index])
        return next(iter(Entries(self._path, [self._refs[index]])))

    def __iter__(self) -> Iterator[Entry]:
        if not self._refs:
            return
        with disk_errors(self._path), open(self._path, "rb") as file:
            for ref in self._refs:
                file.seek(ref.offset)
                yield parse_entry(file.readline(LINE_BYTES), self._path, ref.seq)

    def contents(self) -> Iterator[tuple[str, str]]:
        """Yield id and content hash of each line, without reading the disk."""
        return ((ref.id, ref.content.hex()) for ref in self._refs)

    def kinds(self) -> Iterator[tuple[str, str]]:
        """Yield kind and id of each line, without reading the disk."""
        return ((ref.kind, ref.id) for ref in self._refs)

    def numbers(self) -> list[int]:
        """Return `seq` of each line, without reading the disk."""
        return [ref.seq for ref in self._refs]


class ById(Mapping[str, Entry]):
    """The last "edit" line of each id."""

    def __init__(self, path: Path, refs: Mapping[str, LineRef]) -> None:
        self._path = path
        self._refs = refs

    def __getitem__(self, id: str) -> Entry:
        return Entries(self._path, [self._refs[id]])[0]

    def __contains__(self, id: object) -> bool:
        return id in self._refs

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def statuses_of(history: Sequence[LineRef], ids: Iterable[str], found: Mapping[int, bool]) -> dict[str, Status]:
    """Return the status of every id; `found` says by place which edits the last consolidation of each left right.

    See `Ledger.statuses`.
    """
    statuses = dict.fromkeys(ids, Status.REVERTED)
    for place, ref in enumerate(history, 1):
        if ref.kind == "edit":
            statuses[ref.id] = ref.status
            if ref.status is not Status.REFUSED and place in found and found[place] != (ref.status in RIGHT):
                statuses[ref.id] = Status.LEARNT if found[place] else Status.NOT_LEARNT
    later: dict[bytes, set[bytes]] = {}
    judged = set[str]()  # the last line of an edit that was tried again counts
    for ref in reversed(history):
        if ref.kind != "edit":
            continue
        contents = later.setdefault(ref.subject, set())
        if ref.id not in judged and contents - {ref.content}:
            statuses[ref.id] = Status.SUPERSEDED
        judged.add(ref.id)
        if ref.status is not Status.REFUSED:
            contents.add(ref.content)
    return statuses
