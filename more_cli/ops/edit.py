"""`more edit`: write a stream of corrections into the state, each one journalled before it counts.

Commit order for one edit: its images into the store, its line into the ledger (fsync), then, every few edits, the
sidecar. Whatever a crash leaves, the next command replays the ledger's lines that the sidecar does not have, so an
interrupted run and a rerun end with the bytes of an undisturbed one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from more_cli.editors.base import EditOutcome
from more_cli.edits import Edit, Problem, iter_edits, read_edits
from more_cli.entry import Entry, Status
from more_cli.errors import DataError, StreamErrors
from more_cli.lock import writer_lock
from more_cli.model.machine import Machine
from more_cli.ops.fit import Fit
from more_cli.ops.init import InitReport, initialise, plan
from more_cli.ops.session import (
    Every,
    Progress,
    Session,
    Target,
    free_of_adapters,
    no_progress,
    open_session,
    versions,
)
from more_cli.ops.states import keep_snapshot
from more_cli.ops.stop import Stop, stoppable

SAVE_SECONDS = 30.0
FAILED = (Status.NOT_LEARNT, Status.REFUSED)


@dataclass(frozen=True)
class EditOptions:
    """How a stream is applied."""

    recipe: str | None = None
    settings: tuple[str, ...] = ()
    image_root: Path | None = None
    on_error: Literal["stop", "skip"] = "stop"
    limit: int | None = None
    save_every: int = 10
    dry_run: bool = False
    store_images: bool = True
    consolidate: Literal["off", "run", "all"] = "off"
    """After the stream, write once more what does not hold: of this run's edits, or of all."""
    batch: bool = False
    """Absorb every key first, then write all edits together, as a consolidation does."""
    reapply: bool = False
    """Apply edits again that were reverted."""
    snapshot_every: int | None = None
    """Keep a copy of the state after every so many edits, for a revert to start from."""


@dataclass
class EditReport:
    """What became of a stream."""

    target: Target
    total: int = 0
    """Edits in the stream, without repetitions."""
    skipped: int = 0
    """Edits that the ledger had already."""
    reverted: list[str] = field(default_factory=list)
    """Those of them that were taken back, and stay so."""
    replayed: int = 0
    """Ledger entries that were applied again because the sidecar did not have them."""
    ids: list[str] = field(default_factory=list)
    """Every edit of the stream, in order."""
    entries: list[Entry] = field(default_factory=list)
    """What this run applied, in order."""
    statuses: dict[str, Status] = field(default_factory=dict)
    """Status of every edit of the stream, also of those applied in earlier runs."""
    problems: list[str] = field(default_factory=list)
    """Lines that were left out (`--on-error skip`)."""
    notes: list[str] = field(default_factory=list)
    consolidation: Entry | None = None
    created: InitReport | None = None
    interrupted: bool = False
    dry_run: bool = False
    wall_seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Number of the stream's edits by status."""
        return dict(sorted(Counter(self.statuses.values()).items()))

    @property
    def failed(self) -> list[str]:
        """Edits of the stream that do not stand."""
        return [id for id, status in self.statuses.items() if status in FAILED]


def edit_file(
    target: Target,
    stream: Path,
    options: EditOptions,
    machine: Machine,
    progress: Progress = no_progress,
    on_entry: Callable[[Entry], None] = lambda entry: None,
) -> EditReport:
    """Apply the edits of a file that are not in the ledger yet, in file order.

    Raises:
        StreamErrors: the file has problems; nothing is applied.
        StateError: model, state or ledger do not fit, or the lock is held.
    """
    found = read_edits(stream, options.image_root, on_error=options.on_error)
    context = Fit(target, options.recipe, options.settings)
    misfits = {edit.id: problem for edit in found.edits if (problem := context.problem(edit))}
    if misfits and options.on_error == "stop":
        raise StreamErrors([str(problem) for problem in misfits.values()], next(iter(misfits.values())).hint)
    edits = [edit for edit in found.edits if edit.id not in misfits][: options.limit]
    problems = [str(problem) for problem in (*found.problems, *misfits.values())]
    report = EditReport(target, total=len(edits), problems=problems)
    return _run(target, edits, len(edits), options, machine, report, progress, on_entry)


