"""`more gc`: remove files of a state's folder that are no longer needed; never the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from more_cli.files import disk_errors, sizes_of
from more_cli.ops.anchors import later_file
from more_cli.ops.drafts import drafts
from more_cli.ops.held import anchors_of
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.snapshots import replay_start, snapshots_folder
from more_cli.store.state import load_state, save_state
from more_cli.store.target import Target


@dataclass
class GcReport:
    """What was removed, or would be."""

    target: Target
    files: dict[str, int] = field(default_factory=dict)
    """Bytes, by path within the folder."""
    dry_run: bool = False

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.files.values())


def collect(target: Target, *, dry_run: bool = False) -> GcReport:
    """Remove snapshots, caches, unfinished drafts, scratch files of killed processes, and images that no line names.

    Raises:
        StateError: the sidecar and the ledger do not belong together, or the lock is held.
    """
    report = GcReport(target, dry_run=dry_run)
    if dry_run or not target.folder.exists():
        report.files = _removable(target)
        return report
    with writer_lock(target.lock):
        state = load_state(target.sidecar)
        latest = replay_start(state, Ledger(target.folder), target.sidecar)
        if latest is not state:  # it may come from a snapshot that is removed below
            save_state(target.sidecar, latest)
        report.files = _removable(target)
        for name in report.files:
            with disk_errors(target.folder / name):
                (target.folder / name).unlink(missing_ok=True)
    return report


def _removable(target: Target) -> dict[str, int]:
    sizes = sizes_of(_unneeded(target))
    return {path.relative_to(target.folder).as_posix(): sizes[path] for path in sorted(sizes)}


def _unneeded(target: Target) -> Iterator[Path]:
    state, named = load_state(target.sidecar), set[str]()
    folder = target.folder
    ledger = Ledger(folder, lambda entry: named.update(entry.pictures))
    replay_start(state, ledger, target.sidecar)
    named |= {image.sha256 for anchor in anchors_of(folder, state.meta) for image in anchor.images}
    held = {later_file(folder, digest) for digest in ledger.anchors}
    yield from (path for path in folder.glob("anchors-*.jsonl") if path not in held)
    yield from snapshots_folder(folder).glob("*")
    yield from (folder / "cache").glob("*")
    yield from drafts(folder)
    yield from folder.glob(".*.part")
    yield from (path for path in (folder / "images").glob("*") if path.name not in named)
