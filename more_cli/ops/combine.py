"""`more combine`: make one state of the edits of several, as if one person had made them all in one stream.

The lines that all states have in common, and those after them that one state applied in the same order, are taken over
as they are. The others are applied again in order of time, in a draft inside the new state's folder. The new state's
file is the last that appears: until then the same command goes on with the draft.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from more_cli.errors import DataError, StateError, StreamErrors, UsageError
from more_cli.files import move, sha256_bytes
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import identity, keep_anchors, load_anchors
from more_cli.ops.base import open_base
from more_cli.ops.commit import commit_anchors, commit_edit
from more_cli.ops.drafts import Work, drafts, finish, made_lines
from more_cli.ops.session import Session, Try, free_of_adapters, open_session, versions
from more_cli.ops.shared import Holding, Moment, Source, Union, open_sources, require_same_setup, union
from more_cli.ops.signals import Stop, stoppable
from more_cli.options import CombineOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import FAILED, Entry, Status
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.snapshots import nearest_place, nearest_state, taken_snapshots
from more_cli.store.state import State, open_state, save_state, unedited
from more_cli.store.target import Draft, Target
from more_cli.text import canonical_json

ONE_BY_ONE = "what was written together (--batch, --consolidate) is written edit by edit"


class Step(NamedTuple):
    """A line that the combination adds: an edit or, if there are any, further anchors."""

    moment: Moment
    source: Source
    edit: Holding | None
    anchors: Sequence[Probe] = ()


@dataclass(frozen=True)
class Plan:
    """What a combination consists of."""

    sources: Sequence[Source]
    union: Union
    start: Source
    """The state whose first lines are taken over."""
    kept: int
    """Number of these lines."""
    again: Sequence[Step]
    """What is applied after them, in order."""

    @property
    def work(self) -> Work:
        """How much is applied again."""
        replayed = self.kept - nearest_place(self.start.meta, self.start.ledger, self.kept)
        lines = [*self.start.ledger.history[self.kept - replayed : self.kept], *self.lines]
        edits = sum(line.kind == "edit" for line in lines)
        return Work(edits, 0, sum(line.wall_ms or 0.0 for line in lines) / 1000)

    @property
    def lines(self) -> Iterator[Entry]:
        """The ledger lines of the edits that are applied again."""
        return (step.edit.entry for step in self.again if step.edit)

    @property
    def name(self) -> str:
        """What the draft is named by: all that decides its content."""
        heads = [source.ledger.head for source in self.sources]
        steps = [(step.source.number, step.edit.seq if step.edit else 0, len(step.anchors)) for step in self.again]
        return sha256_bytes(canonical_json([heads, self.start.number, self.kept, steps]).encode())[:16]


@dataclass
class CombineReport:
    """What a combination did, or would do."""

    target: Target
    plan: Plan
    statuses: dict[str, Status] = field(default_factory=dict)
    """Status of every edit of the new state."""
    notes: list[str] = field(default_factory=list)
    existed: bool = False
    """Whether the new state was there already, with these edits."""
    interrupted: bool = False
    dry_run: bool = False
    wall_seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Edits of the new state that do not stand."""
        return [id for id, status in self.statuses.items() if status in FAILED]

    @property
    def changed(self) -> dict[str, tuple[Status, Status]]:
        """Status before, in the state that an edit was taken from, and now, where they differ."""
        before = {edit.id: edit.status for edit in self.plan.union.edits}
        return {id: (before[id], now) for id, now in self.statuses.items() if before.get(id, now) is not now}


def combine(
    paths: Sequence[Path],
    target: Target,
    options: CombineOptions,
    machine: Machine,
    progress: Progress = no_progress,
    *,
    runtime: Runtime | None = None,
    starting: Callable[[Work], None] | None = None,
) -> CombineReport:
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
    free_of_adapters(target)
    report = CombineReport(target, planned(sources, options), dry_run=options.dry_run)
    plan = report.plan
    if _is_there(target, plan):
        report.existed = True
    elif options.dry_run:
        return report
    else:
        _check_images(plan)
        with writer_lock(target.lock), stoppable() as stop:
            _build(report, machine, progress, runtime, starting, stop)
    if not report.interrupted:
        ledger = Ledger(target.folder)
        statuses = ledger.statuses()
        report.statuses = {edit.id: statuses[edit.id] for edit in plan.union.edits}
    report.wall_seconds = time.monotonic() - started
    return report


