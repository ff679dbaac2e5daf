"""`more edit --retry`: try edits again that were refused or not learnt, as new lines of the ledger."""

from __future__ import annotations

import time
from collections.abc import Sequence

from more_cli.errors import UsageError
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.commit import commit_edit
from more_cli.ops.drift import known_drift
from more_cli.ops.edit import EditReport, Listener
from more_cli.ops.session import SAVE_SECONDS, Every, Try, open_session
from more_cli.ops.signals import stoppable
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import recipe_of_edit
from more_cli.store.entry import FAILED, Status
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.target import Target
from more_cli.text import did_you_mean

SAVE_EVERY = 10
"""Edits between two saves of the state."""


def retry(
    target: Target,
    ids: Sequence[str],
    settings: Sequence[str],
    machine: Machine,
    progress: Progress = no_progress,
    listener: Listener | None = None,
    runtime: Runtime | None = None,
) -> EditReport:
    """Try edits again, by default all that do not stand; `settings` change the recipe for this try alone.

    An edit that takes now supersedes those that give its question another answer. A try draws other past edits and
    anchors than the one before, so it can succeed without other settings. `runtime` is the model if it is loaded
    already.

    Raises:
        UsageError: an unknown id, an edit that is not failed, or a setting that belongs to the whole state.
    """
    started, listener, report = time.monotonic(), listener or Listener(), EditReport(target)
    if not target.folder.exists():  # without a folder there is nothing to try again, so no lock file is created
        _chosen(open_session(target, machine, progress).ledger, ids)
        return report
    with writer_lock(target.lock), stoppable() as stop:
        session = open_session(target, machine, progress, runtime)
        recipe_of_edit(session.state.meta.recipe, settings)  # raises before anything is written
        ledger, due = session.ledger, Every(SAVE_EVERY, SAVE_SECONDS)
        report.ids = _chosen(ledger, ids)
        report.total, start = len(report.ids), len(ledger.entries)
        if report.ids:
            with ledger, session.attached(writing=True) as report.run.replayed:
                report.notes += session.machine_notes()
                for id in stop.before_each(iter(report.ids)):
                    session.progress(report.applied, report.total, id)
                    failed = ledger.by_id[id]
                    edit, attempt = ledger.edit_of(failed), Try(retry=True, settings=tuple(settings))
                    contradicted = session.contradicted(edit)
                    entry = commit_edit(session, edit, failed.description(), attempt)
                    supersedes = report.count(entry, contradicted)
                    with stop.waiting():
                        listener.edited(entry, entry.status, new=True, supersedes=supersedes)
                    if due():
                        session.save()
                # Not after an error, which may have struck inside a write: then the ledger is replayed.
                session.save()
        statuses = ledger.statuses()
        report.statuses = {id: statuses[id] for id in report.ids}
        report.entries = ledger.entries[start:]
        report.run.interrupted = stop.asked
        report.run.drift = known_drift(ledger, session.state.meta)
    report.run.wall_seconds = time.monotonic() - started
    return report


def _chosen(ledger: Ledger, ids: Sequence[str]) -> list[str]:
    """Return the edits to try again, in the order of the history.

    Raises:
        UsageError: an id is unknown, or its edit did not fail.
    """
    failed, statuses = [edit.id for edit in ledger.failed()], ledger.statuses()
    for id in ids:
        if id not in statuses:
            hint = did_you_mean(id, failed) or "`more log` lists the ids"
            raise UsageError(f"no edit `{id}` in `{ledger.path}`", hint)
        if statuses[id] not in FAILED:
            raise UsageError(f"edit `{id}` is {statuses[id]}", _NOT_FAILED.get(statuses[id], "leave it out"))
    return [id for id in failed if not ids or id in ids]


_NOT_FAILED = {
    Status.REVERTED: "`more edit MODEL EDITS --reapply` applies reverted edits again",
    Status.SUPERSEDED: "a later edit gives another answer; to go back, revert that one",
}
"""What to do about an edit that cannot be tried again, by its status."""
