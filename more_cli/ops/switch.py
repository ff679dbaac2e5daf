"""`more switch`: the states beside a checkpoint by name, a new one as a copy of another, and which one is in use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from more_cli.checkpoint.folder import require_checkpoint
from more_cli.errors import MoreError, StateError, UsageError
from more_cli.files import disk_errors, replacing, replacing_directory
from more_cli.ops.base import open_base
from more_cli.ops.drafts import drafts
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.names import MAIN, current_file, current_name, is_name, known_state, own_path, states_beside
from more_cli.store.snapshots import replay_start
from more_cli.store.state import State, load_meta, open_state
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.text import quoted, shorten

LINKED = ("images", "snapshots", "cache")
"""Folders of files that are never changed once written: a copy shares them."""


@dataclass(frozen=True)
class NamedState:
    """A state beside a checkpoint."""

    name: str
    path: Path
    edits: int | None
    """Edits that are not reverted; None where it cannot be read."""
    failed: int | None
    """Those of them that do not stand."""
    problem: str = ""
    """Why it cannot be read."""


@dataclass(frozen=True)
class SwitchReport:
    """The states beside a checkpoint."""

    model: Path
    current: str
    """Name of the state in use."""
    states: list[NamedState] = field(default_factory=list)
    created: bool = False
    """Whether this call made the state in use."""


def listed(model: Path, *, created: bool = False) -> SwitchReport:
    """Return the states beside a checkpoint, and which one is in use.

    Raises:
        StateError: the file that says which one is damaged, or there are no states, and no checkpoint either.
    """
    found = states_beside(model)
    if not found:
        require_checkpoint(model)
    states = [_described(name, path) for name, path in found.items()]
    return SwitchReport(model, current_name(model), states, created)


def _described(name: str, path: Path) -> NamedState:
    try:
        state = State(load_meta(path))  # before the ledger: an edit that comes in between makes only the ledger longer
        ledger = Ledger(Target(path, path).folder)
        replay_start(state, ledger, path)  # raises if they do not belong together
    except MoreError as error:
        return NamedState(name, path, None, None, error.message)
    kept = [status for status in ledger.statuses().values() if status is not Status.REVERTED]
    return NamedState(name, path, len(kept), len(ledger.failed()))


def switch(model: Path, name: str) -> SwitchReport:
    """Let commands use the state with this name from now on.

    Raises:
        UsageError: there is none.
        StateError: the folder is not writable, or there are no states, and no checkpoint either.
    """
    if name != MAIN:
        advice = f"; --create makes `{name}` as a copy of the one in use" if is_name(name) else ""
        known_state(model, name, advice)
    elif not states_beside(model):  # back to `main` leads where it has no state yet, but only beside a checkpoint
        require_checkpoint(model)
    _write_current(model, name)
    return listed(model)


def create(source: Target, name: str) -> SwitchReport:
    """Make a state with this name as a copy of another, and let commands use it from now on.

    State and ledger are copied, images and snapshots are shared. A call that is cut off leaves no state, a whole one,
    or a folder without its state; the same call again goes on.

    Raises:
        UsageError: not a name, or there is a state with this name.
        StateError: there is nothing to copy, it is damaged, in use or of another base, the folder is not writable, or
            the new state is a link that leads nowhere.
    """
    model = source.model
    new = Target(model, _free_path(model, name))
    new.require_place()
    if new.sidecar.exists() and (current_name(model) == name or not _alike(new, source)):
        raise UsageError(f"`{model}` has a state `{name}` already", f"more switch {quoted(model)} {name}")
    state = open_state(source.sidecar)
    replay_start(state, Ledger(source.folder), source.sidecar)  # raises unless they fit together
    open_base(source, state)  # raises for a state of another base
    with writer_lock(source.lock):
        if not new.sidecar.exists():
            _copy(source, new)
        _write_current(model, name)
    return listed(model, created=True)


def _free_path(model: Path, name: str) -> Path:
    if not is_name(name):
        hint = "a name has letters, digits, `_`, `-` and `.`, begins with a letter or digit, and does not end in .more"
        raise UsageError(f"`{shorten(name)}` cannot name a state", hint)
    return own_path(model, name)


def _alike(new: Target, source: Target) -> bool:
    """Return whether a state and its ledger are those of another, to the byte: an earlier call was cut off."""
    return new.sidecar.read_bytes() == source.sidecar.read_bytes() and _bytes(new.folder / new.ledger_name) == _bytes(
        source.folder / source.ledger_name
    )


def _bytes(path: Path) -> bytes:
    with disk_errors(path), suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


def _copy(source: Target, new: Target) -> None:
    """Copy a state's folder and then its file: it is there only if the folder is complete."""
    left = new.folder.exists()
    if left and not _holds_no_more(new, source):
        hint = f"take another name, or move `{new.folder}` away"
        raise StateError(f"`{new.folder}` holds the ledger of another state", hint)
    with replacing_directory(new.folder, force=left) as folder, disk_errors(new.folder):
        for path in _files(source.folder):
            copy = folder / path.relative_to(source.folder)
            copy.parent.mkdir(exist_ok=True)
            _put(path, copy)
    with replacing(new.sidecar) as scratch, disk_errors(new.sidecar):
        shutil.copyfile(source.sidecar, scratch)


def _holds_no_more(new: Target, source: Target) -> bool:
    """Return whether a folder without its state holds nothing that another does not, as a cut-off call leaves it."""
    if not _bytes(source.folder / source.ledger_name).startswith(_bytes(new.folder / new.ledger_name)):
        return False
    sets = new.folder.glob("anchors*.jsonl")
    return all(_bytes(path) == _bytes(source.folder / path.name) for path in sets)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a state's folder that a copy needs: no locks, and nothing unfinished."""
    left_out = {*drafts(folder), folder / "lock", folder / "lock.pid"}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path not in left_out and not path.name.startswith("."):
            yield path
    for name in LINKED:
        if (folder / name).is_dir():
            yield from (path for path in sorted((folder / name).iterdir()) if path.is_file() and path.name[0] != ".")


def _put(path: Path, copy: Path) -> None:
    """Copy a file, or share it where it never changes; where no link can be made, only images are copied."""
    kind = copy.parent.name
    if kind in LINKED:
        with suppress(OSError):
            os.link(path, copy)
            return
        if kind != "images":  # the others can be made again
            return
    shutil.copyfile(path, copy)


def _write_current(model: Path, name: str) -> None:
    path = current_file(model)
    with replacing(path) as scratch:
        scratch.write_text(f"{name}\n", encoding="utf-8")
