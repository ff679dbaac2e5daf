"""Saved states of one ledger: the sidecar and its earlier snapshots, and the choice of the one to replay from.

A snapshot is named by the line number of the last edit that it holds: the history before a line never changes, so the
number identifies all of it. Those that `edit` takes by itself lie at growing distances back from the newest edit.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from more_cli.errors import StateError
from more_cli.files import disk_errors, replacing, sha256_json
from more_cli.store.ledger import Ledger
from more_cli.store.state import State, StateMeta, load_meta, load_state, save_state, unedited
from more_cli.store.target import Target
from more_cli.text import counted

MOST_BYTES = 2 << 30
"""Size of all snapshots that are taken by themselves, unless `LEAST` of them are larger."""
LEAST = 4
"""Snapshots that are kept of a state of any size."""


def replay_start(state: State, ledger: Ledger, sidecar: Path) -> State:
    """Return the state from which the rest of the history is replayed.

    That is `state`, unless a revert removed some of its edits: then the nearest saved state.

    Raises:
        StateError: the sidecar belongs to another ledger, or its ledger is missing.
    """
    require_ledger(state.meta, ledger, sidecar)
    if ledger.agrees(state.meta.edits, state.meta.digest):
        return state
    if ledger.agreed_before_revert(state.meta.edits, state.meta.digest):
        return nearest_state(state, ledger, len(ledger.history))
    raise StateError(
        f"`{sidecar}` and its ledger `{ledger.path}` disagree about the first {counted(state.meta.edits, 'edit')}",
        f"restore `{ledger.path}` from a backup; the two belong together",
    )


def require_ledger(meta: StateMeta, ledger: Ledger, sidecar: Path) -> None:
    """Check that a state with edits has a ledger.

    Raises:
        StateError: it is missing.
    """
    if meta.edits and not ledger.path.exists():
        raise StateError(
            f"`{sidecar}` holds {counted(meta.edits, 'edit')}, and their ledger `{ledger.path}` is missing",
            f"copy the folder `{ledger.folder.name}` beside it too: a state and this folder belong together",
        )


def nearest_state(state: State, ledger: Ledger, place: int) -> State:
    """Return the saved state with the most of the history up to `place`; without one, the state before the first edit.

    Candidates are `state`, the snapshots and the draft of the last revert. A file that is damaged or belongs to another
    run is skipped.
    """
    for _, path in _nearer(state.meta, ledger, place):
        try:
            return load_state(path)
        except StateError:  # its metadata was right, its tensors are not
            continue
    return state if _holds_up_to(state.meta, ledger, place) else unedited(state.meta)


def nearest_place(meta: StateMeta, ledger: Ledger, place: int) -> int:
    """Return how much of the history `nearest_state` returns; no tensor is read."""
    own = meta.edits if _holds_up_to(meta, ledger, place) else 0
    return next((edits for edits, _ in _nearer(meta, ledger, place)), own)


def snapshots_folder(folder: Path) -> Path:
    """Return the folder of snapshots inside a state's folder."""
    return folder / "snapshots"


def keep_snapshot(sidecar: Path, ledger: Ledger, edits: int) -> Path:
    """Keep a copy of a sidecar that holds the first `edits` entries of the history, at least one.

    Raises:
        StateError: not writable.
        ResourceError: no space.
    """
    path = snapshots_folder(ledger.folder) / f"{ledger.history.numbers()[edits - 1]:06}.more"
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            shutil.copyfile(sidecar, scratch)
    return path


def take_snapshot(target: Target, ledger: Ledger, state: State) -> None:
    """Write a state that holds the first entries of the history, at least one, and drop snapshots that are too many.

    Raises:
        StateError: not writable.
        ResourceError: no space.
    """
    path = target.snapshot(f"{ledger.history.numbers()[state.meta.edits - 1]:06}")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    save_state(path, state, durable=False)  # a damaged one is skipped
    thin_out(target, ledger)


