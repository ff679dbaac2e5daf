"""Apply every edit of a state again, from an empty state in memory, and compare the two."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from more_cli.errors import StateError
from more_cli.model.machine import Machine
from more_cli.ops.session import Session, take_over, versions
from more_cli.progress import Progress
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger
from more_cli.store.state import RESTORE, State, state_bytes, unedited
from more_cli.store.target import Target

TOLERANCE = 0.1
"""Largest difference of a tensor, as a part of its norm, where versions, threads or a GPU round differently."""


def retrace(target: Target, state: State, ledger: Ledger, machine: Machine, progress: Progress) -> tuple[str, None]:
    """Apply the edits of a state again and report how close the result is.

    Raises:
        StateError: the result is another state, or an edit cannot be applied again.
    """
    if not ledger.agrees(state.meta.edits, state.meta.digest):
        return "not done: the state is from before a revert; run a command that edits first", None
    again = _applied_again(target, state, machine, progress)
    what = f"{state.meta.edits:,} lines applied again from an empty state give"
    if state_bytes(again) == state_bytes(state):
        return f"{what} the same bytes", None
    changed = _differences(ledger.history[: state.meta.edits], versions(machine))
    gap, tensor = max(_gaps(again, state), default=(0.0, "the header"))
    off = f"{tensor} is off by {gap:.2g} of its norm"
    if machine.place == "cpu" and not changed:
        raise StateError(f"{what} another state on the same machine: {off}", RESTORE)
    where = f"on another machine ({', '.join(changed)})" if changed else "on a GPU"
    if gap > TOLERANCE or not _same_edits(again, state):
        hint = "compare on a machine with the versions and the number of threads that the ledger records"
        raise StateError(f"{what} another state {where}: {off}", hint)
    return f"{what} the same numbers within {TOLERANCE:.0%}, not the same bytes, {where}: {off}", None


def _applied_again(target: Target, state: State, machine: Machine, progress: Progress) -> State:
    session = Session(target, unedited(state.meta), machine, progress)
    with TemporaryDirectory() as folder:
        session.cache = Path(folder)
        with session.attached(replay=False):
            session.replay(until=state.meta.edits)
    take_over(session.state, session.editor)
    return session.state


def _differences(entries: Iterable[Entry], now: dict[str, str]) -> list[str]:
    """Return the versions in which this machine differs from those that made the edits."""
    seen: dict[str, set[str]] = {}
    for entry in entries:
        for name in now:
            if (value := entry.versions.get(name, "unknown")) != now[name]:  # older versions recorded less
                seen.setdefault(name, set()).add(value)
    return [f"{name} {' and '.join(sorted(values))} -> {now[name]}" for name, values in sorted(seen.items())]


def _same_edits(first: State, second: State) -> bool:
    """Return whether two states contain the same edits, with equally many keys at every site."""

    def contents(state: State) -> tuple[int, str, list[int]]:
        return state.meta.edits, state.meta.digest, [site.keys for site in state.meta.sites]

    return contents(first) == contents(second)


def _gaps(ours: State, theirs: State) -> Iterable[tuple[float, str]]:
    """Yield |ours - theirs| / |theirs| of every tensor, with its name."""
    for kind, first, second in (("B", ours.B, theirs.B), ("P", ours.P, theirs.P), ("A", ours.A, theirs.A)):
        for name, tensor in second.items():
            yield _gap(first[name], tensor), f"{kind} of {name}"


def _gap(ours: Tensor, theirs: Tensor) -> float:
    difference, norm = float((ours - theirs).norm()), float(theirs.norm())
    return difference / norm if norm else float("inf" if difference else 0.0)
