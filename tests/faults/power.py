"""A power cut: what was not synced may be lost, in any mixture that a file system is allowed to leave.

The model: a file has the bytes of its last fsync, and pending bytes written since; a folder has the names of its last
fsync, and pending changes made since. After a cut at any step the disk holds everything that was synced, and of the
pending changes one of the mixtures below. A rename is atomic.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults.disk import Step, watched
from faults.stream import Stream, judged
from faults.tally import Problem, Tally, forked

PART = "power cut"


@dataclass
class File:
    """One inode."""

    synced: bytes = b""
    written: bytes = b""


@dataclass
class Folder:
    """Names of files and folders: as synced, and the changes since, each to one or two names at once."""

    synced: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def names(self, keep: Callable[[int], bool] = lambda number: True) -> dict[str, File | Folder]:
        """Return the names with the pending changes that `keep` selects."""
        found: dict[str, File | Folder | None] = dict(self.synced)
        for number, change in enumerate(self.pending):
            if keep(number):
                found |= change
        return {name: node for name, node in found.items() if node is not None}

    def sync(self) -> None:
        self.synced, self.pending = self.names(), []


Content = Callable[[File], bytes]
Tree = dict[str, bytes | None]


def _half(file: File) -> bytes:
    """Return half of what was appended; for a rewritten file, half of it."""
    start = len(file.synced) if file.written.startswith(file.synced) else 0
    return file.written[: start + (len(file.written) - start) // 2]


def _zeros(file: File) -> bytes:
    """Return the new length with zeros for data."""
    start = len(file.synced) if file.written.startswith(file.synced) else 0
    return file.written[:start] + b"\0" * (len(file.written) - start)


def mixtures(draw: random.Random) -> dict[str, tuple[Content, Callable[[int], bool]]]:
    """Return the possible remains by name: which pending bytes of a file, and which pending names of a folder."""
    return {
        "only what was synced": (lambda file: file.synced, lambda number: False),
        "names without data": (lambda file: file.synced, lambda number: True),
        "data without names": (lambda file: file.written, lambda number: False),
        "names and half the data": (_half, lambda number: True),
        "names and zeros": (_zeros, lambda number: True),
        "everything": (lambda file: file.written, lambda number: True),
        "some names, some data": (
            lambda file: draw.choice((file.synced, _half(file), file.written)),
            lambda number: draw.random() < 0.5,
        ),
    }


class Model:
    """The folder as a file system would keep it, updated after each step."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Folder()
        self.files: list[File] = []
        self.ledger = File()

    def __call__(self, step: Step) -> None:
        """Apply a step."""
        if not step.after:
            return
        if step.path == str(self.root):
            assert step.change == "fsync", step.title
            self.top.sync()
            return
        folder, name = self._folder(step.path)
        node = folder.names().get(name)
        if step.change == "mkdir":
            folder.pending.append({name: Folder()})
        elif step.change == "rename":
            folder.pending.append({name: None, Path(step.to).name: node})
        elif step.change in ("unlink", "rmdir"):
            folder.pending.append({name: None})
        elif step.change == "fsync" and isinstance(node, Folder):
            node.sync()
        else:
            if not isinstance(node, File):
                node = File()
                folder.pending.append({name: node})
                self.ledger = node if name == "ledger.jsonl" else self.ledger
            node.written = Path(step.path).read_bytes()
            if step.change == "fsync":
                node.synced = node.written

    def _folder(self, path: str) -> tuple[Folder, str]:
        *parents, name = Path(path).relative_to(self.root).parts
        folder = self.top
        for parent in parents:
            found = folder.names()[parent]
            assert isinstance(found, Folder), path
            folder = found
        return folder, name

    def left(self, content: Content, keep: Callable[[int], bool]) -> Tree:
        """Return what a cut at this moment leaves, by relative path; None is a folder."""
        return dict(_leaves(self.top, "", content, keep))


def _leaves(
    folder: Folder, below: str, content: Content, keep: Callable[[int], bool]
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in folder.names(keep).items():
        if isinstance(node, Folder):
            yield below + name, None
            yield from _leaves(node, f"{below}{name}/", content, keep)
        else:
            yield below + name, content(node)


@dataclass(frozen=True)
class Cut:
    """One disk that a power cut may leave."""

    mixture: str
    step: str
    tree: Tree
    acknowledged: int
    """Edits whose ledger line was synced before the cut."""


def cuts(stream: Stream, seed: int) -> list[Cut]:
    """Return every different disk that a cut at any step of a run may leave."""
    sidecar = stream.state("power")
    model, draw, found = Model(sidecar.parent), random.Random(seed), list[Cut]()
    seen: set[tuple[tuple[str, bytes | None], ...]] = set()

    def watch(step: Step) -> None:
        model(step)
        for name, (content, keep) in mixtures(draw).items():
            left = model.left(content, keep)
            steady = {path: data for path, data in left.items() if not path.endswith((".pid", "/lock"))}
            if (key := tuple(sorted(steady.items()))) not in seen:
                seen.add(key)
                found.append(Cut(name, step.title, left, model.ledger.synced.count(b"\n")))

    with watched(sidecar.parent, watch):
        stream.edit(sidecar)
    return found


def at_every_step(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """Write each of these disks and resume from it."""
    found = _recorded(stream, seed)
    if most is not None:
        found = random.Random(seed).sample(found, min(most, len(found)))
    for number, cut in enumerate(found):
        sidecar = stream.state(f"cut-{number}")
        lay_out(cut.tree, sidecar.parent)

        def judge() -> list[Problem]:
            problems = stream.recovered(sidecar, cut.acknowledged)
            return [Problem(problem.kind, f"{cut.step}: {problem.text}") for problem in problems]

        judged(tally, PART, cut.mixture, judge)
        shutil.rmtree(sidecar.parent)


def _recorded(stream: Stream, seed: int) -> list[Cut]:
    """Return the cuts of a run in its own fork, so that this process starts no threads."""

    def record() -> list[list[object]]:
        found = cuts(stream, seed)
        trees = [{name: None if data is None else data.hex() for name, data in cut.tree.items()} for cut in found]
        return [[cut.mixture, cut.step, tree, cut.acknowledged] for cut, tree in zip(found, trees, strict=True)]

    return [
        Cut(mixture, step, {name: None if data is None else bytes.fromhex(data) for name, data in tree.items()}, lines)
        for mixture, step, tree, lines in forked(record).value
    ]


def lay_out(tree: Tree, root: Path) -> None:
    """Write a disk into an empty folder."""
    for name, data in tree.items():
        if data is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)
