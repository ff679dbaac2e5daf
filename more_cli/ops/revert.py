"""`more revert`: the state of a run that never had some edits, to the byte.

What the history tells before the first of them stays; what came after is done again without them in a draft, a state
of its own inside the state's folder. Once that is finished, the ledger gets one line that says so and the lines that
were made again, in one write, and the sidecar is replaced. Until then the old state stands: an interrupted revert has
changed nothing, and the same command goes on with its draft.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from more_cli.errors import DataError, StateError, UsageError
from more_cli.model.machine import Machine
from more_cli.ops.edit import SAVE_SECONDS, commit_consolidation, commit_edit, machine_notes
from more_cli.ops.edit_report import FAILED
from more_cli.ops.session import Every, Session, open_session, versions
from more_cli.ops.signals import Stop, stoppable
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry, Status
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.snapshots import draft_path, keep_snapshot, nearest
from more_cli.store.state import save_state
from more_cli.store.target import Draft, Target

SAVE_EVERY = 10
"""Lines of a draft between two saves of its state."""


@dataclass(frozen=True)
class Wish:
    """Which edits to take back: these, all after the first `to`, or the last few."""

    ids: tuple[str, ...] = ()
    to: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Plan:
    """What becomes of a history, whose entries are named by their places in it, from 1."""

    gone: list[str]
    """Edits taken back."""
    kept: int
    """Entries at the beginning that stay as they are."""
    again: list[int]
    """Entries after them that are done again."""

    def place(self, old: int) -> int:
        """Return the new place of what comes first of an old place and those after it."""
        return min(old - 1, self.kept) + bisect_left(self.again, old) + 1


@dataclass
class RevertReport:
    """What a revert did, or would do."""

    target: Target
    plan: Plan
    again: list[str] = field(default_factory=list)
    """Edits that are made again, in order."""
    entries: list[Entry] = field(default_factory=list)
    """What was measured when they were."""
    replayed: int = 0
    """Entries that stay as they are and had to be replayed, because no state at hand was near enough."""
    changed: dict[str, tuple[Status, Status]] = field(default_factory=dict)
    """Status before and after, of edits that were not taken back and fare differently now."""
    statuses: dict[str, Status] = field(default_factory=dict)
    """Of the edits made again."""
    snapshot: Path | None = None
    """Where the state before was kept."""
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    dry_run: bool = False
    wall_seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Edits that were made again and do not stand."""
        return [id for id, status in self.statuses.items() if status in FAILED]


def revert(
    target: Target, wish: Wish, machine: Machine, *, dry_run: bool = False, progress: Progress = no_progress
) -> RevertReport:
    """Take edits back, and make what came after them again.

    Raises:
        UsageError: an unknown id, one that is reverted already, or more edits than there are.
        StateError, DataError: an image that is needed is missing or has changed; nothing is written.
    """
    started = time.monotonic()
    if dry_run or not target.folder.exists():  # then there is nothing to take back, and no lock is put there
        report = _foresee(open_session(target, machine, progress), wish)
        report.dry_run = dry_run
        return report
    with writer_lock(target.lock), stoppable() as stop:
        session = open_session(target, machine, progress)
        report = _foresee(session, wish)
        if session.outdated:
            session.save()
        if report.plan.gone:
            draft = _draft(session, report.plan)
            _finish(session, draft, report, stop)
            report.interrupted = stop.asked
            if not report.interrupted:
                _commit(session, draft, report)
    report.wall_seconds = time.monotonic() - started
    return report


def _foresee(session: Session, wish: Wish) -> RevertReport:
    """Return what will be done, once it is sure that it can be."""
    ledger = session.ledger
    gone = _gone(ledger, wish)
    remaining = _remaining(ledger.history.kinds(), set(gone))
    kept = next((index for index, old in enumerate(remaining) if old != index + 1), len(remaining))
    plan = Plan(gone, kept, remaining[kept:])
    start = nearest(session.state, ledger, kept).meta.edits
    lines = list(ledger.history.kinds())
    again = [lines[old - 1][1] for old in plan.again if lines[old - 1][0] == "edit"]
    if plan.again or start < kept:
        _check_images(ledger, remaining)
    return RevertReport(session.target, plan, again, replayed=kept - start)


def _gone(ledger: Ledger, wish: Wish) -> list[str]:
    """Return the edits to take back, in the order of the history."""
    edits = [id for kind, id in ledger.history.kinds() if kind == "edit"]
    if wish.to is not None or wish.last is not None:
        first = wish.to if wish.to is not None else len(edits) - (wish.last or 0)
        if not 0 <= first <= len(edits):
            given = f"--to {wish.to}" if wish.to is not None else f"--last {wish.last}"
            raise UsageError(f"{given}: there are {len(edits)} edits", "name a smaller number")
        return edits[first:]
    for id in wish.ids:
        if id not in ledger.by_id:
            raise UsageError(f"no edit `{id}` in `{ledger.path}`", "name edits by their `id` there")
        if id in ledger.reverted:
            raise UsageError(f"edit `{id}` is reverted already", "leave it out")
    named = set(wish.ids)
    return [id for id in edits if id in named]


