"""The ledger: every edit ever made, one hash-chained line each, and the images they were made with.

Line n carries `seq` n and in `prev` the SHA-256 of line n - 1, newline included (64 zeros for the first), so
`sed -n 3p ledger.jsonl | sha256sum` is the `prev` of line 4. Lines are only ever appended; what a later line says
about an edit (reverted, corrected) is derived on reading, and so is the history: the lines that are still in force,
which a state holds in their order.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Self

from more_cli.clock import timed
from more_cli.errors import StateError
from more_cli.files import append_line, canonical_json, cut, disk_errors, sha256_bytes, sync_folder
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.inputs.images import ImageStore as ImageStore
from more_cli.store.entry import START, Entry, ProbeEntry, Status, damaged, read_entry, sealed, vouch
from more_cli.store.ledger_lines import LINE_BYTES, ById, Cut, Entries, Mark


class Ledger:
    """The ledger of one state, in ``folder``; reading needs no lock, appending the writer lock.

    What a crash left half-written was never acknowledged, be it a line without its newline or a revert without all of
    its lines: it is passed over on reading and cut off by the next append. `on_line` sees every line once, as it
    is read: also one that a revert, finished or not, took back, which `rewritten` says may be so.

    Raises:
        StateError: a line is damaged, missing or from a newer version.
    """

    def __init__(
        self, folder: Path, on_line: Callable[[Entry], None] | None = None, *, name: str = "ledger.jsonl"
    ) -> None:
        self.folder = folder
        self.path = folder / name
        self.images = ImageStore(folder / "images")
        self.head = START
        """Hash of the last line: the `prev` of the next."""
        self._marks: list[Mark] = []
        self._history: list[Mark] = []
        self._made: dict[str, Mark] = {}
        self._righted: dict[int, set[int]] = {}  # what each consolidation found right, by their places
        self._cuts: list[Cut] = []
        self._expected = 0  # lines that the last revert still lacks
        self.entries = Entries(self.path, self._marks)
        """All lines, oldest first."""
        self.history = Entries(self.path, self._history)
        """The edits and consolidations in force, in order: what a state holds. Places in it count from 1."""
        self.reverted: set[str] = set()
        """Edits that were taken back and not made again."""
        self.rewritten = False
        """Whether a revert was read, so that a line's place may not be its number."""
        self.by_id: Mapping[str, Entry] = ById(self.path, self._made)
        """The last "edit" line of each id."""
        self._size = 0  # bytes of whole lines
        self._torn = 0  # bytes after them
        self._checked = False  # whether the last line has a checksum: then all that follow have one
        self._fd: int | None = None
        with disk_errors(self.path), suppress(FileNotFoundError), uncollected():
            self._load(on_line)
            if self._expected:
                self._load(None, end=self._cuts[-1].revert.offset)

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
        return self.append_all([fields])[0]

    def append_all(self, rows: Iterable[Mapping[str, Any]]) -> list[Entry]:
        """Write several lines at once, as `append` does one."""
        entries, lines, head = list[Entry](), list[bytes](), self.head
        for fields in rows:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            measured = {name: None if _is_not_finite(value) else value for name, value in fields.items()}
            seq = len(self._marks) + len(entries) + 1
            entry, line = sealed(Entry.model_validate({"time": now, **measured, "seq": seq, "prev": head}))
            entries.append(entry)
            lines.append(line)
            head = sha256_bytes(line)
        self.images.sync()
        with disk_errors(self.path):
            append_line(self._writable(), b"".join(lines))
        for entry, line in zip(entries, lines, strict=True):
            self._accept(entry, line)
        return entries

    def tells(self, edits: int, digest: str) -> bool:
        """Say whether the history begins with the ``edits`` entries of that digest."""
        return len(self.history) >= edits and content_digest(self.history[:edits]) == digest

    def told(self, edits: int, digest: str) -> bool:
        """Say whether the history did so before one of the reverts."""
        marks = self._history
        for revert in reversed(self._cuts):
            marks = [*marks[: revert.since - 1], *revert.marks]
            if len(marks) >= edits and content_digest(Entries(self.path, marks[:edits])) == digest:
                return True
        return False

    @property
    def last_revert(self) -> Entry | None:
        """The line of the last revert."""
        return self.entries[self._cuts[-1].revert.seq - 1] if self._cuts else None

    def statuses(self) -> dict[str, Status]:
        """Return the status of every id as of the last line.

        An edit is superseded by a later one about the same images and question with another target, unless
        that one was itself refused or reverted. What was not learnt is once a consolidation found it right.
        """
        statuses = dict.fromkeys(self._made, Status.REVERTED)
        righted = set[int]().union(*self._righted.values())
        for place, mark in enumerate(self._history, 1):
            if mark.kind == "edit":
                right = mark.status is Status.NOT_LEARNT and place in righted
                statuses[mark.id] = Status.LEARNT if right else mark.status
        later: dict[bytes, set[bytes]] = {}
        for mark in reversed(self._history):
            if mark.kind != "edit" or mark.status is Status.REFUSED:
                continue
            contents = later.setdefault(mark.subject, set())
            if contents - {mark.content}:
                statuses[mark.id] = Status.SUPERSEDED
            contents.add(mark.content)
        return statuses

    def standing(self) -> Sequence[Entry]:
        """Return the edits that are neither refused, reverted nor superseded, in the order they were made."""
        gone = {Status.REFUSED, Status.SUPERSEDED}
        statuses = self.statuses()
        edits = (mark for mark in self._history if mark.kind == "edit")
        return Entries(self.path, [mark for mark in edits if statuses[mark.id] not in gone])

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

    def _load(self, on_line: Callable[[Entry], None] | None, end: int | None = None) -> None:
        """Read the file, or its whole lines up to the byte `end`."""
        for found in (self._marks, self._history, self._made, self._righted, self._cuts, self.reverted):
            found.clear()
        self.head, self._size, self._expected = START, 0, 0
        # A line is vouched for by the next one, which holds its hash. Its own checksum is asked where there is no next
        # one, and to tell which of two lines that do not fit was changed.
        last: tuple[Entry, bytes] | None = None
        with open(self.path, "rb") as file:
            while self._size != end and (line := file.readline(LINE_BYTES)):
                if not line.endswith(b"\n"):
                    if file.read(1):
                        raise self._damaged("is too long")
                    break
                entry = read_entry(line, self.path, len(self._marks) + 1)
                if entry.prev != self.head:
                    self._vouch(last)
                    raise self._damaged("does not follow from the line before: one of the two was changed")
                self._check(entry)
                self._accept(entry, line)
                last = entry, line
                if on_line is not None:
                    on_line(entry)
            self._torn = os.fstat(file.fileno()).st_size - self._size
        self._vouch(last)

    def _vouch(self, last: tuple[Entry, bytes] | None) -> None:
        if last:
            vouch(*last, self.path, len(self._marks))

    def _check(self, entry: Entry) -> None:
        if self._checked and not entry.check:
            raise self._damaged("was changed: it has lost its checksum")
        self._checked = bool(entry.check)
        if entry.seq != len(self._marks) + 1:
            raise self._damaged(f"has the number {entry.seq}")
        if entry.kind == "revert" and not 1 <= entry.since <= len(self._history):
            raise self._damaged(f"reverts from place {entry.since} on, of {len(self._history)}")

    def _accept(self, entry: Entry, line: bytes) -> None:
        hashes = bytes.fromhex(entry.content), bytes.fromhex(entry.subject)
        mark = Mark(entry.seq, self._size, entry.kind, entry.id, entry.status, *hashes)
        self._marks.append(mark)
        if entry.kind == "revert":
            self._cut(mark, entry)
        else:
            self._history.append(mark)
            self._expected = max(0, self._expected - 1)
        if entry.kind == "edit":
            self._made[entry.id] = mark
            self.reverted.discard(entry.id)
        if entry.kind == "consolidate":
            self._righted[len(self._history)] = {place for place, margin in entry.looks if margin > 0}
        self.head = sha256_bytes(line)
        self._size += len(line)

    def _cut(self, mark: Mark, entry: Entry) -> None:
        gone = self._history[entry.since - 1 :]
        del self._history[entry.since - 1 :]
        self._cuts.append(Cut(mark, entry.since, gone))
        self._righted = {place: found for place, found in self._righted.items() if place < entry.since}
        self._expected = entry.redone
        self.reverted |= {old.id for old in gone if old.kind == "edit"}
        self.rewritten = True

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
    id, content = pair
    # The canonical JSON of the three; the two hashes are hexadecimal digits, and this runs for every line.
    return sha256_bytes(f'["{digest}",{canonical_json(id)},"{content}"]'.encode())


@contextmanager
def uncollected() -> Iterator[None]:
    """Put the garbage collector off: a long ledger makes many small things that stay, and no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _storable(name: str) -> str:
    # A file name may hold bytes that are no text.
    return name.encode("utf-8", "replace").decode()


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