def thin_out(target: Target, ledger: Ledger) -> None:
    """Remove the snapshots taken by themselves that are of no use: of reverted lines, or too close to others."""
    places = {number: place for place, number in enumerate(ledger.history.numbers(), 1)}
    taken = taken_snapshots(target)
    newest_first = sorted((number for number in taken if number in places), reverse=True)
    most = max(LEAST, MOST_BYTES // max((path.stat().st_size for path in taken.values()), default=1))
    distances = [ledger.effort(places[number]) for number in newest_first]
    kept = {newest_first[index] for index in spread(distances, ledger.effort(0), most)}
    for number in taken.keys() - kept:
        with disk_errors(taken[number]):
            taken[number].unlink(missing_ok=True)


def spread(distances: Sequence[int], whole: int, most: int) -> list[int]:
    """Return the indices of the snapshots to keep, by their distances from the newest edit, which grow.

    To undo the last d edits, a snapshot between d and 2 d + 2 edits back is wanted: the way from it to the first of
    these edits is then about as long as they are. Without which this stays true is dropped and, while there are more
    than `most`, the one that is missed least. `whole` is the distance of the empty state, which every state has.
    """
    kept = list(range(len(distances)))
    while len(kept) > 1:
        far = [*(distances[index] for index in kept), whole]
        gaps = [(far[at + 1] / (far[at - 1] + 1), at) for at in range(1, len(kept))]
        ratio, at = min(gaps)
        if ratio > 2 and len(kept) <= most:
            break
        del kept[at]
    return kept


def taken_snapshots(target: Target) -> dict[int, Path]:
    """Return the snapshots that were taken by themselves, by line number."""
    pattern = target.snapshot("*")
    named = ((re.search(r"(\d{6,18})\.auto\.more$", path.name), path) for path in pattern.parent.glob(pattern.name))
    return {int(found[1]): path for found, path in named if found}


def draft_path(folder: Path, head: str, ids: Sequence[str]) -> Path:
    """Return the path of a revert's draft, named by the ledger's head before the revert and the edits it undoes."""
    return folder / f"revert-{sha256_json([head, *ids])[:16]}.more"


def _holds_up_to(meta: StateMeta, ledger: Ledger, place: int) -> bool:
    return meta.edits <= place and ledger.agrees(meta.edits, meta.digest)


def _nearer(meta: StateMeta, ledger: Ledger, place: int) -> Iterator[tuple[int, Path]]:
    """Yield saved states of the run that hold more of the history up to `place` than its own state, the most first."""
    own = meta.edits if _holds_up_to(meta, ledger, place) else 0
    for edits, path in sorted(_candidates(ledger), reverse=True):
        if own < edits <= place and _matches(path, meta, ledger, edits):
            yield edits, path


def _candidates(ledger: Ledger) -> Iterator[tuple[int, Path]]:
    """Yield files that may hold the first entries of the history, each with their number."""
    places = {number: place for place, number in enumerate(ledger.history.numbers(), 1)}
    for path in snapshots_folder(ledger.folder).glob("*.more"):
        name = re.fullmatch(r"(\d{6,18})(\.auto)?\.more", path.name)
        if name and int(name[1]) in places:
            yield places[int(name[1])], path
    if revert := ledger.last_revert:  # its draft is still there if a crash came between its lines and the sidecar
        yield revert.since - 1 + revert.redone, draft_path(ledger.folder, revert.prev, revert.ids)


def _matches(path: Path, meta: StateMeta, ledger: Ledger, edits: int) -> bool:
    """Return whether the metadata of a file say that it is a state of this run with the first `edits` entries."""
    try:
        saved = load_meta(path)
    except StateError:
        return False
    run = attrgetter("base", "recipe", "template", "anchors")
    return run(saved) == run(meta) and saved.edits == edits and ledger.agrees(edits, saved.digest)
