"""`more edit --retry`: try edits again that were refused or not learnt, as new lines of the ledger."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from more_cli.errors import UsageError
from more_cli.inputs.edits import read_edits
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.drift import known_drift
from more_cli.ops.edit import EditLoop, EditReport, Listener
from more_cli.ops.session import Try, open_session
from more_cli.ops.signals import Interrupted, stoppable
from more_cli.options import EditOptions
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import recipe_of_edit
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.status import FAILED, Status
from more_cli.store.target import Target
from more_cli.text import did_you_mean, verb


def retry(
    target: Target,
    words: Sequence[str],
    options: EditOptions,
    machine: Machine,
    progress: Progress = no_progress,
    listener: Listener | None = None,
    runtime: Runtime | None = None,
) -> EditReport:
    """Try edits again, by default all that do not stand; `options.settings` change the recipe for this try alone.

    A word is the id of an edit, or a file: its edits that do not stand. An edit that takes now supersedes those that
    give its question another answer. A try draws other past edits and anchors than the one before, so it can succeed
    without other settings. `runtime` is the model if it is loaded already.

    Raises:
        UsageError: an unknown id, an edit that is not failed, or a setting that belongs to the whole state.
        DataError: a file of edits has problems.
    """
    started, listener, report = time.monotonic(), listener or Listener(), EditReport(target)
    settings = options.settings
    if options.dry_run or not target.folder.exists():  # no lock file is created
        _dry_run(report, words, options)
        report.wall_seconds = time.monotonic() - started
        return report
    with writer_lock(target.lock), stoppable() as stop:
        session = open_session(target, machine, progress, runtime)
        session.compacts = options.compact
        recipe_of_edit(session.state.meta.recipe, settings)  # raises before anything is written
        ledger = session.ledger
        report.ids = _chosen(ledger, words, options, report.notes)
        report.total, start = len(report.ids), len(ledger.entries)
        if report.ids:
            loop = EditLoop(session, report, listener, stop, options.save_every, report.total)
            with ledger, suppress(Interrupted), session.attached(writing=True) as report.run.replayed:
                report.notes += session.machine_notes()
                for id in stop.before_each(report.ids):
                    failed = ledger.by_id[id]
                    loop.put(ledger.edit_of(failed), failed.description, Try(retry=True, settings=settings))
                loop.snapshots.take()
                # Not after an error, which may have struck inside a write: then the ledger is replayed.
                session.save()
        statuses = ledger.statuses()
        report.statuses = {id: statuses[id] for id in report.ids}
        report.entries = ledger.entries[start:].of_kind("edit")
        report.interrupted = stop.asked
        report.run.drift = known_drift(ledger, session.state.meta)
    report.wall_seconds = time.monotonic() - started
    return report


def _dry_run(report: EditReport, words: Sequence[str], options: EditOptions) -> None:
    """Report which edits would be tried again; write nothing."""
    session = open_session(report.target, Machine())
    recipe_of_edit(session.state.meta.recipe, options.settings)
    ledger = session.ledger
    report.ids = _chosen(ledger, words, options, report.notes)
    statuses = ledger.statuses()
    report.statuses = {id: statuses[id] for id in report.ids}
    report.total, report.entries = len(report.ids), [ledger.by_id[id] for id in report.ids]
    report.dry_run = options.dry_run


def _chosen(ledger: Ledger, words: Sequence[str], options: EditOptions, notes: list[str]) -> list[str]:
    """Return the edits to try again, in the order of the history; note how many of a file are not applied yet."""
    failed, statuses, wanted = [edit.id for edit in ledger.failed()], ledger.statuses(), set[str]()
    for word in words:
        if word not in statuses and Path(word).is_file():
            stream = read_edits(Path(word), options.image_root, strict_paths=options.strict_paths)
            ids = {edit.id for edit in stream.edits}
            wanted |= ids
            if new := len(ids - statuses.keys()):
                are, them = verb(new, "is", "are"), verb(new, "it", "them")
                hint = f"leave --retry out to apply {them}"
                notes.append(f"{new:,} of the edits of `{word}` {are} not applied yet: {hint}")
        elif word not in statuses:
            hint = did_you_mean(word, failed) or _WORDS
            raise UsageError(f"no edit `{word}` in `{ledger.path}`, and no file of that name", hint)
        elif statuses[word] not in FAILED:
            raise UsageError(f"edit `{word}` is {statuses[word]}", _NOT_FAILED.get(statuses[word], "leave it out"))
        wanted.add(word)
    return [id for id in failed if not words or id in wanted]


_WORDS = "--retry takes ids of edits (`more log` lists them), or a file of edits"
_NOT_FAILED = {
    Status.REVERTED: "`more edit MODEL EDITS --reapply` applies reverted edits again",
    Status.SUPERSEDED: "a later edit gives another answer; to go back, revert that one",
}
"""What to do about an edit that cannot be tried again, by its status."""