def edit_stream(
    target: Target,
    stream: BinaryIO,
    options: EditOptions,
    machine: Machine,
    progress: Progress = no_progress,
    on_entry: Callable[[Entry], None] = lambda entry: None,
) -> EditReport:
    """Apply edits line by line as they arrive; a bad line stops the run unless it is to be skipped."""
    report = EditReport(target)
    context = Fit(target, options.recipe, options.settings)

    def arriving() -> Iterator[Edit]:
        for item in iter_edits(stream, "<stdin>", options.image_root):
            problem = item if isinstance(item, Problem) else context.problem(item)
            if problem or isinstance(item, Problem):
                if options.on_error == "stop":
                    raise StreamErrors([str(problem)], "fix the line and send it again; edits before it are applied")
                report.problems.append(str(problem))
                continue
            if options.limit is not None and report.total >= options.limit:
                return
            report.total += 1
            yield item

    return _run(target, arriving(), None, options, machine, report, progress, on_entry)


def _run(
    target: Target,
    edits: Iterable[Edit],
    total: int | None,
    options: EditOptions,
    machine: Machine,
    report: EditReport,
    progress: Progress,
    on_entry: Callable[[Entry], None],
) -> EditReport:
    started = time.monotonic()
    if options.dry_run:
        _rehearse(target, edits, options, report)
        return report
    if not target.sidecar.exists():
        report.created = initialise(target, options.recipe, options.settings, None, machine, progress)
    elif not target.folder.exists():
        open_session(target, machine)  # a sidecar that does not fit gets no folder beside it
    with writer_lock(target.lock), stoppable() as stop:
        session = open_session(target, machine, progress)
        _refuse_other_recipe(session, options)
        pending = _pending(session, edits, options, report)
        if isinstance(edits, list):
            # A whole file is compared with the ledger before the first write, and often there is nothing to do.
            pending = iter(list(pending))
        pending = stop.before_each(pending)
        first = next(pending, None)
        unfinished = options.consolidate == "all" or (options.batch and session.unwritten)
        if first is not None or session.behind or session.outdated or unfinished:
            _apply(session, stop.before_each(_chain(first, pending)), total, options, report, on_entry, stop)
        statuses = session.ledger.statuses()
        report.statuses = {id: statuses[id] for id in report.ids if id in statuses}
        report.interrupted = stop.asked
        if session.unwritten and not stop.asked:
            report.notes.append("edits of an unfinished --batch wait to be written: run it again with --batch")
    report.wall_seconds = time.monotonic() - started
    return report


def _apply(
    session: Session,
    pending: Iterator[Edit],
    total: int | None,
    options: EditOptions,
    report: EditReport,
    on_entry: Callable[[Entry], None],
    stop: Stop,
) -> None:
    due = Every(options.save_every, SAVE_SECONDS)
    with session.attached(writing=True) as replayed:
        report.replayed = replayed
        if replayed or session.outdated:
            session.save()
        report.notes += machine_notes(session)
        try:
            for edit in pending:
                session.progress(report.skipped + len(report.entries), total, edit.id)
                entry = _commit(session, edit, options)
                report.entries.append(entry)
                on_entry(entry)
                if due():
                    session.save()
                if options.snapshot_every and session.state.meta.edits % options.snapshot_every == 0:
                    session.save()
                    keep_snapshot(session.target.sidecar, session.ledger, session.state.meta.edits)
            since = _written_together(session, options, report)
            if since is not None and not stop.asked:
                report.consolidation = commit_consolidation(session, since)
        except DataError:
            session.save()  # the stream went wrong, between two edits
            raise
        # Anything else may have struck inside a write: then the sidecar stays as it was and the ledger is replayed.
        session.save()


def _written_together(session: Session, options: EditOptions, report: EditReport) -> int | None:
    """Return the place from which on edits are consolidated at the end of a stream; None for not at all."""
    if options.consolidate == "all":
        return 1
    starts = [session.unwritten] if options.batch and session.unwritten else []
    if options.consolidate == "run" and report.entries:
        starts.append(session.state.meta.edits - len(report.entries) + 1)
    return min(starts, default=None)


def _commit(session: Session, edit: Edit, options: EditOptions) -> Entry:
    """Apply one edit and make it durable: its images, then its ledger line."""
    return commit_edit(session, edit, session.ledger.keep(edit, store=options.store_images), joint=options.batch)