def _remaining(lines: Iterable[tuple[str, str]], gone: set[str]) -> list[int]:
    """Return the places that a run without these edits would have filled.

    A consolidation ends a run, and falls with the last of its edits.
    """
    places: list[int] = []
    falls = stays = False
    for place, (kind, id) in enumerate(lines, 1):
        if kind == "edit":
            stays |= id not in gone
            falls |= id in gone
            if id in gone:
                continue
        elif falls and not stays:
            continue
        else:
            falls = stays = False
        places.append(place)
    return places


def _check_images(ledger: Ledger, places: Iterable[int]) -> None:
    """Read every image that may be looked at, also of edits that stay: they are rehearsed."""
    for place in places:
        entry = ledger.history[place - 1]
        for image in ledger.edit_of(entry).images:
            try:
                image.read()
            except (StateError, DataError) as error:
                text = f"edit `{entry.id}` cannot be looked at again: {error.message}"
                raise type(error)(text, "put the image back, then run the command again") from None


def _draft(session: Session, plan: Plan) -> Session:
    """Open the state without the edits, as far as an earlier try has got with it."""
    target, ledger = session.target, session.ledger
    draft = Draft(target.model, draft_path(target.folder, ledger.head, plan.gone))
    with Ledger(draft.folder, name=draft.journal) as own:
        own.append_all(entry.fields() for entry in ledger.history[len(own.entries) : plan.kept])
    if not draft.sidecar.exists():
        save_state(draft.sidecar, nearest(session.state, ledger, plan.kept))
    return open_session(draft, session.machine, session.progress)


def _finish(session: Session, draft: Session, report: RevertReport, stop: Stop) -> None:
    """Replay what stays and make again what follows it, in the draft."""
    plan, own = report.plan, draft.ledger
    total = plan.kept + len(plan.again)
    report.replayed = max(0, plan.kept - draft.state.meta.edits)
    if draft.state.meta.edits == total and not draft.unsettled:
        return
    due = Every(SAVE_EVERY, SAVE_SECONDS)
    with draft.lent():
        report.notes += machine_notes(session)
        for place in stop.before_each(iter(range(draft.state.meta.edits, total))):
            old = session.ledger.history[_old(plan, place + 1) - 1]
            draft.progress(place, total, old.id)
            if place < len(own.history):
                draft.repeat(own.history[place])
            elif old.kind == "consolidate":
                commit_consolidation(draft, plan.place(old.since))
            else:
                commit_edit(draft, own.edit_of(old), old.about(), joint=old.joint)
            if due():
                draft.save()
        # Anything but a polite stop may have struck inside a write: then the draft stays as it was saved.
        draft.save()


def _old(plan: Plan, place: int) -> int:
    """Return where the entry of a new place was."""
    return place if place <= plan.kept else plan.again[place - plan.kept - 1]


def _commit(session: Session, draft: Session, report: RevertReport) -> None:
    """Let the draft take the state's place."""
    target, ledger, plan = session.target, session.ledger, report.plan
    before, edits = ledger.statuses(), session.state.meta.edits
    made = draft.ledger.history[plan.kept :]
    line = {
        "kind": "revert",
        "id": f"revert-{len(ledger.entries) + 1}",
        "status": Status.REVERTED,
        "ids": plan.gone,
        "since": plan.kept + 1,
        "redone": len(made),
        "versions": versions(session.machine),
    }
    if edits:
        report.snapshot = keep_snapshot(target.sidecar, ledger, edits)
    entries = ledger.append_all(_rows(line, made))
    save_state(target.sidecar, draft.state)
    drop_drafts(target.folder)
    after = ledger.statuses()
    report.entries = [entry for entry in entries if entry.kind == "edit"]
    report.statuses = {id: after[id] for id in report.again}
    report.changed = {
        id: (before[id], status) for id, status in after.items() if status != before[id] and id not in plan.gone
    }


def _rows(line: dict[str, object], made: Iterable[Entry]) -> Iterator[dict[str, object]]:
    yield line
    for entry in made:
        yield entry.fields()


def drafts(folder: Path) -> list[Path]:
    """Return the files of unfinished reverts."""
    return sorted([*folder.glob("revert-*.more"), *folder.glob("revert-*.jsonl")])


def drop_drafts(folder: Path) -> None:
    """Remove the files of unfinished reverts: once the ledger has another line, none can be finished."""
    for path in drafts(folder):
        path.unlink(missing_ok=True)
