"""The ledger: every edit ever made, one hash-chained line each, and the images they were made with.

Line n carries `seq` n and in `prev` the SHA-256 of line n - 1 with its newline (64 zeros for the first), so
`sed -n 3p ledger.jsonl | sha256sum` is the `prev` of line 4. Lines are only appended. Whether an edit was reverted or
corrected later is derived on reading, and so is the history: the lines still in force, in the order in which the state
holds them.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

from more_cli.clock import timed
from more_cli.errors import StateError
from more_cli.files import append_line, cut, disk_errors, open_to_append, require_regular, sha256_bytes, sync_folder
from more_cli.inputs.edits import Edit, Probe, content_hash, subject_hash
from more_cli.inputs.images import ImageSource, ImageStore
from more_cli.store.entry import (
    START,
    Entry,
    FailedEdit,
    ProbeEntry,
    check_line,
    damaged,
    parse_entry,
    read_entry,
    shown_as,
    turn_fields,
    turns_in,
    with_checksum,
)
from more_cli.store.status import FAILED, RIGHT, Status
from more_cli.text import canonical_json, is_utf8


class Ledger:
    """The ledger of one state, in ``folder``; reading needs no lock, appending needs the writer lock.

    A crash can leave a line without its newline, or a revert without all of its lines. Neither was acknowledged:
    reading skips it, and the next append cuts it off. `on_line` is called once for every line while it is read, also
    for lines that a revert, finished or not, undoes later (see `has_reverts`).

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
        self._refs: list[LineRef] = []
        self._history: list[LineRef] = []
        self._by_id: dict[str, LineRef] = {}
        self._found: dict[int, dict[int, bool]] = {}  # place of a consolidation -> its edits: place -> right
        self._anchors: dict[int, LineRef] = {}  # by place: "anchors" lines, and edits that brought anchors
        self._reverts: list[Revert] = []
        self._missing = 0  # lines that the last revert still lacks
        self.entries = Entries(self.path, self._refs)
        """All lines, oldest first."""
        self.history = Entries(self.path, self._history)
        """Lines in force, in order: what a state holds. None is a "revert" line. Places in it count from 1."""
        self.reverted: set[str] = set()
        """Ids of edits that were reverted and not made again."""
        self.has_reverts = False
        """Whether there is a revert line, so that a line's place can differ from its number."""
        self.by_id = ById(self.path, self._by_id)
        """The last "edit" line of each id."""
        self._size = 0  # bytes of whole lines
        self.torn = 0
        """Bytes after them: of a last line that a crash cut short."""
        self._has_checksums = False  # whether the last line has a checksum: then all later lines have one
        self._fd: int | None = None
        require_regular(self.path)
        with disk_errors(self.path), suppress(FileNotFoundError), _garbage_collector_off():
            self._load(on_line)
            if self._missing:
                self._load(None, end=self._reverts[-1].line.offset)

    @timed("ledger")
    def describe(self, edit: Edit, *, store: bool = True) -> dict[str, Any]:
        """Return the fields of an entry that describe ``edit``; put its images into the store first.

        Without ``store`` only paths and hashes are kept, except for a `data:` URI, which has no path.

        Raises:
            DataError: an image has vanished or changed since it was checked.
            StateError, ResourceError: as `disk_errors`.
        """
        paths: dict[str, str] = {}

        def hash_of(image: ImageSource) -> str:
            if store or image.path is None or not is_utf8(image.path):  # such a path cannot be noted
                return self.images.put(image.read())
            paths[image.sha256] = str(image.path)
            return image.sha256

        def probe(probe: Probe) -> dict[str, Any]:
            asked = {"question": probe.question, "answer": probe.answer, "hop": probe.hop}
            asked |= shown_as(list(map(hash_of, probe.images)))
            return asked | ({"turns": turn_fields(probe.turns)} if probe.turns else {})

        return {
            "id": edit.id,
            "content": edit.content,
            "subject": edit.subject,
            "images": [hash_of(image) for image in edit.images],
            "question": edit.question,
            "target": edit.target,
            "turns": turn_fields(edit.turns),
            "rephrases": list(edit.rephrases),
            "image_rephrases": [hash_of(image) for image in edit.image_rephrases],
            "locality": [probe(item) for item in edit.locality],
            "portability": [probe(item) for item in edit.portability],
            "tags": dict(edit.tags),
            "source": edit.source.encode("utf-8", "replace").decode(),  # a file name can contain bytes that are no text
            "line": edit.line,
            "paths": paths,
        }

    @timed("ledger")
    def append(self, fields: Mapping[str, Any]) -> Entry:
        """Append one line and wait until it and all images stored before are on disk.

        ``fields`` are those of `Entry` without `seq` and `prev`; `time` defaults to now, numbers that are not finite
        become None. On failure the file stays as it was.

        Raises:
            StateError: not writable, or another process wrote to it.
            ResourceError: no space.
        """
        return self.append_all([fields])[0]

    def append_all(self, rows: Iterable[Mapping[str, Any]]) -> list[Entry]:
        """Append several lines in one write; see `append`."""
        entries, lines, head = list[Entry](), list[bytes](), self.head
        for fields in rows:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            measured = {name: None if _is_not_finite(value) else value for name, value in fields.items()}
            seq = len(self._refs) + len(entries) + 1
            entry, line = with_checksum(Entry.model_validate({"time": now, **measured, "seq": seq, "prev": head}))
            entries.append(entry)
            lines.append(line)
            head = sha256_bytes(line)
        self.images.sync()
        with disk_errors(self.path):
            append_line(self._writable(), b"".join(lines))
        for entry, line in zip(entries, lines, strict=True):
            self._accept(entry, line)
        return entries

    def agrees(self, edits: int, digest: str) -> bool:
        """Return whether the first ``edits`` entries of the history have this digest."""
        return self._agrees(self._history, edits, digest)

    def agreed_before_revert(self, edits: int, digest: str) -> bool:
        """Return whether the history had these first entries before one of the reverts."""
        history = self._history
        for revert in reversed(self._reverts):
            history = [*history[: revert.since - 1], *revert.removed]
            if self._agrees(history, edits, digest):
                return True
        return False

    def _agrees(self, history: list[LineRef], edits: int, digest: str) -> bool:
        return len(history) >= edits and content_digest(Entries(self.path, history[:edits])) == digest

    def effort(self, place: int) -> int:
        """Return how many edits the history after a place applies or, in consolidations, scores again."""
        scored = sum(len(edits) for at, edits in self._found.items() if at > place)
        return len(self._history) - place + scored

    @property
    def last_revert(self) -> Entry | None:
        """The last revert line, if there is one."""
        return self.entries[self._reverts[-1].line.seq - 1] if self._reverts else None

    @property
    def anchors(self) -> list[str]:
        """Digests of the sets that "anchors" lines in force added, oldest first; each set holds the one before."""
        return [ref.content.hex() for ref in self._anchors.values() if ref.kind == "anchors"]

    def anchor_lines(self, place: int) -> Sequence[Entry]:
        """Return the lines up to this place of the history that brought anchors: "anchors" lines, and edits."""
        return Entries(self.path, [ref for at, ref in self._anchors.items() if at <= place])

    def head_at(self, lines: int) -> str | None:
        """Return the hash of the last of the first `lines` lines; None where there are fewer."""
        if lines < len(self.entries):
            return self.entries[lines].prev
        return self.head if lines == len(self.entries) else None

    def check_contents(self) -> None:
        """Compare what every edit says with its hashes, by which a state knows it.

        Raises:
            StateError: question, target, images or earlier turns of a line are others.
        """
        for entry in self.entries:
            made = _hashes(entry)
            if entry.kind == "edit" and (entry.content, entry.subject) != made:
                text = "was changed: its question, target or images do not match their hash"
                raise damaged(self.path, entry.seq, text)

    def statuses(self) -> dict[str, Status]:
        """Return the status of every id as of the last line.

        An edit is superseded by a later one about the same images and question with another target, unless
        that one was itself refused or reverted. The last consolidation that looked at an edit says whether it is
        learnt.
        """
        found: dict[int, bool] = {}
        for right in self._found.values():
            found |= right
        return statuses_of(self._history, self._by_id, found)

    def changed(self) -> str:
        """Return when edits last changed, as text; empty without a line. What a revert makes again keeps its time."""
        lines = [*self._refs[-1:], *(revert.line for revert in self._reverts[-1:])]
        return max((entry.time for entry in Entries(self.path, lines)), default="")

    def standing(self) -> Sequence[Entry]:
        """Return the edits that are neither refused, reverted nor superseded, in the order they were made."""
        return self._latest({Status.REFUSED, Status.SUPERSEDED})

    def superseding(self, id: str) -> str:
        """Return the last edit in force after this one that gives its question another answer; empty without one."""
        edit = self._by_id[id]
        later = (
            ref for ref in self._history if ref.kind == "edit" and ref.seq > edit.seq and ref.subject == edit.subject
        )
        rivals = [ref.id for ref in later if ref.content != edit.content and ref.status is not Status.REFUSED]
        return rivals[-1] if rivals else ""

    def asked(self) -> Sequence[Entry]:
        """Return the edits that are neither reverted nor superseded: those that count, whether they stand or not."""
        return self._latest({Status.SUPERSEDED})

    def failed(self) -> list[FailedEdit]:
        """Return the edits that were asked for and do not stand."""
        statuses = self.statuses()
        lines = self._latest(set(Status) - set(FAILED))
        return [FailedEdit(entry.id, statuses[entry.id], entry.reason or _late_reason(entry)) for entry in lines]

    def _latest(self, without: Collection[Status]) -> Entries:
        """Return the last line of every edit in force whose status is not one of `without`."""
        statuses = self.statuses()
        edits = (ref for ref in self._history if ref.kind == "edit" and ref is self._by_id[ref.id])
        return Entries(self.path, [ref for ref in edits if statuses[ref.id] not in without])

    def edit_of(self, entry: Entry) -> Edit:
        """Return the edit of a line, with images from the store or, if not stored, from their original path.

        No image is read yet: a missing or changed one is reported when it is opened.
        """
        return Edit(
            id=entry.id,
            images=tuple(self._image(entry, sha256) for sha256 in entry.images),
            question=entry.question,
            target=entry.target,
            rephrases=tuple(entry.rephrases),
            image_rephrases=tuple(self._image(entry, sha256) for sha256 in entry.image_rephrases),
            locality=self._probes(entry, entry.locality),
            portability=self._probes(entry, entry.portability),
            tags=entry.tags,
            source=entry.source,
            line=entry.line,
            turns=turns_in(entry.turns),
        )

    def made_of(self, entry: Entry) -> Sequence[Probe]:
        """Return the anchors that were made of an edit's picture."""
        return self._probes(entry, entry.made)

    def _probes(self, entry: Entry, items: Iterable[ProbeEntry]) -> tuple[Probe, ...]:
        def probe(item: ProbeEntry) -> Probe:
            images = tuple(self._image(entry, sha256) for sha256 in item.pictures)
            return Probe(item.question, images, item.answer, item.hop, turns=turns_in(item.turns))

        return tuple(map(probe, items))

    def _image(self, entry: Entry, sha256: str) -> ImageSource:
        path = entry.paths.get(sha256)
        if path is None or sha256 in self.images:
            return self.images.source(sha256)
        return ImageSource(path, Path(path), sha256)

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def cut_torn(self) -> None:
        """Remove what a crash left at the end; only for the holder of the state's writer lock.

        Raises:
            StateError, ResourceError: as `disk_errors`.
        """
        if self.torn:
            with self, disk_errors(self.path):
                self._writable()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, on_line: Callable[[Entry], None] | None, end: int | None = None) -> None:
        """Read the file, or its whole lines up to the byte `end`."""
        for part in (self._refs, self._history, self._by_id, self._found, self._anchors):
            part.clear()
        self._reverts.clear()
        self.reverted.clear()
        self.head, self._size, self._missing, self._has_checksums = START, 0, 0, False
        # The next line holds the hash of a line, so its own checksum, which costs more, is compared in two cases only:
        # there is no next line, or two lines do not match and the changed one must be named.
        last: tuple[Entry, bytes] | None = None
        with open(self.path, "rb") as file:
            while self._size != end and (line := file.readline(LINE_BYTES)):
                if not line.endswith(b"\n"):
                    if file.read(1):
                        raise self._damaged("is too long")
                    break
                # Not through jsonlines: a ledger is long, and it would take about a tenth longer to read.
                entry = read_entry(line, self.path, len(self._refs) + 1)
                if entry.prev != self.head:
                    self._check_last(last)
                    raise self._damaged("does not follow from the line before: one of the two was changed")
                self._check(entry)
                self._accept(entry, line)
                last = entry, line
                if on_line is not None:
                    on_line(entry)
            self.torn = os.fstat(file.fileno()).st_size - self._size
        self._check_last(last)

    def _check_last(self, last: tuple[Entry, bytes] | None) -> None:
        if last:
            check_line(*last, self.path, len(self._refs))

    def _check(self, entry: Entry) -> None:
        if self._has_checksums and not entry.check:
            raise self._damaged("was changed: it has lost its checksum")
        self._has_checksums = bool(entry.check)
        if entry.seq != len(self._refs) + 1:
            raise self._damaged(f"has the number {entry.seq}")
        if entry.kind == "revert" and not 1 <= entry.since <= len(self._history):
            raise self._damaged(f"reverts from place {entry.since} on, of {len(self._history)}")

    def _accept(self, entry: Entry, line: bytes) -> None:
        hashes = bytes.fromhex(entry.content), bytes.fromhex(entry.subject)
        ref = LineRef(entry.seq, self._size, entry.kind, entry.id, entry.status, *hashes)
        self._refs.append(ref)
        if entry.kind == "revert":
            self._revert(ref, entry)
        else:
            self._history.append(ref)
            self._missing = max(0, self._missing - 1)
        if entry.kind == "edit":
            self._by_id[entry.id] = ref
            self.reverted.discard(entry.id)
        if entry.joint_writing:
            self._found[len(self._history)] = {place: margin > 0 for place, margin in entry.looks}
        if entry.kind == "anchors" or entry.made:
            self._anchors[len(self._history)] = ref
        self.head = sha256_bytes(line)
        self._size += len(line)

    def _revert(self, ref: LineRef, entry: Entry) -> None:
        removed = self._history[entry.since - 1 :]
        del self._history[entry.since - 1 :]
        self._reverts.append(Revert(ref, entry.since, removed))
        self._found = {place: right for place, right in self._found.items() if place < entry.since}
        self._anchors = {place: line for place, line in self._anchors.items() if place < entry.since}
        self._missing = entry.redone
        self.reverted |= {old.id for old in removed if old.kind == "edit"}
        self.has_reverts = True

    def _damaged(self, text: str) -> StateError:
        return damaged(self.path, len(self._refs) + 1, text)

    def _writable(self) -> int:
        """Return the file opened for appending, after cutting off what a crash left at its end."""
        if self._fd is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._fd = open_to_append(self.path)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)
        size = os.fstat(self._fd).st_size
        if size != self._size + self.torn:
            hint = "run the command again; if that does not help, `more verify`"
            raise StateError(f"`{self.path}` has changed since it was read", hint)
        if self.torn:
            cut(self._fd, self._size)
            self.torn = 0
        return self._fd


