"""The ledger: every edit ever made, one hash-chained line each, and the images they were made with.

Line n carries `seq` n and in `prev` the SHA-256 of line n - 1, newline included (64 zeros for the first), so
`sed -n 3p ledger.jsonl | sha256sum` is the `prev` of line 4. Lines are only ever appended; what a later line says
about an edit (reverted, corrected) is derived on reading.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

from more_cli.clock import timed
from more_cli.edits import Edit, Probe
from more_cli.entry import START, Entry, ProbeEntry, Status, damaged, parse_entry
from more_cli.errors import StateError
from more_cli.files import append_line, canonical_json, cut, disk_errors, sha256_bytes, sync_folder
from more_cli.images import ImageSource
from more_cli.images import ImageStore as ImageStore

LINE_BYTES = 64 * 2**20
"""Longest line of a ledger, bytes."""


class _Mark(NamedTuple):
    """What stays in memory of a line: where it is, and what statuses are derived from."""

    seq: int
    offset: int
    kind: str
    id: str
    status: Status
    content: bytes
    subject: bytes


class Entries(Sequence[Entry]):
    """Lines of a ledger, read from disk when asked for, so that a long ledger costs little memory."""

    def __init__(self, path: Path, marks: Sequence[_Mark]) -> None:
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


class _ById(Mapping[str, Entry]):
    """The last "edit" line of each id."""

    def __init__(self, path: Path, marks: Mapping[str, _Mark]) -> None:
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


class Ledger:
    """The ledger of one state, in ``folder``; reading needs no lock, appending the writer lock.

    A last line that a crash left without its newline was never acknowledged: it is passed over on reading and
    cut off by the next append. `on_line` sees every line as it is read.

    Raises:
        StateError: a line is damaged, missing or from a newer version.
    """

    def __init__(self, folder: Path, on_line: Callable[[Entry], None] | None = None) -> None:
        self.folder = folder
        self.path = folder / "ledger.jsonl"
        self.images = ImageStore(folder / "images")
        self.head = START
        """Hash of the last line: the `prev` of the next."""
        self._marks: list[_Mark] = []
        self._made: dict[str, _Mark] = {}
        self._righted: set[int] = set()
        self.entries: Sequence[Entry] = Entries(self.path, self._marks)
        """All lines, oldest first."""
        self.by_id: Mapping[str, Entry] = _ById(self.path, self._made)
        """The last "edit" line of each id."""
        self._size = 0  # bytes of whole lines
        self._torn = 0  # bytes after them
        self._fd: int | None = None
        with disk_errors(self.path), suppress(FileNotFoundError):
            self._load(on_line)

    @timed("ledger")
    def keep(self, edit: Edit, *, store: bool = True) -> dict[str, Any]:
        """Return the part of an entry that describes ``edit``; put its images into the store first.

        Without ``store`` only paths and hashes are kept; a `data:` URI, which has no path, is stored anyway.

        Raises:
            DataError: an image has vanished or changed since it was checked.
            StateError, ResourceError: as `disk_errors`.
        """
        paths: dict[str, str] = {}

        def kept(image: ImageSource) -> str:
            if store or image.path is None:
                return self.images.put(image.read())
            paths[image.sha256] = _storable(str(image.path))
            return image.sha256

        def probe(probe: Probe) -> dict[str, Any]:
            image = None if probe.image is None else kept(probe.image)
            return {"question": probe.question, "image": image, "answer": probe.answer, "hop": probe.hop}

        return {
            "id": edit.id,
            "content": edit.content,
            "subject": edit.subject,
            "images": [kept(image) for image in edit.images],
            "question": edit.question,
            "target": edit.target,
            "rephrases": list(edit.rephrases),
            "image_rephrases": [kept(image) for image in edit.image_rephrases],
            "locality": [probe(item) for item in edit.locality],
            "portability": [probe(item) for item in edit.portability],
            "tags": dict(edit.tags),
            "source": _storable(edit.source),
            "line": edit.line,
            "paths": paths,
        }

    @timed("ledger")
    def append(self, fields: Mapping[str, Any]) -> Entry:
        """Write one line and wait until it and the images put before are on disk.

        ``fields`` are those of `Entry` without `seq` and `prev`; `time` is now unless given, numbers that are
        not finite become None. If it fails, the file is as before.

        Raises:
            StateError: not writable, or another process has written.
            ResourceError: no space.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        measured = {name: None if _is_not_finite(value) else value for name, value in fields.items()}
        entry = Entry.model_validate({"time": now, **measured, "seq": len(self._marks) + 1, "prev": self.head})
        line = f"{canonical_json(entry.model_dump(mode='json'))}\n".encode()
        self.images.sync()
        with disk_errors(self.path):
            append_line(self._writable(), line)
        self._accept(entry, line)
        return entry

    def statuses(self) -> dict[str, Status]:
        """Return the status of every id as of the last line.

        An edit is superseded by a later one about the same images and question with another target, unless
        that one was itself refused or reverted. What was not learnt is once a consolidation found it right.
        """
        statuses = {mark.id: mark.status for mark in self._marks if mark.kind != "consolidate"}
        for mark in self._made.values():
            if statuses[mark.id] is Status.NOT_LEARNT and mark.seq in self._righted:
                statuses[mark.id] = Status.LEARNT
        later: dict[bytes, set[bytes]] = {}
        for mark in sorted(self._made.values(), reverse=True):
            if statuses[mark.id] in (Status.REFUSED, Status.REVERTED):
                continue
            contents = later.setdefault(mark.subject, set())
            if contents - {mark.content}:
                statuses[mark.id] = Status.SUPERSEDED
            contents.add(mark.content)
        return statuses

    def standing(self) -> Sequence[Entry]:
        """Return the edits that are neither refused, reverted nor superseded, in the order they were made."""
        gone = {Status.REFUSED, Status.REVERTED, Status.SUPERSEDED}
        statuses = self.statuses()
        return Entries(self.path, [mark for mark in sorted(self._made.values()) if statuses[mark.id] not in gone])

    def edit_of(self, entry: Entry) -> Edit:
        """Return the edit of a line, with images from the store or, if not stored, from where they were.

        Nothing is read yet: a missing or changed image shows when it is opened.
        """

        def image(sha256: str) -> ImageSource:
            path = entry.paths.get(sha256)
            if path is None or sha256 in self.images:
                return self.images.source(sha256)
            return ImageSource(path, Path(path), sha256)

        def probe(item: ProbeEntry) -> Probe:
            return Probe(item.question, image(item.image) if item.image else None, item.answer, item.hop)

        return Edit(
            id=entry.id,
            images=tuple(image(sha256) for sha256 in entry.images),
            question=entry.question,
            target=entry.target,
            rephrases=tuple(entry.rephrases),
            image_rephrases=tuple(image(sha256) for sha256 in entry.image_rephrases),
            locality=tuple(probe(item) for item in entry.locality),
            portability=tuple(probe(item) for item in entry.portability),
            tags=entry.tags,
            source=entry.source,
            line=entry.line,
        )

    @property
    def torn(self) -> int:
        """Bytes of a last line that a crash cut short."""
        return self._torn

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, on_line: Callable[[Entry], None] | None) -> None:
        with open(self.path, "rb") as file:
            while line := file.readline(LINE_BYTES):
                if not line.endswith(b"\n"):
                    if file.read(1):
                        raise self._damaged("is too long")
                    self._torn = len(line)
                    return
                entry = parse_entry(line, self.path, len(self._marks) + 1)
                if entry.prev != self.head:
                    raise self._damaged("does not follow from the line before: one of the two was changed")
                if entry.seq != len(self._marks) + 1:
                    raise self._damaged(f"has the number {entry.seq}")
                self._accept(entry, line)
                if on_line is not None:
                    on_line(entry)

    def _accept(self, entry: Entry, line: bytes) -> None:
        hashes = bytes.fromhex(entry.content), bytes.fromhex(entry.subject)
        mark = _Mark(entry.seq, self._size, entry.kind, entry.id, entry.status, *hashes)
        self._marks.append(mark)
        if entry.kind == "edit":
            self._made[entry.id] = mark
        if entry.kind == "consolidate":
            self._righted |= {number for number, margin in entry.looks if margin > 0}
        self.head = sha256_bytes(line)
        self._size += len(line)

    def _damaged(self, text: str) -> StateError:
        return damaged(self.path, len(self._marks) + 1, text)

    def _writable(self) -> int:
        """Return the file opened for appending, with what a crash left at its end cut off."""
        if self._fd is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            # O_BINARY exists on Windows only, where a newline would be written as two bytes.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._fd = os.open(self.path, flags, 0o666)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)
        size = os.fstat(self._fd).st_size
        if size != self._size + self._torn:
            hint = "run the command again; if that does not help, `more verify`"
            raise StateError(f"`{self.path}` has changed since it was read", hint)
        if self._torn:
            cut(self._fd, self._size)
            self._torn = 0
        return self._fd


def content_digest(entries: Iterable[Entry]) -> str:
    """Return the digest of edits in their order: what the sidecar keeps to know which edits it holds."""
    pairs = entries.contents() if isinstance(entries, Entries) else ((line.id, line.content) for line in entries)
    return reduce(_mixed, pairs, START)


def extend(digest: str, entry: Entry) -> str:
    """Return ``digest`` with one more edit, by its id and content."""
    return _mixed(digest, (entry.id, entry.content))


def _mixed(digest: str, pair: tuple[str, str]) -> str:
    return sha256_bytes(canonical_json([digest, *pair]).encode())


def _storable(name: str) -> str:
    # A file name may hold bytes that are no text.
    return name.encode("utf-8", "replace").decode()


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
