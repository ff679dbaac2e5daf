"""Apply an edit, write edits together or add anchors, and append the ledger line about it, with what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from more_cli.clock import timed
from more_cli.editors.base import EditOutcome, EditRequest
from more_cli.editors.more.editor import Consolidated
from more_cli.errors import DataError
from more_cli.evaluation.probes import SPARE_TOKENS
from more_cli.inputs.edits import Edit, Probe
from more_cli.model.versions import versions
from more_cli.ops.anchors import keep_anchors, line_of
from more_cli.ops.session import Session, Try
from more_cli.ops.signals import Interrupted, Stop
from more_cli.store.entry import Entry
from more_cli.store.status import Status


def commit_edit(session: Session, edit: Edit, kept: Mapping[str, Any], attempt: Try) -> Entry:
    """Apply one edit and append its ledger line: what is `kept` of the edit, and what was measured.

    An edit that cannot be turned into a prompt is refused with the reason.
    """
    started = time.monotonic()
    session.anchors.release(session.editor, edit)
    made = [] if attempt.retry else session.anchors.bring(session.editor, session.runtime, edit)
    try:
        measured = _measured(session, edit, attempt)
    except DataError as error:
        hint = f"; {error.hint}" if error.hint else ""
        measured = {"status": Status.REFUSED, "reason": f"{error.message}{hint}"}
    return _append(session, started, {**kept, **measured, **attempt.fields(), "made": list(map(line_of, made))})


def commit_consolidation(session: Session, since: int, *, anew: bool = False) -> Entry:
    """Consolidate the edits from place `since` on, or write them `anew`, and append a ledger line about it."""
    session.progress(0, None, "writing all edits anew" if anew else "consolidating")
    started = time.monotonic()
    done = session.consolidate(since, anew=anew)
    how = {"since": since, "anew": anew}
    return _append(session, started, {"kind": "consolidate", **_together(session, "consolidation", done), **how})


def compact_if_due(
    session: Session, stop: Stop, announce: Callable[[int, float], None] = lambda edits, seconds: None
) -> Entry | None:
    """Write all standing edits together if there are enough of them; return the ledger line about it, if it was due.

    `announce` is called before it begins, with the number of edits and the seconds that they took one by one.

    Raises:
        Interrupted: a signal ended it. The session is in the middle of its writes and must not be saved: the next call
            goes on from the last saved state.
    """
    if stop.asked or not session.compaction_due:
        return None
    session.save()
    announce(session.standing.memory.standing, sum(line.wall_ms or 0.0 for line in session.ledger.history) / 1000)
    started = time.monotonic()
    done = stop.waiting(session.compact)
    if done is None:
        raise Interrupted
    return _append(session, started, {"kind": "compact", **_together(session, "compaction", done)})


def _together(session: Session, name: str, done: Consolidated) -> dict[str, Any]:
    """Return the fields of a line about edits that were written together."""
    return {
        "id": f"{name}-{len(session.ledger.history) + 1}",
        "status": Status.NOT_LEARNT if done.failing else Status.LEARNT,
        "reason": f"undone: {done.undone}" if done.undone else "",
        "writes": done.writes,
        "cost": done.cost,
        "looks": list(done.margins.items()),
        "drifts": list(done.drifts.items()),
    }


def commit_anchors(session: Session, new: Sequence[Probe], at: str | None = None) -> Entry:
    """Hold further anchors from now on: write the file of all of them, and append a line that says so.

    `at` is the time of the line that this one repeats, if it does.
    """
    started, anchors = time.monotonic(), [*session.anchors.questions, *new]
    digest = keep_anchors(session.target.folder, anchors)
    line = {
        "kind": "anchors",
        "id": f"anchors-{len(session.ledger.history) + 1}",
        "status": Status.LEARNT,
        "content": digest,
        "anchors": len(anchors),
    }
    if at is not None:
        line["time"] = at
    session.take_anchors(digest)
    return _append(session, started, line)


def _append(session: Session, started: float, line: Mapping[str, Any]) -> Entry:
    wall_ms = round(1000 * (time.monotonic() - started), 1)
    entry = session.ledger.append({**line, "wall_ms": wall_ms, "versions": versions(session.machine)})
    session.count(entry)
    return entry


def _measured(session: Session, edit: Edit, attempt: Try) -> dict[str, Any]:
    """Apply an edit and return what was measured; the greedy answers are not repeated by a replay."""
    before = greedy_answer(session, edit)
    base = _base_answer(session, edit, before)
    learn = session.editor.admit if attempt.joint else session.editor.edit
    outcome = learn(EditRequest.of(edit), session.context(edit, attempt))
    measured = {
        "status": Status(outcome.status),
        "reason": outcome.reason,
        "nll_before": outcome.before.nll,
        "forced_before": outcome.before.text,
        "greedy_base": base,
        "greedy_before": before,
        "writes": outcome.writes,
        "sites": list(outcome.sites),
        "cost": outcome.cost,
        "looks": list(outcome.margins.items()),
        "drifts": list(outcome.drifts.items()),
    }
    if attempt.joint:  # it is written later
        return measured
    after = {"nll_after": outcome.after.nll, "forced_after": outcome.after.text, "right_after": outcome.after.right}
    return {**measured, **after, "greedy_after": _greedy_after(session, edit, outcome, before)}


def _base_answer(session: Session, edit: Edit, before: str) -> str:
    if session.state.meta.edits == 0:  # the model is still the base
        return before
    with session.runtime.base():
        return greedy_answer(session, edit)


def _greedy_after(session: Session, edit: Edit, outcome: EditOutcome, before: str) -> str:
    if outcome.status == "refused":  # the model is as it was
        return before
    if outcome.after.right and session.runtime.picks_most_likely:
        return outcome.after.text  # each token of the target is the most likely one
    return greedy_answer(session, edit)


@timed("answer")
def greedy_answer(session: Session, edit: Edit) -> str:
    """Return what the model as it is now says, as text that ends in `...` where it was cut off.

    Raises:
        DataError: the edit cannot be turned into a prompt.
    """
    runtime, prompter = session.runtime, session.runtime.prompter
    target = prompter.tokenizer(edit.target, add_special_tokens=False)["input_ids"]
    (tokens,) = runtime.generate([EditRequest.of(edit).query], len(target) + SPARE_TOKENS)
    return prompter.spoken(tokens)
