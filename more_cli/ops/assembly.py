"""A new state that is made of the edits of others, as `combine` and `rebase` make it.

Ledger lines are taken over or applied again in a draft inside the new state's folder. The new state's file is the last
that appears: until then the same command goes on with the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from more_cli.checkpoint.hub import pin_of
from more_cli.errors import StateError
from more_cli.files import disk_errors, move, sha256_json
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.versions import versions
from more_cli.ops.anchors import identity, keep_anchors, load_anchors
from more_cli.ops.commit import commit_anchors, commit_edit
from more_cli.ops.drafts import Work, drafts, finish, made_lines, require_images
from more_cli.ops.outcome import Outcome
from more_cli.ops.session import Session, Try, open_session
from more_cli.ops.session_anchors import SessionAnchors
from more_cli.ops.shared import Holding, Moment, SourceState, Union
from more_cli.ops.signals import Stop, stoppable
from more_cli.progress import Progress
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.pin import read_pin, write_pin
from more_cli.store.snapshots import nearest_place, nearest_state, taken_snapshots
from more_cli.store.state import StateMeta, open_state, save_state, unedited
from more_cli.store.status import Status
from more_cli.store.target import Draft, Target

ONE_BY_ONE = "what was written together (--batch, --consolidate) is written edit by edit"


class Step(NamedTuple):
    """A line that the combination adds: an edit or, if there are any, further anchors."""

    moment: Moment
    source: SourceState
    edit: Holding | None
    anchors: Sequence[Probe] = ()


@dataclass(frozen=True)
class Plan:
    """What a new state consists of."""

    sources: Sequence[SourceState]
    union: Union
    shared: int
    """Number of first lines that all states have."""
    start: SourceState
    """The state whose first lines are taken over."""
    kept: int
    """Number of these lines: the shared ones, and those after them that are the next steps."""
    again: Sequence[Step]
    """What is applied after them, in order."""
    base: StateMeta | None = None
    """What the new state is made with if it is for another base: then no line is taken over."""

    @property
    def command(self) -> str:
        """The command whose draft it is."""
        return "rebase" if self.base else "combine"

    @property
    def work(self) -> Work:
        """How much is applied again."""
        replayed = self.kept - nearest_place(self.start.meta, self.start.ledger, self.kept)
        return Work.of([*self.start.ledger.history[self.kept - replayed : self.kept], *self.lines], replayed)

    @property
    def lines(self) -> Iterator[Entry]:
        """The ledger lines of the edits that are applied again."""
        return (step.edit.entry for step in self.again if step.edit)

    @property
    def name(self) -> str:
        """What the draft is named by: all that decides its content."""
        heads = [source.ledger.head for source in self.sources]
        steps = [(step.source.number, step.edit.seq if step.edit else 0, len(step.anchors)) for step in self.again]
        base = [self.base.base, self.base.template] if self.base else []
        facts = [heads, self.start.number, self.kept, steps, *base]
        return sha256_json(facts)[:16]


@dataclass
class AssemblyReport(Outcome):
    """What was done to make a new state, or would be."""

    target: Target
    plan: Plan
    existed: bool = False
    """Whether the new state was there already, with these edits."""

    @property
    def changed(self) -> dict[str, tuple[Status, Status]]:
        """Status before, in the state that an edit was taken from, and now, where they differ."""
        before = {edit.id: edit.status for edit in self.plan.union.edits}
        return {id: (before[id], now) for id, now in self.statuses.items() if before.get(id, now) is not now}


def assemble(
    report: AssemblyReport,
    there: Callable[[], bool],
    machine: Machine,
    progress: Progress,
    runtime: Runtime | None = None,
    starting: Callable[[Work], None] | None = None,
) -> Ledger | None:
    """Make the new state unless it is `there`, and return its ledger; None after a dry run or an interrupt.

    `there` is asked again under the lock: another process may have made it since. `starting` is called before the first
    edit is applied; `runtime` is the model if it is loaded already.

    Raises:
        StateError: the new state's folder holds the ledger of another one, or an image is missing or has changed.
        DataError: an image cannot be read.
    """
    report.existed = there()
    if not report.existed:
        if report.dry_run:
            return None
        for source, entry in _lines(report.plan):
            images = _images(source.ledger.edit_of(entry))
            require_images(images, f"edit `{entry.id}` of `{source.path}` cannot be taken over")
        with writer_lock(report.target.lock), stoppable() as stop:
            report.existed = there()
            if not report.existed:
                _build(report, machine, progress, runtime, starting, stop)
        if report.interrupted:
            return None
    ledger = Ledger(report.target.folder)
    statuses = ledger.statuses()
    report.statuses = {edit.id: statuses[edit.id] for edit in report.plan.union.edits}
    return ledger


def steps_of(found: Union, sources: Sequence[SourceState]) -> list[Step]:
    """Return the edits and the anchors that the first state did not begin with, in order of time."""
    edits = (Step(edit.moment, edit.source, edit) for edit in found.edits)
    return sorted([*edits, *_further_anchors(sources)], key=lambda step: step.moment)


def _further_anchors(sources: Sequence[SourceState]) -> Iterator[Step]:
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


def _lines(plan: Plan) -> Iterator[tuple[SourceState, Entry]]:
    """Yield every ledger line about an edit that the new ledger holds, with the state that it is from."""
    yield from ((edit.source, edit.entry) for edit in plan.union.reverted)
    yield from ((plan.start, line) for line in plan.start.ledger.history[: plan.kept])
    yield from ((step.source, step.edit.entry) for step in plan.again if step.edit)


def _images(edit: Edit) -> Iterator[ImageSource]:
    yield from (*edit.images, *edit.image_rephrases)
    for probe in (*edit.locality, *edit.portability):
        yield from probe.images


def _build(
    report: AssemblyReport,
    machine: Machine,
    progress: Progress,
    runtime: Runtime | None,
    starting: Callable[[Work], None] | None,
    stop: Stop,
) -> None:
    """Build the new state in a draft and put it in its place."""
    target, plan = report.target, report.plan
    draft = Draft(target.model, target.folder / f"{plan.command}-{plan.name}.more")
    own, final = draft.folder / draft.ledger_name, target.folder / target.ledger_name
    if not final.exists():
        if starting:
            starting(plan.work)
        _begin(draft, plan, machine)
        session = open_session(draft, machine, progress, runtime)
        if not plan.base:
            for one in plan.sources:
                session.anchors.take_over(SessionAnchors(one.meta, one.ledger, machine, one.ledger.folder / "cache"))
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
    write_pin(target.folder, pin_of(target.model) or (None if plan.base else read_pin(plan.start.ledger.folder)))
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
        if plan.kept:
            state = nearest_state(open_state(plan.start.path), plan.start.ledger, plan.kept)
        else:
            state = unedited(plan.base or plan.start.meta)
        save_state(draft.sidecar, state)


def _rows(plan: Plan, machine: Machine) -> Iterator[dict[str, Any]]:
    """Yield the new ledger's first lines: edits that stay reverted, a line that says so, and what is taken over."""
    for edit in plan.union.reverted:
        yield edit.entry.fields() | _origin(edit.source, edit.entry)
    if gone := plan.union.reverted:
        number, ids = len(gone) + 1, [edit.id for edit in gone]
        line = {"kind": "revert", "id": f"revert-{number}", "status": Status.REVERTED, "ids": ids, "since": 1}
        yield line | {"versions": versions(machine), "note": "reverted in a state that this one is made of"}
    for entry in plan.start.ledger.history[: plan.kept]:
        yield entry.fields() | _origin(plan.start, entry)