def _late_reason(entry: Entry) -> str:
    return "still wrong after its batch was written" if entry.joint else "wrong since a consolidation"


def content_digest(entries: Entries) -> str:
    """Return the digest of edits in their order, by which the sidecar says which edits it holds."""
    return reduce(extend_digest, entries.contents(), START)


def extend_digest(digest: str, edit: tuple[str, str]) -> str:
    """Return the digest after one more edit, given by id and content hash."""
    id, content = edit
    # This is the canonical JSON of the three, written by hand because it runs for every line.
    return sha256_bytes(f'["{digest}",{canonical_json(id)},"{content}"]'.encode())


@contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """Switch the garbage collector off: a long ledger makes many small objects that stay, and no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


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

    def of_kind(self, kind: str) -> Entries:
        """Return the lines of this kind."""
        return Entries(self._path, [ref for ref in self._refs if ref.kind == kind])

    def at(self, places: Iterable[int]) -> Entries:
        """Return the lines at some places, counted from 1."""
        return Entries(self._path, [self._refs[place - 1] for place in places])

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

    def content(self, id: str) -> str | None:
        """Return the content hash of the line of an id, without reading the disk; None if there is no such line."""
        ref = self._refs.get(id)
        return ref.content.hex() if ref else None

    def __contains__(self, id: object) -> bool:
        return id in self._refs

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def _hashes(entry: Entry) -> tuple[str, str]:
    """Return the hashes of an edit's content and of what it is about, by what its line says."""
    turns = turns_in(entry.turns)
    about = subject_hash(entry.images, entry.question, turns)
    return content_hash(entry.images, entry.question, entry.target, turns), about


