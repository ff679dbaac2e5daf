"""`more edit`: write a stream of corrections into the state, each one journalled before it counts.

Commit order for one edit: its images into the store, its line into the ledger (fsync), then, every few edits, the
sidecar. Whatever a crash leaves, the next command replays the ledger's lines that the sidecar does not have, so an
interrupted run and a rerun end with the bytes of an undisturbed one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from more_cli.editors.base import EditOutcome
from more_cli.errors import DataError, StreamErrors
from more_cli.evaluation.streams import request_of
from more_cli.inputs.edits import Edit, Problem, iter_edits, raise_all, read_edits
from more_cli.inputs.feeds import Feed
from more_cli.model.machine import Machine
from more_cli.ops.edit_report import FAILED as FAILED
from more_cli.ops.edit_report import EditOptions as EditOptions
from more_cli.ops.edit_report import EditReport as EditReport
from more_cli.ops.edit_report import Listener as Listener
from more_cli.ops.fit import Fit
from more_cli.ops.init import initialise, plan
from more_cli.ops.prefetch import Ahead
from more_cli.ops.session import Every, Session, Target, free_of_adapters, open_session, versions
from more_cli.ops.signals import Stop, stoppable
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry, Status
from more_cli.store.lock import writer_lock
from more_cli.store.snapshots import keep_snapshot

SAVE_SECONDS = 30.0


def edit_file(
    target: Target,
    stream: Path,
    options: EditOptions,
    machine: Machine,
    progress: Progress = no_progress,
    listener: Listener | None = None,
) -> EditReport:
    """Apply the edits of a file that are not in the ledger yet, in file order.

    Raises:
        StreamErrors: the file has problems; nothing is applied.
        StateError: model, state or ledger do not fit, or the lock is held.
    """
    listener = listener or Listener()
    found = read_edits(stream, options.image_root, on_error="skip", strict_paths=options.strict_paths)
    context = Fit(target, options.recipe, options.settings)
    misfits = {edit.id: problem for edit in found.edits if (problem := context.problem(edit))}
    problems = [*found.problems, *misfits.values()]
    for problem in problems:
        listener.problem(problem)
    if options.on_error == "stop":
        raise_all(problems)
    edits = [edit for edit in found.edits if edit.id not in misfits][: options.limit]
    report = EditReport(target, total=len(edits), problems=[str(problem) for problem in problems])
    return _run(target, edits, options, machine, report, progress, listener)


def edit_stream(
    target: Target,
    feed: Feed,
    options: EditOptions,
    machine: Machine,
    progress: Progress = no_progress,
    listener: Listener | None = None,
) -> EditReport:
    """Apply edits line by line as they arrive; a bad line stops the run unless it is to be skipped.

    While an edit is written the next line is read and its images decoded, but no line after it.
    """
    context = Fit(target, options.recipe, options.settings)

    def checked() -> Iterator[Edit | Problem]:
        for item in iter_edits(feed.records(), options.image_root, strict_paths=options.strict_paths):
            context.load()
            yield (context.problem(item) if isinstance(item, Edit) else None) or item

    ahead = Ahead(checked(), feed.close)
    return _run(target, ahead, options, machine, EditReport(target), progress, listener or Listener())


def _run(
    target: Target,
    source: list[Edit] | Ahead[Edit | Problem],
    options: EditOptions,
    machine: Machine,
    report: EditReport,
    progress: Progress,
    listener: Listener,
) -> EditReport:
    started = time.monotonic()
    edits = source if isinstance(source, list) else _admitted(source, options, report, listener)
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
        pending = _pending(session, edits, options, report, listener)
        # A whole file is compared with the ledger before the first write, and often there is nothing to do.
        ahead: Ahead[Any] = Ahead(list(pending)) if isinstance(source, list) else source
        with ahead, session.ledger:
            pending = ahead if isinstance(source, list) else pending
            first = next(stop.before_each(pending), None)
            unfinished = options.consolidate == "all" or (options.batch and session.unwritten)
            if first is not None or session.behind or session.outdated or unfinished:
                total = report.total if isinstance(source, list) else None
                chained = stop.before_each(_chain(first, pending))
                _apply(session, ahead, chained, total, options, report, listener, stop)
        statuses = session.ledger.statuses()
        report.statuses = {id: statuses[id] for id in report.ids if id in statuses}
        report.interrupted = stop.asked
        if session.unwritten and not stop.asked:
            report.notes.append("edits of an unfinished --batch wait to be written: run it again with --batch")
    report.wall_seconds = time.monotonic() - started
    return report


def _apply(
    session: Session,
    ahead: Ahead[Any],
    pending: Iterator[Edit],
    total: int | None,
    options: EditOptions,
    report: EditReport,
    listener: Listener,
    stop: Stop,
) -> None:
    due, start = Every(options.save_every, SAVE_SECONDS), len(session.ledger.entries)

    saved = session.state.meta.edits

    def rest() -> None:
        """Save what is not saved yet: the next edit is long in coming."""
        nonlocal saved
        if session.state.meta.edits > saved:
            session.save()
            saved = session.state.meta.edits

    with session.attached(writing=True) as replayed:
        report.replayed = replayed
        if replayed or session.outdated:
            session.save()
        report.notes += machine_notes(session)
        ahead.start(partial(_prepare, session), rest, SAVE_SECONDS)
        try:
            for edit in pending:
                session.progress(report.skipped + report.applied, total, edit.id)
                entry = _commit(session, edit, options)
                report.applied += 1
                with stop.waiting():
                    listener.edited(entry, entry.status, new=True)
                if due():
                    session.save()
                if options.snapshot_every and session.state.meta.edits % options.snapshot_every == 0:
                    session.save()
                    keep_snapshot(session.target.sidecar, session.ledger, session.state.meta.edits)
            report.entries = session.ledger.entries[start : start + report.applied]
            since = _written_together(session, options, report)
            if since is not None and not stop.asked:
                report.consolidation = commit_consolidation(session, since)
        except (DataError, BrokenPipeError):
            session.save()  # the stream went wrong, or whoever listens is gone: between two edits
            raise
        # Anything else may have struck inside a write: then the sidecar stays as it was and the ledger is replayed.
        session.save()


def _prepare(session: Session, item: Edit | Problem) -> None:
    """Make the prompt of an edit that is yet to be applied; what is wrong with it shows when it is."""
    if isinstance(item, Edit) and item.id not in session.ledger.by_id:
        request = request_of(item)
        with suppress(DataError):
            session.runtime.prepare(request.query, request.target)


def _admitted(
    items: Iterable[Edit | Problem], options: EditOptions, report: EditReport, listener: Listener
) -> Iterator[Edit]:
    """Yield the edits of a stream, as many as wanted, and note its problems.

    Raises:
        StreamErrors: there is a problem, and `on_error` is "stop".
    """
    for item in items:
        if isinstance(item, Edit):
            report.total += 1
            yield item
            if report.total == options.limit:
                return
            continue
        listener.problem(item)
        if options.on_error == "stop":
            raise StreamErrors([str(item)], f"{item.hint or 'fix the line'}; the edits before it are applied")
        report.problems.append(str(item))


def _written_together(session: Session, options: EditOptions, report: EditReport) -> int | None:
    """Return the place from which on edits are consolidated at the end of a stream; None for not at all."""
    if options.consolidate == "all":
        return 1
    starts = [session.unwritten] if options.batch and session.unwritten else []
    if options.consolidate == "run" and report.applied:
        starts.append(session.state.meta.edits - report.applied + 1)
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


def _pending(
    session: Session, edits: Iterable[Edit], options: EditOptions, report: EditReport, listener: Listener
) -> Iterator[Edit]:
    """Yield the edits that are to be applied, and note the others as skipped.

    Raises:
        DataError: an id that the ledger knows with another content.
    """
    statuses = session.ledger.statuses()
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
            listener.edited(known, statuses[edit.id], new=False)


def _rehearse(target: Target, edits: Iterable[Edit], options: EditOptions, report: EditReport) -> None:
    """Check everything that can be checked without writing."""
    report.dry_run = True
    if target.sidecar.exists():
        session = open_session(target, Machine())
        _refuse_other_recipe(session, options)
        pending = sum(1 for _ in _pending(session, edits, options, report, Listener()))
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