def planned(sources: Sequence[Source], options: CombineOptions) -> Plan:
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
    steps = [Step(edit.moment, edit.source, edit) for edit in found.edits]
    steps = sorted([*steps, *_further_anchors(sources)], key=lambda step: step.moment)
    return _with_most_kept(sources, found, steps)


def _further_anchors(sources: Sequence[Source]) -> Iterator[Step]:
    """Yield the anchors that the first state did not begin with, each once."""
    known = set[tuple[str, str]]()
    sets = sorted(
        ((moment, source, anchors) for source in sources for moment, anchors in source.added_anchors()),
        key=lambda each: each[0],
    )
    for moment, source, anchors in sets:
        new = {identity(anchor): anchor for anchor in anchors if identity(anchor) not in known}
        known |= new.keys()
        if new and moment[1:] != (0, 0):
            yield Step(moment, source, None, list(new.values()))


def _with_most_kept(sources: Sequence[Source], found: Union, steps: Sequence[Step]) -> Plan:
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
    return Plan(sources, found, best, kept, rest[done:])


def _is_past(step: Step, past: dict[str, int], first: Ledger) -> bool:
    """Return whether a step is one of the lines that all states have, and not a later try of an edit among them."""
    if step.edit is None:
        return step.source.number == 0 and step.moment[2] in past.values()
    seq = past.get(step.edit.id)
    return seq is not None and _content(first.entries[seq - 1]) == _content(step.edit.entry)


def _common_past(sources: Sequence[Source]) -> int:
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


def _taken_over(source: Source, shared: int, steps: Sequence[Step]) -> tuple[int, int]:
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


def _is_step(line: Entry, step: Step, source: Source) -> bool:
    if step.edit is None:
        return line.kind == "anchors" and step.source is source and step.moment[2] == line.seq
    plain = line.kind == "edit" and Try.of(line) == Try() and not step.edit.entry.settings
    return plain and (line.id, line.content) == (step.edit.id, step.edit.content)


def _is_there(target: Target, plan: Plan) -> bool:
    """Return whether the new state exists already, with exactly these edits.

    Raises:
        UsageError: it exists with others, or is one of those that are combined.
    """
    if any(target.sidecar.resolve() == source.path.resolve() for source in plan.sources):
        raise UsageError(f"`{target.sidecar}` is one of the states that are combined", "name a new file with -o")
    if not target.sidecar.exists():
        return False
    there = Source(target.sidecar, 0)
    held = [(edit.id, edit.content) for edit in there.holdings.values() if edit.in_force]
    if sorted(held) != sorted((edit.id, edit.content) for edit in plan.union.edits):
        raise UsageError(f"`{target.sidecar}` already exists, with other edits", "name a new file with -o")
    return True


def _check_images(plan: Plan) -> None:
    """Read every image that the new state needs, before anything is written.

    Raises:
        StateError, DataError: one is missing or has changed.
    """
    for source, entry in _lines(plan):
        try:
            for image in _images(source.ledger.edit_of(entry)):
                image.read()
        except (StateError, DataError) as error:
            text = f"edit `{entry.id}` of `{source.path}` cannot be taken over: {error.message}"
            raise type(error)(text, "restore the image, then run the command again") from None


def _lines(plan: Plan) -> Iterator[tuple[Source, Entry]]:
    """Yield every ledger line about an edit that the new ledger holds, with the state that it is from."""
    yield from ((edit.source, edit.entry) for edit in plan.union.reverted)
    yield from ((plan.start, line) for line in plan.start.ledger.history[: plan.kept])
    yield from ((step.source, step.edit.entry) for step in plan.again if step.edit)


def _images(edit: Edit) -> Iterator[ImageSource]:
    yield from (*edit.images, *edit.image_rephrases)
    yield from (probe.image for probe in (*edit.locality, *edit.portability) if probe.image)


def _build(
    report: CombineReport,
    machine: Machine,
    progress: Progress,
    runtime: Runtime | None,
    starting: Callable[[Work], None] | None,
    stop: Stop,
) -> None:
    """Build the new state in a draft and put it in its place."""
    target, plan = report.target, report.plan
    draft = Draft(target.model, target.folder / f"combine-{plan.name}.more")
    own, final = draft.folder / draft.ledger_name, target.folder / target.ledger_name
    if not final.exists():
        if starting:
            starting(plan.work)
        _begin(draft, plan, machine)
        session = open_session(draft, machine, progress, runtime)
        if plan.work.edits:
            report.notes += session.machine_notes()
        if _has_joint_writing(plan):
            report.notes.append(ONE_BY_ONE)
        finish(session, plan.kept, plan.again, partial(_apply, session, plan), stop)
        session.ledger.close()
        report.interrupted = stop.asked
        if stop.asked:
            return
    elif own.exists() or not draft.sidecar.exists():
        raise StateError(f"`{target.folder}` holds the ledger of another state", "name a new file with -o")
    _publish(target, draft)