def statuses_of(history: Sequence[LineRef], ids: Iterable[str], found: Mapping[int, bool]) -> dict[str, Status]:
    """Return the status of every id; `found` says by place which edits the last consolidation of each left right.

    See `Ledger.statuses`.
    """
    statuses = dict.fromkeys(ids, Status.REVERTED)
    counting, written = list[LineRef](), set[str]()
    for place, ref in enumerate(history, 1):
        if ref.kind != "edit" or (ref.status is Status.REFUSED and ref.id in written):
            continue  # a further try that is refused leaves what an earlier one wrote
        counting.append(ref)
        statuses[ref.id] = ref.status
        if ref.status is not Status.REFUSED:
            written.add(ref.id)
            if place in found and found[place] != (ref.status in RIGHT):
                statuses[ref.id] = Status.LEARNT if found[place] else Status.NOT_LEARNT
    later: dict[bytes, set[bytes]] = {}
    judged = set[str]()  # the last line of an edit that was tried again counts
    for ref in reversed(counting):
        contents = later.setdefault(ref.subject, set())
        if ref.id not in judged and contents - {ref.content}:
            statuses[ref.id] = Status.SUPERSEDED
        judged.add(ref.id)
        if ref.status is not Status.REFUSED:
            contents.add(ref.content)
    return statuses
