"""The states of one ledger: the sidecar's, snapshots of earlier ones, and which of them a rebuild starts from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from more_cli.errors import StateError
from more_cli.files import canonical_json, disk_errors, replacing, sha256_bytes
from more_cli.store.ledger import Ledger
from more_cli.store.state import State, StateMeta, load_meta, load_state, unedited


def current(state: State, ledger: Ledger, sidecar: Path) -> State:
    """Return the state from which the rest of the history is replayed: the sidecar's, unless a revert overtook it.

    Raises:
        StateError: the sidecar belongs to another ledger.
    """
    if ledger.tells(state.meta.edits, state.meta.digest):
        return state
    if ledger.told(state.meta.edits, state.meta.digest):
        return nearest(state, ledger, len(ledger.history))
    raise StateError(
        f"`{sidecar}` holds {state.meta.edits} edits that `{ledger.path}` does not tell the same way",
        f"restore `{ledger.path}` from a backup; the two belong together",
    )


def nearest(state: State, ledger: Ledger, place: int) -> State:
    """Return what is at hand of the history up to `place`: as much of it as possible, at least a state without edits.

    A file that is damaged, or of another run, is passed over.
    """
    if state.meta.edits <= place and ledger.tells(state.meta.edits, state.meta.digest):
        at_hand, best = state.meta.edits, state
    else:
        at_hand, best = 0, unedited(state.meta)
    for holds, path in sorted(_candidates(ledger), reverse=True):
        if at_hand < holds <= place and (found := _fitting(path, state.meta, ledger, holds)):
            return found
    return best


def snapshot_path(ledger: Ledger, edits: int) -> Path:
    """Return where a state with so many entries of the history is kept, named by the line of the last one.

    What comes before a line in the history never changes, so the number stands for all of it.
    """
    number = ledger.history[:edits].numbers()[-1] if edits else 0
    return snapshots(ledger.folder) / f"{number:06}.more"


def snapshots(folder: Path) -> Path:
    """Return where the snapshots of a state's folder lie."""
    return folder / "snapshots"


def keep_snapshot(sidecar: Path, ledger: Ledger, edits: int) -> Path:
    """Keep a copy of a sidecar that holds so many entries of the history.

    Raises:
        StateError: not writable.
        ResourceError: no space.
    """
    path = snapshot_path(ledger, edits)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            shutil.copyfile(sidecar, scratch)
    return path


def draft_path(folder: Path, head: str, ids: Sequence[str]) -> Path:
    """Return where the draft of a revert lies: named by the ledger's head before it and the edits it takes back."""
    return folder / f"revert-{sha256_bytes(canonical_json([head, *ids]).encode())[:16]}.more"


def _candidates(ledger: Ledger) -> Iterator[tuple[int, Path]]:
    """Yield files that may hold a beginning of the history, and how many entries of it."""
    places = {number: place for place, number in enumerate(ledger.history.numbers(), 1)}
    for path in snapshots(ledger.folder).glob("*.more"):
        if re.fullmatch(r"\d{6,18}", path.stem) and int(path.stem) in places:
            yield places[int(path.stem)], path
    if revert := ledger.last_revert:  # its draft is left if it was cut short after its lines, before the sidecar
        yield revert.since - 1 + revert.redone, draft_path(ledger.folder, revert.prev, revert.ids)


def _fitting(path: Path, meta: StateMeta, ledger: Ledger, edits: int) -> State | None:
    try:
        found = load_meta(path)
        same = (found.base, found.recipe, found.template, found.anchors) == (
            meta.base,
            meta.recipe,
            meta.template,
            meta.anchors,
        )
        return load_state(path) if same and found.edits == edits and ledger.tells(edits, found.digest) else None
    except StateError:
        return None