def _begin(draft: Draft, plan: Plan, machine: Machine) -> None:
    """Write images, anchors, the ledger's first lines and the state that a draft begins with, unless they are there."""
    first = plan.sources[0]
    with Ledger(draft.folder, name=draft.ledger_name) as own:
        for source, entry in _lines(plan):
            for image in _images(source.ledger.edit_of(entry)):
                if image.sha256 in source.ledger.images:
                    own.images.put(image.read())
        own.images.sync()
        if first.meta.anchors:
            keep_anchors(draft.folder, load_anchors(first.ledger.folder, first.meta.anchors), first=True)
        for entry in plan.start.ledger.history[: plan.kept]:
            if entry.kind == "anchors":
                keep_anchors(draft.folder, load_anchors(plan.start.ledger.folder, entry.content))
        rows = list(_rows(plan, machine))
        if len(own.entries) < len(rows):
            own.append_all(rows[len(own.entries) :])
    if not draft.sidecar.exists():
        state = nearest_state(open_state(plan.start.path), plan.start.ledger, plan.kept)
        save_state(draft.sidecar, state if plan.kept else unedited(plan.start.meta))


def _rows(plan: Plan, machine: Machine) -> Iterator[dict[str, Any]]:
    """Yield the new ledger's first lines: edits that stay reverted, a line that says so, and what is taken over."""
    for edit in plan.union.reverted:
        yield edit.entry.fields() | _origin(edit.source, edit.entry)
    if gone := plan.union.reverted:
        number, ids = len(gone) + 1, [edit.id for edit in gone]
        line = {"kind": "revert", "id": f"revert-{number}", "status": Status.REVERTED, "ids": ids, "since": 1}
        yield line | {"versions": versions(machine), "note": "reverted in a state that was combined"}
    for entry in plan.start.ledger.history[: plan.kept]:
        yield entry.fields() | _origin(plan.start, entry)


def _origin(source: Source, entry: Entry) -> dict[str, str]:
    return {"note": entry.note or f"line {entry.seq} of {source.path.name}"}


def _apply(draft: Session, plan: Plan, step: Step) -> None:
    """Apply the next step at the end of the draft."""
    done, total = len(made_lines(draft.ledger, plan.kept)), plan.kept + len(plan.again)
    draft.progress(plan.kept + done, total, step.edit.id if step.edit else "anchors")
    if step.edit is None:
        held = set(map(identity, draft.anchors))
        anchors = [*draft.anchors, *(anchor for anchor in step.anchors if identity(anchor) not in held)]
        commit_anchors(draft, keep_anchors(draft.target.folder, anchors), len(anchors))
        return
    entry = step.edit.entry
    attempt = Try(retry=entry.id in draft.ledger.by_id, settings=tuple(entry.settings))
    # The time of the edit is kept, so that this state can be combined with others in turn.
    kept = entry.description() | {"time": entry.time} | _origin(step.source, entry)
    commit_edit(draft, draft.ledger.edit_of(entry), kept, attempt)


def _has_joint_writing(plan: Plan) -> bool:
    """Return whether one of the states wrote edits together after the lines that are taken over."""
    return any(entry.joint for entry in plan.lines) or any(
        kind == "consolidate" for source in plan.sources for kind, _ in list(source.ledger.history.kinds())[plan.kept :]
    )


def _publish(target: Target, draft: Draft) -> None:
    """Put a finished draft in the new state's place; its file comes last."""
    own, final = draft.folder / draft.ledger_name, target.folder / target.ledger_name
    if not final.exists():
        move(own, final)
    for number, path in taken_snapshots(draft).items():
        snapshot = target.snapshot(f"{number:06}")
        snapshot.parent.mkdir(exist_ok=True)
        move(path, snapshot)
    for path in drafts(target.folder):
        if path != draft.sidecar:
            path.unlink(missing_ok=True)
    move(draft.sidecar, target.sidecar)
