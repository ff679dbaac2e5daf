"""`more combine`: make one state of the edits of several, as if one person had made them all in one stream.

The lines that all states have in common, and those after them that one state applied in the same order, are taken over
as they are. The others are applied again in order of time, in a draft inside the new state's folder. The new state's
file is the last that appears: until then the same command goes on with the draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from more_cli.errors import StreamErrors, UsageError
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import identities
from more_cli.ops.assembly import AssemblyReport, Plan, Step, assemble, steps_of
from more_cli.ops.base import open_base
from more_cli.ops.drafts import Work
from more_cli.ops.session import Try
from more_cli.ops.shared import Holding, SourceState, Union, open_sources, require_same_setup, union
from more_cli.options import CombineOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger
from more_cli.store.state import State
from more_cli.store.target import Target


def combine(
    paths: Sequence[Path],
    target: Target,
    options: CombineOptions,
    machine: Machine,
    progress: Progress = no_progress,
    *,
    runtime: Runtime | None = None,
    starting: Callable[[Work], None] | None = None,
) -> AssemblyReport:
    """Combine states of the base `target.model` into the new state `target.sidecar`.

    `runtime` is the model if it is loaded already. `starting` is called before the first edit is applied.

    Raises:
        StreamErrors: edits contradict each other, or two have the same id; all of them are named.
        StateError: bases, recipes or seeds differ, or a state or an image is missing or damaged.
        UsageError: the new state exists and is another, or a state is named twice.
    """
    started = time.monotonic()
    sources = open_sources(paths)
    require_same_setup(sources)
    for source in sources:
        open_base(Target(target.model, source.path), State(source.meta))
    target.require_place()
    report = AssemblyReport(target, planned(sources, options), dry_run=options.dry_run)
    assemble(report, partial(_is_there, target, report.plan), machine, progress, runtime, starting)
    report.wall_seconds = time.monotonic() - started
    return report


def planned(sources: Sequence[SourceState], options: CombineOptions) -> Plan:
    """Return what the combination of these states consists of.

    Raises:
        StreamErrors: edits contradict each other and `options.theirs` is not set, or two have the same id.
    """
    found = union(sources)
    if found.clashes:
        hint = "take one of them back with `more revert MODEL ID --state FILE` and give it again under another id"
        raise StreamErrors([f"`{one.id}` is the id of two edits: {one}, {other}" for one, other in found.clashes], hint)
    if found.contradictions and not options.theirs:
        hint = "--theirs lets the later one of each count, or take one back: more revert MODEL ID --state FILE"
        raise StreamErrors([str(each) for each in found.contradictions], hint)
    return _with_most_kept(sources, found, steps_of(found, sources))


def _with_most_kept(sources: Sequence[SourceState], found: Union, steps: Sequence[Step]) -> Plan:
    """Return the plan that takes over as many lines as it can.

    These are the lines that all states have, as they are, and after them those of one state that are the next steps.
    """
    same_start = [source for source in sources if source.meta.anchors == sources[0].meta.anchors]
    shared = _common_past(sources) if len(same_start) == len(sources) else 0
    first = sources[0].ledger
    past = {line.id: line.seq for line in first.history[:shared]}
    rest = [step for step in steps if not _is_past(step, past, first)]
    best, kept, done = sources[0], shared, 0
    for source in same_start:
        more, steps_done = _taken_over(source, shared, rest)
        if steps_done > done:
            best, kept, done = source, shared + more, steps_done
    return Plan(sources, found, shared, best, kept, rest[done:])


def _is_past(step: Step, past: dict[str, int], first: Ledger) -> bool:
    """Return whether a step is one of the lines that all states have, and not a later try of an edit among them."""
    if step.edit is None:
        return step.source.number == 0 and step.moment[2] in past.values()
    seq = past.get(step.edit.id)
    return seq is not None and _content(first.entries[seq - 1]) == _content(step.edit.entry)


def _common_past(sources: Sequence[SourceState]) -> int:
    """Return how many first lines all histories have; a batch that is not written in them is not counted."""
    lines, open_batch = 0, 0
    for entries in zip(*(source.ledger.history for source in sources), strict=False):
        if any(_content(one) != _content(other) for one, other in pairwise(entries)):
            break
        lines += 1
        entry = entries[0]
        if entry.kind == "edit" and entry.joint:
            open_batch = open_batch or lines
        elif entry.kind == "consolidate" and entry.since <= open_batch:
            open_batch = 0
    return open_batch - 1 if open_batch else lines


def _content(entry: Entry) -> dict[str, Any]:
    """Return a line without its place in a ledger."""
    return entry.model_dump(exclude={"seq", "prev", "check", "note"})


def _taken_over(source: SourceState, shared: int, steps: Sequence[Step]) -> tuple[int, int]:
    """Return how many lines after the shared ones are the next steps, as a new stream would make them, and the steps.

    A compaction is such a line too: it comes by itself.
    """
    done = lines = 0
    for number, line in enumerate(source.ledger.history[shared:], 1):
        if line.kind == "compact":
            lines = number if done else lines
            continue
        if done == len(steps) or not _is_step(line, steps[done], source):
            break
        done, lines = done + 1, number
    return lines, done


def _is_step(line: Entry, step: Step, source: SourceState) -> bool:
    if step.edit is None:
        return line.kind == "anchors" and step.source is source and step.moment[2] == line.seq
    last = step.edit.entry
    plain = line.kind == "edit" and Try.of(line) == Try() and not (last.settings or last.retry)
    return plain and (line.id, line.content) == (step.edit.id, step.edit.content)


def _is_there(target: Target, plan: Plan) -> bool:
    """Return whether the new state exists already, with exactly these edits, and with the same of two rivals later."""
    if any(target.sidecar.resolve() == source.path.resolve() for source in plan.sources):
        raise UsageError(f"`{target.sidecar}` is one of the states that are combined", "name a new file with -o")
    if not target.sidecar.exists():
        return False
    there = SourceState(target.sidecar, 0)
    held, wanted = _by_subject(union([there]).edits), _by_subject(plan.union.edits)
    if held != wanted:
        what = "these edits in another order" if sorted(held) == sorted(wanted) else "other edits"
        raise UsageError(f"`{target.sidecar}` already exists, with {what}", "name a new file with -o")
    made, asked = (there.meta.base, there.meta.recipe), (plan.start.meta.base, plan.start.meta.recipe)
    if made != asked or _added(there) != _added(*plan.sources):
        what = f"`{target.sidecar}` already exists, with another base, recipe or set of anchors"
        raise UsageError(what, "name a new file with -o")
    return True


def _by_subject(edits: Sequence[Holding]) -> list[tuple[str, str]]:
    """Return ids and contents by what the edits are about, those about the same in order of time: the last counts."""
    return [(edit.id, edit.content) for edit in sorted(edits, key=lambda edit: edit.subject)]


def _added(*sources: SourceState) -> frozenset[tuple[str, str]]:
    """Return what the anchors of states ask, of those that no edit brought."""
    return identities(anchor for source in sources for _, anchors in source.added_anchors() for anchor in anchors)