def _origin(source: SourceState, entry: Entry) -> dict[str, str]:
    return {"note": entry.note or f"line {entry.seq} of {source.path.name}"}


def _apply(draft: Session, plan: Plan, step: Step) -> None:
    """Apply the next step at the end of the draft."""
    done, total = len(made_lines(draft.ledger, plan.kept)), plan.kept + len(plan.again)
    draft.progress(plan.kept + done, total, step.edit.id if step.edit else "anchors")
    if step.edit is None:
        held = set(map(identity, draft.anchors.questions))
        new = [anchor for anchor in step.anchors if identity(anchor) not in held]
        commit_anchors(draft, new, at=step.moment[0].isoformat(timespec="milliseconds"))
        return
    entry = step.edit.entry
    attempt = Try(retry=entry.id in draft.ledger.by_id, settings=tuple(entry.settings))
    # The time of the edit is kept, so that this state can be combined with others in turn.
    kept = entry.description() | {"time": entry.time} | _origin(step.source, entry)
    commit_edit(draft, draft.ledger.edit_of(entry), kept, attempt)


def _has_joint_writing(plan: Plan) -> bool:
    """Return whether one of the states wrote edits together that are applied again; compactions come by themselves."""
    return any(entry.joint for entry in plan.lines) or any(
        source.ledger.history[plan.shared :].of_kind("consolidate") for source in plan.sources
    )


def _publish(target: Target, draft: Draft) -> None:
    """Put a finished draft in the new state's place; its file comes last."""
    own, final = draft.folder / draft.ledger_name, target.folder / target.ledger_name
    if own.exists() and not final.exists():  # none where there was nothing to apply
        move(own, final)
    for number, path in taken_snapshots(draft).items():
        snapshot = target.snapshot(f"{number:06}")
        with disk_errors(snapshot):
            snapshot.parent.mkdir(exist_ok=True)
        move(path, snapshot)
    for path in drafts(target.folder):
        if path != draft.sidecar:
            path.unlink(missing_ok=True)
    move(draft.sidecar, target.sidecar)
