"""`more revert`: undo edits; the result equals, byte for byte, the state of a run without them.

The history before the first reverted edit stays. What came after it is applied again, without the reverted edits, in a
draft: a second state inside the state's folder. When the draft is complete, one write appends a revert line and the
lines that were applied again to the ledger, and the sidecar is replaced. Until then the old state is unchanged; after
an interruption the same command continues the draft.

A draft begins with the nearest snapshot before the first reverted edit and takes snapshots of its own, which become
those of the state.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from more_cli.errors import UsageError
from more_cli.files import disk_errors
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.versions import versions
from more_cli.ops.commit import commit_anchors, commit_consolidation, commit_edit
from more_cli.ops.drafts import Work, drop_drafts, finish, made_lines, require_images
from more_cli.ops.held import added_at
from more_cli.ops.outcome import Outcome
from more_cli.ops.session import Session, Try, open_session
from more_cli.ops.signals import Stop, stoppable
from more_cli.options import RevertOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry
from more_cli.store.ledger import Entries, Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.snapshots import draft_path, keep_snapshot, nearest_place, nearest_state, taken_snapshots, thin_out
from more_cli.store.state import StateMeta, load_meta, save_state
from more_cli.store.status import Status
from more_cli.store.target import Draft, Target
from more_cli.text import counted, verb


@dataclass(frozen=True)
class Plan:
    """What happens to the entries of a history; their places count from 1."""

    gone: list[str]
    """Edits that are reverted."""
    kept: int
    """Entries at the beginning that stay as they are."""
    again: list[int]
    """Places of the later entries that are applied again."""
    start: int
    """Entries of the new history that are there already: in a snapshot, or in the draft of an interrupted revert."""
    work: Work

    def place(self, old: int, made: Sequence[int]) -> int:
        """Return the new place of the first remaining entry at an old place or after it.

        `made` are the places of those that were applied again so far.
        """
        return old if old <= self.kept else made[bisect_left(self.again, old)]


@dataclass
class RevertReport(Outcome):
    """What a revert did, or would do."""

    target: Target
    plan: Plan
    again: list[str] = field(default_factory=list)
    """Edits that are applied again, in order."""
    entries: list[Entry] = field(default_factory=list)
    """Their new ledger entries."""
    replayed: int = 0
    """Entries before the first reverted edit that had to be replayed, because no snapshot was close enough."""
    changed: dict[str, tuple[Status, Status]] = field(default_factory=dict)
    """Status before and after of edits that were not reverted and whose status changed."""
    snapshot: Path | None = None
    """Copy of the state before the revert."""


def revert(
    target: Target,
    ids: Sequence[str],
    options: RevertOptions,
    machine: Machine,
    progress: Progress = no_progress,
    *,
    runtime: Runtime | None = None,
    starting: Callable[[Work], None] | None = None,
) -> RevertReport:
    """Revert edits, by id or as the options say, and apply those that came after them again.

    `runtime` is the model if it is loaded already. `starting` is called before the first edit is applied.

    Raises:
        UsageError: not exactly one of ids, `to` and `last`; an unknown id, or one that is reverted already; or more
            edits than there are.
        StateError, DataError: an image that is needed is missing or has changed; nothing is written.
    """
    if [bool(ids), options.to is not None, options.last is not None].count(True) != 1:
        text = "`revert` needs exactly one of: ids, --to N, --last K"
        raise UsageError(text, "type for example: more revert MODEL ID (`more log MODEL` lists the ids)")
    started = time.monotonic()
    if options.dry_run or not target.folder.exists():  # nothing to revert without a folder: no lock file is made
        report = _planned(open_session(target, machine, progress), ids, options)
        report.dry_run = options.dry_run
        report.wall_seconds = time.monotonic() - started
        return report
    with writer_lock(target.lock), stoppable() as stop:
        session = open_session(target, machine, progress)
        report = _planned(session, ids, options)
        if session.outdated:
            session.save()
        if report.plan.gone:
            if starting:
                starting(report.plan.work)
            draft = _draft(session, report.plan, runtime)
            _finish(session, draft, report, stop)
            report.interrupted = stop.asked
            if not report.interrupted:
                _commit(session, draft, report)
    report.wall_seconds = time.monotonic() - started
    return report


def _planned(session: Session, ids: Sequence[str], options: RevertOptions) -> RevertReport:
    """Return a report with the plan, after checking that it can be carried out."""
    ledger = session.ledger
    plan = _plan(ledger, session.state.meta, ids, options)
    lines = list(ledger.history.kinds())
    again = list(dict.fromkeys(lines[old - 1][1] for old in plan.again if lines[old - 1][0] == "edit"))
    replayed = max(0, plan.kept - plan.start)
    if plan.again or replayed:
        # Also of edits that stay, because they are rehearsed.
        for entry in ledger.history.at([*range(1, plan.kept + 1), *plan.again]):
            require_images(ledger.edit_of(entry).images, f"edit `{entry.id}` cannot be applied or rehearsed again")
    return RevertReport(session.target, plan, again, replayed=replayed)


def work_of_revert(target: Target, ids: Sequence[str]) -> Work:
    """Return what reverting these edits would apply again; reads the ledger and metadata of saved states only.

    Raises:
        UsageError: an unknown id, or one that is reverted already.
        StateError: there is no state, or it or the ledger is damaged.
    """
    return _plan(Ledger(target.folder), load_meta(target.sidecar), ids, RevertOptions()).work


def _plan(ledger: Ledger, meta: StateMeta, ids: Sequence[str], options: RevertOptions) -> Plan:
    gone = _gone(ledger, ids, options)
    remaining = _remaining(ledger.history, set(gone))
    kept = next((index for index, old in enumerate(remaining) if old != index + 1), len(remaining))
    draft = draft_path(ledger.folder, ledger.head, gone)
    start = load_meta(draft).edits if draft.exists() else nearest_place(meta, ledger, kept)
    lines = list(ledger.history.at(remaining[start:] if gone else ()))
    return Plan(gone, kept, remaining[kept:], start, Work.of(lines, max(0, kept - start)))


def _gone(ledger: Ledger, ids: Sequence[str], options: RevertOptions) -> list[str]:
    """Return the edits to revert, in the order of the history."""
    edits = list(dict.fromkeys(id for kind, id in ledger.history.kinds() if kind == "edit"))  # one tried again: once
    if options.to is None and options.last is None:
        return _by_id(edits, ledger, ids)
    return _by_number(edits, options)


def _by_id(edits: Sequence[str], ledger: Ledger, ids: Sequence[str]) -> list[str]:
    for id in ids:
        if id not in ledger.by_id:
            raise UsageError(f"no edit `{id}` in `{ledger.path}`", "`more log` lists the ids")
        if id in ledger.reverted:
            raise UsageError(f"edit `{id}` is reverted already", "leave it out")
    named = set(ids)
    return [id for id in edits if id in named]


def _by_number(edits: list[str], options: RevertOptions) -> list[str]:
    if options.to is not None:
        first, least, given = options.to, 0, f"--to {options.to}"
    else:
        first, least, given = len(edits) - (options.last or 0), 1, f"--last {options.last}"
    if 0 <= first <= len(edits):
        return edits[first:]
    have = f"{verb(len(edits), 'is', 'are')} {counted(len(edits), 'edit')}"
    hint = f"give a number from {least} to {len(edits)}" if edits else "there is nothing to revert"
    raise UsageError(f"{given}: there {have}", hint)


def _remaining(history: Entries, gone: set[str]) -> list[int]:
    """Return the places of the history that a run without these edits would have.

    A consolidation ends a run; it goes if all edits of that run go, or all that it looked at. Anchors stay. A
    compaction after a reverted edit goes: it comes again where there are enough edits.
    """
    places: list[int] = []
    last_gone = last_kept = 0  # places of edits
    begin = 0  # place of the consolidation that ended the last run
    for place, (kind, id) in enumerate(history.kinds(), 1):
        if kind == "edit" and id in gone:
            last_gone = place
            continue
        if kind == "edit":
            last_kept = place
        elif kind == "compact" and last_gone:
            continue
        elif kind == "consolidate":
            if last_gone > begin and (last_kept <= begin or last_kept < history[place - 1].since):
                continue
            begin = place
        places.append(place)
    return places


def _draft(session: Session, plan: Plan, runtime: Runtime | None) -> Session:
    """Open the draft: the state without the edits; an interrupted revert continues from its own draft."""
    target, ledger = session.target, session.ledger
    draft = Draft(target.model, draft_path(target.folder, ledger.head, plan.gone))
    with Ledger(draft.folder, name=draft.ledger_name) as own:
        own.append_all(entry.fields() for entry in ledger.history[len(own.entries) : plan.kept])
    if not draft.sidecar.exists():
        save_state(draft.sidecar, nearest_state(session.state, ledger, plan.kept))
    opened = open_session(draft, session.machine, session.progress, runtime)
    # Only in place of one that is taken out: `--no-compact` may have left any other to a later call.
    kinds = enumerate(ledger.history.kinds(), 1)
    opened.compacts = any(kind == "compact" and place > plan.kept for place, (kind, _) in kinds)
    return opened


def _finish(session: Session, draft: Session, report: RevertReport, stop: Stop) -> None:
    """Replay in the draft what stays, and apply again what comes after it."""
    plan = report.plan
    report.replayed = max(0, plan.kept - draft.state.meta.edits)
    if plan.work.edits:
        report.notes += session.machine_notes()
    draft.anchors.take_over(session.anchors)
    finish(draft, plan.kept, plan.again, partial(_apply_again, session, draft, plan), stop)


def _apply_again(session: Session, draft: Session, plan: Plan, place: int) -> None:
    """Apply the line at a place of the history again, at the end of the draft."""
    old = session.ledger.history[place - 1]
    made = made_lines(draft.ledger, plan.kept)
    draft.progress(plan.kept + len(made), plan.kept + len(plan.again), old.id)
    if old.kind == "consolidate":
        commit_consolidation(draft, plan.place(old.since, made), anew=old.anew)
    elif old.kind == "anchors":
        # Without the edits that are reverted, the set before can be smaller: these may have brought anchors.
        commit_anchors(draft, added_at(session.ledger, session.state.meta, place), at=old.time)
    else:
        kept = old.description() | {"time": old.time}
        commit_edit(draft, draft.ledger.edit_of(old), kept, Try.of(old))


def _commit(session: Session, draft: Session, report: RevertReport) -> None:
    """Append the revert to the ledger and replace the state with the draft."""
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
    entries = ledger.append_all([line, *(entry.fields() for entry in made)])
    save_state(target.sidecar, draft.state)
    _adopt_snapshots(target, draft, ledger)
    drop_drafts(target.folder)
    after = ledger.statuses()
    report.entries = [entry for entry in entries if entry.kind == "edit"]
    report.statuses = {id: after[id] for id in report.again}
    report.changed = {
        id: (before[id], status) for id, status in after.items() if status != before[id] and id not in plan.gone
    }


def _adopt_snapshots(target: Target, draft: Session, ledger: Ledger) -> None:
    """Make the snapshots of a draft those of the state, whose ledger has the draft's lines by now."""
    numbers = ledger.history.numbers()
    for place, path in taken_snapshots(draft.target).items():  # a draft's own ledger has no reverts
        snapshot = target.snapshot(f"{numbers[place - 1]:06}")
        with disk_errors(snapshot):
            snapshot.parent.mkdir(exist_ok=True)
            path.replace(snapshot)
    thin_out(target, ledger)