def commit_edit(session: Session, edit: Edit, kept: Mapping[str, Any], *, joint: bool) -> Entry:
    """Apply one edit and append its ledger line: what is `kept` of it, and what was measured."""
    started = time.monotonic()
    outcome = session.apply(edit, joint=joint)
    measured = _measured(outcome) | {"joint": joint}
    if joint:
        measured |= dict.fromkeys(("nll_after", "answer_after", "right_after"))  # it has no "after" of its own
    wall_ms = round(1000 * (time.monotonic() - started), 1)
    entry = session.ledger.append({**kept, **measured, "wall_ms": wall_ms, "versions": versions(session.machine)})
    session.count(entry)
    return entry


def commit_consolidation(session: Session, since: int) -> Entry:
    """Look at the edits from place `since` on, write those that fail, and append a ledger line about it."""
    session.progress(0, None, "consolidating")
    started = time.monotonic()
    done = session.consolidate(since)
    entry = session.ledger.append(
        {
            "kind": "consolidate",
            "id": f"consolidation-{len(session.ledger.history) + 1}",
            "status": Status.NOT_LEARNT if done.failing else Status.LEARNT,
            "since": since,
            "writes": done.writes,
            "cost": done.cost,
            "looks": list(done.looks.items()),
            "wall_ms": round(1000 * (time.monotonic() - started), 1),
            "versions": versions(session.machine),
        }
    )
    session.count(entry)
    return entry


def _measured(outcome: EditOutcome) -> dict[str, object]:
    return {
        "status": Status(outcome.status),
        "reason": outcome.reason,
        "nll_before": outcome.nll_before,
        "nll_after": outcome.nll_after,
        "answer_before": outcome.answer_before,
        "answer_after": outcome.answer_after,
        "right_after": outcome.right_after,
        "writes": outcome.writes,
        "sites": list(outcome.sites),
        "cost": outcome.cost,
        "looks": list(outcome.looks.items()),
    }


def _pending(session: Session, edits: Iterable[Edit], options: EditOptions, report: EditReport) -> Iterator[Edit]:
    """Yield the edits that are to be applied, and note the others as skipped.

    Raises:
        DataError: an id that the ledger knows with another content.
    """
    for edit in edits:
        report.ids.append(edit.id)
        known = session.ledger.by_id.get(edit.id)
        if known is None:
            yield edit
        elif known.content != edit.content:
            raise DataError(
                f"{edit.source}:{edit.line}: id `{edit.id}` is in the ledger with another content",
                "give the new correction an id of its own; it will supersede the old one",
            )
        elif options.reapply and edit.id in session.ledger.reverted:
            yield edit
        else:
            report.skipped += 1
            if edit.id in session.ledger.reverted:
                report.reverted.append(edit.id)


def _rehearse(target: Target, edits: Iterable[Edit], options: EditOptions, report: EditReport) -> None:
    """Check everything that can be checked without writing."""
    report.dry_run = True
    if target.sidecar.exists():
        session = open_session(target, Machine())
        _refuse_other_recipe(session, options)
        pending = sum(1 for _ in _pending(session, edits, options, report))
        report.notes.append(f"{pending} edits would be applied, {report.skipped} are in the ledger already")
        return
    free_of_adapters(target)
    chosen = plan(target, options.recipe, options.settings)
    count = sum(1 for _ in edits)
    report.notes.append(f"a state with {len(chosen.sites)} sites would be created and {count} edits applied")


def _refuse_other_recipe(session: Session, options: EditOptions) -> None:
    from more_cli.errors import StateError
    from more_cli.recipe import load_recipe

    if options.recipe is None and not options.settings:
        return
    wanted = load_recipe(options.recipe or session.state.meta.recipe.name, options.settings)
    if wanted.canonical() != session.state.meta.recipe.canonical():
        raise StateError(
            f"`{session.target.sidecar}` was made with another recipe than the one named",
            "a changed recipe needs a new state: --state FILE",
        )


def machine_notes(session: Session) -> list[str]:
    """Say what differs from the machine of the last edit: then the bytes of a replay may differ as well."""
    if not session.ledger.entries:
        return []
    before, now = session.ledger.entries[-1].versions, versions(session.machine)
    changed = [f"{key} {before[key]} -> {now[key]}" for key in now if before.get(key, now[key]) != now[key]]
    return [f"differs from the last edit's machine: {', '.join(changed)}"] if changed else []


def _chain(first: Edit | None, rest: Iterator[Edit]) -> Iterator[Edit]:
    if first is not None:
        yield first
    yield from rest
