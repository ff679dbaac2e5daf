"""Saved states of one ledger: the sidecar and its earlier snapshots, and the choice of the one to replay from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from more_cli.errors import StateError
from more_cli.files import disk_errors, replacing, sha256_bytes
from more_cli.store.ledger import Ledger
from more_cli.store.state import State, StateMeta, load_meta, load_state, unedited
from more_cli.text import canonical_json, counted


def replay_start(state: State, ledger: Ledger, sidecar: Path) -> State:
    """Return the state from which the rest of the history is replayed.

    That is `state`, unless a revert removed some of its edits: then the nearest saved state.

    Raises:
        StateError: the sidecar belongs to another ledger, or its ledger is missing.
    """
    if state.meta.edits and not ledger.path.exists():
        raise StateError(
            f"`{sidecar}` holds {counted(state.meta.edits, 'edit')}, and their ledger `{ledger.path}` is missing",
            f"copy the folder `{ledger.folder.name}` beside it too: a state and this folder belong together",
        )
    if ledger.agrees(state.meta.edits, state.meta.digest):
        return state
    if ledger.agreed_before_revert(state.meta.edits, state.meta.digest):
        return nearest_state(state, ledger, len(ledger.history))
    raise StateError(
        f"`{sidecar}` and its ledger `{ledger.path}` disagree about the first {counted(state.meta.edits, 'edit')}",
        f"restore `{ledger.path}` from a backup; the two belong together",
    )


def nearest_state(state: State, ledger: Ledger, place: int) -> State:
    """Return the saved state with the most of the history up to `place`; without one, the state before the first edit.

    Candidates are `state`, the snapshots and the draft of the last revert. A file that is damaged or belongs to another
    run is skipped.
    """
    if state.meta.edits <= place and ledger.agrees(state.meta.edits, state.meta.digest):
        most, best = state.meta.edits, state
    else:
        most, best = 0, unedited(state.meta)
    for edits, path in sorted(_candidates(ledger), reverse=True):
        if most < edits <= place and (saved := _load_matching(path, state.meta, ledger, edits)):
            return saved
    return best


def snapshots_folder(folder: Path) -> Path:
    """Return the folder of snapshots inside a state's folder."""
    return folder / "snapshots"


def keep_snapshot(sidecar: Path, ledger: Ledger, edits: int) -> Path:
    """Keep a copy of a sidecar that holds the first `edits` entries of the history.

    The copy is named by the line number of the last of them: the history before a line never changes, so the number
    identifies all of it.

    Raises:
        StateError: not writable.
        ResourceError: no space.
    """
    number = ledger.history[:edits].numbers()[-1] if edits else 0
    path = snapshots_folder(ledger.folder) / f"{number:06}.more"
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            shutil.copyfile(sidecar, scratch)
    return path


def draft_path(folder: Path, head: str, ids: Sequence[str]) -> Path:
    """Return the path of a revert's draft, named by the ledger's head before the revert and the edits it undoes."""
    return folder / f"revert-{sha256_bytes(canonical_json([head, *ids]).encode())[:16]}.more"


def _candidates(ledger: Ledger) -> Iterator[tuple[int, Path]]:
    """Yield files that may hold the first entries of the history, each with their number."""
    places = {number: place for place, number in enumerate(ledger.history.numbers(), 1)}
    for path in snapshots_folder(ledger.folder).glob("*.more"):
        if re.fullmatch(r"\d{6,18}", path.stem) and int(path.stem) in places:
            yield places[int(path.stem)], path
    if revert := ledger.last_revert:  # its draft is still there if a crash came between its lines and the sidecar
        yield revert.since - 1 + revert.redone, draft_path(ledger.folder, revert.prev, revert.ids)


def _load_matching(path: Path, meta: StateMeta, ledger: Ledger, edits: int) -> State | None:
    """Load a state of the run of `meta` that holds exactly the first `edits` entries; None for any other file."""
    try:
        saved = load_meta(path)
        same_run = (saved.base, saved.recipe, saved.template, saved.anchors) == (
            meta.base,
            meta.recipe,
            meta.template,
            meta.anchors,
        )
        matches = same_run and saved.edits == edits and ledger.agrees(edits, saved.digest)
        return load_state(path) if matches else None
    except StateError:
        return None
