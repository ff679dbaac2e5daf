"""`more edit`: write a stream of corrections into the state, each one journalled before it counts.

Commit order for one edit: its images into the store, its line into the ledger (fsync), then, every few edits, the
sidecar. Whatever a crash leaves, the next command replays the ledger lines that the sidecar lacks, so an interrupted
run and a rerun end with the bytes of an undisturbed run.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.clock import Every
from more_cli.editors.base import EditRequest
from more_cli.errors import DataError, StateError, StreamErrors
from more_cli.evaluation.probes import may_not_fit, probes_of
from more_cli.inputs.columns import PLACEHOLDER
from more_cli.inputs.edits import Edit, EditStream, check_edits, iter_edits, raise_all, read_edits
from more_cli.inputs.feeds import Feed
from more_cli.inputs.images import ImageStore
from more_cli.inputs.records import Problem, given
from more_cli.model.families import Family, family_in
from more_cli.model.loading import load_fitting_blueprint, load_prompter
from more_cli.model.machine import Machine
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import anchors_too, identities, identity
from more_cli.ops.commit import commit_consolidation, commit_edit, compact_if_due
from more_cli.ops.drift import Drift, known_drift
from more_cli.ops.held import anchors_of
from more_cli.ops.init import InitReport, initialise
from more_cli.ops.outcome import Outcome
from more_cli.ops.plan import plan, recipe_for
from more_cli.ops.prefetch import Prefetch
from more_cli.ops.preparing import Inputs
from more_cli.ops.session import SAVE_SECONDS, Session, Try, open_session
from more_cli.ops.signals import Interrupted, Stop, stoppable
from more_cli.ops.snapshots import Snapshots
from more_cli.options import EditOptions
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import load_recipe
from more_cli.store.entry import Entry
from more_cli.store.ledger import Entries
from more_cli.store.lock import writer_lock
from more_cli.store.snapshots import keep_snapshot
from more_cli.store.state import load_meta
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.text import counted, shorten, verb

EVERY = ("all", "anew")
"""Values of `consolidate` that mean all edits, also those of earlier runs."""
LINES = "edits"
"""Name of a stream that is in memory, in messages and in the ledger."""
NEW_PROBES = (
    "new probes of {} are not scored: an edit keeps those that it was applied with; "
    "`more eval --probes FILE` asks others"
)


@dataclass
class EditRun:
    """How a run of `more edit` went."""

    created: InitReport | None = None
    """The state, if this run made it."""
    replayed: int = 0
    """Ledger lines that were applied again because the sidecar lacked them."""
    compactions: list[Entry] = field(default_factory=list)
    """Lines about all standing edits, which were written together."""
    consolidation: Entry | None = None
    drift: Drift | None = None
    """Of the watched anchors after the stream; None without any."""


@dataclass
class EditReport(Outcome):
    """The result of a stream."""

    target: Target
    total: int = 0
    """Edits in the stream, without repetitions."""
    skipped: int = 0
    """Edits that were in the ledger before."""
    reverted: list[str] = field(default_factory=list)
    """Skipped edits that were reverted and stay so."""
    ids: list[str] = field(default_factory=list)
    """Every edit of the stream, in order."""
    applied: int = 0
    entries: Sequence[Entry] = ()
    """Edits that this run applied or, as a dry retry, would try again, in order; read from the ledger on access."""
    problems: list[str] = field(default_factory=list)
    """Lines that were left out (`--on-error skip`)."""
    superseded: dict[str, list[str]] = field(default_factory=dict)
    """Edits of this run that corrected earlier ones, with the ids of these."""
    run: EditRun = field(default_factory=EditRun)

    def count(self, entry: Entry, contradicted: Sequence[str]) -> Sequence[str]:
        """Record an applied edit and return those it supersedes: all that it contradicts, unless it was refused."""
        self.applied += 1
        if not contradicted or entry.status is Status.REFUSED:
            return ()
        self.superseded[entry.id] = list(contradicted)
        return contradicted

    @property
    def counts(self) -> dict[str, int]:
        """Number of the stream's edits by status."""
        return dict(sorted(Counter(self.statuses.values()).items()))


class Listener:
    """Receives results while a stream is applied; a subclass overrides what it needs."""

    def edited(self, entry: Entry, status: Status, *, new: bool, supersedes: Sequence[str] = ()) -> None:
        """Receive an edit that is safe in the ledger: a `new` one, which may supersede others, or one from before."""

    def problem(self, problem: Problem) -> None:
        """Receive a line that cannot be applied."""

    def compacting(self, edits: int, seconds: float) -> None:
        """Learn that all standing edits are written anew now; one by one they took this long."""


class EditLoop:
    """Applies edits one after the other, new ones or those to try again, and saves the state as they accumulate."""

    def __init__(
        self, session: Session, report: EditReport, listener: Listener, stop: Stop, save_every: int, total: int | None
    ) -> None:
        """Take the writer's session; `total` is the number of edits of the stream, None if it is not known."""
        self.session, self.stop = session, stop
        self.snapshots = Snapshots(session)
        self._report, self._listener, self._total = report, listener, total
        self._due = Every(SAVE_SECONDS, save_every)

    def put(self, edit: Edit, describe: Callable[[], Mapping[str, Any]], attempt: Try) -> None:
        """Apply one edit; `describe` returns what its ledger line says of it, and stores its images.

        Raises:
            Interrupted: as `compact_if_due`.
        """
        session, report = self.session, self._report
        session.progress(report.skipped + report.applied, self._total, edit.id)
        kept = describe()
        contradicted = session.contradicted(edit)
        self.snapshots.before_edit()
        entry = commit_edit(session, edit, kept, attempt)
        supersedes = report.count(entry, contradicted)
        self.stop.waiting(lambda: self._listener.edited(entry, entry.status, new=True, supersedes=supersedes))
        self.compact()
        if self._due():
            session.save()

    def compact(self) -> None:
        """Write all standing edits together if there are enough of them.

        Raises:
            Interrupted: as `compact_if_due`.
        """
        if entry := compact_if_due(self.session, self.stop, self._listener.compacting):
            self._report.run.compactions.append(entry)


def edit_file(
    target: Target,
    stream: Path | Iterable[Mapping[str, Any]],
    options: EditOptions,
    machine: Machine,
    progress: Progress = no_progress,
    listener: Listener | None = None,
    runtime: Runtime | None = None,
) -> EditReport:
    """Apply the edits of a file, or edit lines in memory, that are not in the ledger yet, in their order.

    `runtime` is the model if it is loaded already.

    Raises:
        StreamErrors: the stream has problems; nothing is applied.
        StateError: model, state or ledger do not fit, or the lock is held.
    """
    listener, read = listener or Listener(), _read(target, stream, options)
    check = EditCheck(target, options)
    misfits = {edit.id: problem for edit in read.edits if (problem := check.problem(edit))}
    problems = [*read.problems, *misfits.values()]
    for problem in problems:
        listener.problem(problem)
    if options.on_error == "stop":
        raise_all(problems)
    edits = [edit for edit in read.edits if edit.id not in misfits][: options.limit]
    report = EditReport(target, total=len(edits), problems=[str(problem) for problem in problems], notes=check.notes())
    return _Run(options, machine, report, progress, listener, runtime).go(edits)


def _read(target: Target, stream: Path | Iterable[Mapping[str, Any]], options: EditOptions) -> EditStream:
    root, strict, kept = options.image_root, options.strict_paths, ImageStore(target.folder / "images")
    if isinstance(stream, Path):
        return read_edits(stream, root, on_error="skip", strict_paths=strict, decoded=kept)
    lines = given(stream, LINES)
    return check_edits(lines, LINES, root or Path(), on_error="skip", strict_paths=strict, decoded=kept)


def edit_stream(
    target: Target,
    feed: Feed,
    options: EditOptions,
    machine: Machine,
    progress: Progress = no_progress,
    listener: Listener | None = None,
) -> EditReport:
    """Apply edits line by line as they arrive; a bad line stops the run unless `on_error` is "skip".

    While an edit is written, the next line is read and its images decoded, and no further line.
    """
    check = EditCheck(target, options)

    def checked() -> Iterator[Edit | Problem]:
        root, kept = options.image_root or feed.folder, ImageStore(target.folder / "images")
        for item in iter_edits(feed.records(), root, strict_paths=options.strict_paths, decoded=kept):
            check.load()
            yield (check.problem(item) if isinstance(item, Edit) else None) or item

    arriving = Prefetch(checked(), feed.close)
    run = _Run(options, machine, EditReport(target), progress, listener or Listener())
    report = run.go(run.without_problems(arriving), arriving)
    report.notes += check.notes()
    return report


@dataclass
class _Run:
    """One call of `more edit`."""

    options: EditOptions
    machine: Machine
    report: EditReport
    progress: Progress
    listener: Listener
    runtime: Runtime | None = None
    """The model, if it is loaded already."""
    unscored: int = 0
    """Applied edits of the stream whose lines have probes that the ledger does not know."""

    def go(self, edits: Iterable[Edit], arriving: Prefetch[Edit | Problem] | None = None) -> EditReport:
        """Apply the edits of a whole file, or edits as they arrive: those of `arriving` that are no problems."""
        started = time.monotonic()
        if self.options.dry_run:
            self._dry_run(edits)
        else:
            self._apply_all(edits, arriving)
        self.report.wall_seconds = time.monotonic() - started
        return self.report

    def _apply_all(self, edits: Iterable[Edit], arriving: Prefetch[Edit | Problem] | None) -> None:
        target, report = self.report.target, self.report
        runtime = self._make_state()
        with writer_lock(target.lock), stoppable() as stop:
            session = open_session(target, self.machine, self.progress, runtime)
            if created := report.run.created:
                session.blueprint = created.plan.blueprint
            # `--consolidate anew` is a compaction itself.
            session.compacts = self.options.compact and self.options.consolidate != "anew"
            _refuse_other_recipe(session, self.options)
            pending, ahead = self._pending(session, edits), arriving
            if ahead is None:  # a whole file is compared with the ledger first: often nothing is left to do
                pending = ahead = Prefetch[Any](list(pending))
            with ahead, session.ledger:
                first = next(stop.before_each(pending), None)
                if first is not None or self._left_undone(session):
                    total, start = None if arriving else report.total, len(session.ledger.entries)
                    loop = EditLoop(session, report, self.listener, stop, self.options.save_every, total)
                    self._apply(loop, ahead, chain([first] if first else [], pending))
                    report.entries = session.ledger.entries[start:].of_kind("edit")
            self._report_end(session, stop)

    def _make_state(self) -> Runtime | None:
        """Make the state if there is none, and return the model if it is loaded."""
        target, options = self.report.target, self.options
        if not target.sidecar.exists():
            created = initialise(
                target, options.recipe, options.settings, self._inputs, self.machine, self.progress, self.runtime
            )
            # The model is loaded once; the report must not keep it when the session has ended.
            self.report.run.created = replace(created, runtime=None)
            return created.runtime or self.runtime
        if not target.folder.exists():
            open_session(target, self.machine)  # raises for a sidecar that does not fit, before a folder is made
        return self.runtime

    @property
    def _inputs(self) -> Inputs:
        """What prepares a new state."""
        if named := self.options.anchors_file:
            return Inputs(named.path, place=named.place, editing=True)
        return Inputs(arriving=self.options.anchors, editing=True)

    def _left_undone(self, session: Session) -> bool:
        """Return whether there is something to do without a new edit."""
        if session.behind or session.outdated or session.compaction_due:
            return True
        return self._consolidated_from(session) is not None

    def _apply(self, loop: EditLoop, ahead: Prefetch[Any], edits: Iterator[Edit]) -> None:
        """Bring the state up to date, apply the edits, consolidate, and save."""
        session, report = loop.session, self.report
        with session.attached(writing=True) as report.run.replayed:
            if report.run.replayed or session.outdated:
                session.save()
            report.notes += session.machine_notes()
            ahead.start(partial(_prepare, session), session.save, SAVE_SECONDS)
            try:
                self._apply_each(loop, edits)
                self._consolidate(loop)
            except Interrupted:
                return
            except (DataError, BrokenPipeError):
                loop.snapshots.take()
                session.save()  # a bad line or a closed output pipe: both strike between two edits
                raise
            # Anything else may strike inside a write: then the sidecar stays as it was and the ledger is replayed.
            session.save()

    def _apply_each(self, loop: EditLoop, edits: Iterator[Edit]) -> None:
        session, options = loop.session, self.options
        loop.compact()
        for edit in loop.stop.before_each(edits):
            describe = partial(session.ledger.describe, edit, store=options.store_images)
            loop.put(edit, describe, Try(joint=options.batch))
            if options.snapshot_every and session.state.meta.edits % options.snapshot_every == 0:
                session.save()
                keep_snapshot(session.target.sidecar, session.ledger, session.state.meta.edits)
        loop.snapshots.take()

    def _consolidate(self, loop: EditLoop) -> None:
        since = self._consolidated_from(loop.session)
        if since is not None and not loop.stop.asked:
            anew = self.options.consolidate == "anew"
            self.report.run.consolidation = commit_consolidation(loop.session, since, anew=anew)
            loop.compact()

    def _report_end(self, session: Session, stop: Stop) -> None:
        """Report how the edits of the stream stand, and what the user should know."""
        report, statuses = self.report, session.ledger.statuses()
        only_written_again = not report.total and report.run.consolidation is not None
        report.statuses = statuses if only_written_again else {id: statuses[id] for id in report.ids if id in statuses}
        report.interrupted = stop.asked
        report.run.drift = known_drift(session.ledger, session.state.meta)
        if not report.total and not only_written_again and not stop.asked:
            report.notes.append("no edit arrived")
        if self.unscored:
            report.notes.append(NEW_PROBES.format(counted(self.unscored, "line")))
        if session.standing.unwritten and not stop.asked:
            report.notes.append("an interrupted --batch left edits unwritten: run it again with --batch")

    def without_problems(self, items: Iterable[Edit | Problem]) -> Iterator[Edit]:
        """Yield the edits of a stream, at most `limit`, and report its problems."""
        for item in items:
            if isinstance(item, Edit):
                self.report.total += 1
                yield item
                if self.report.total == self.options.limit:
                    return
                continue
            self.listener.problem(item)
            if self.options.on_error == "stop":
                before = "" if self.options.dry_run or not self.report.total else "; the edits before it are applied"
                raise StreamErrors([str(item)], f"{item.hint or 'fix the line'}{before}")
            self.report.problems.append(str(item))

    def _pending(self, session: Session, edits: Iterable[Edit]) -> Iterator[Edit]:
        """Yield the edits to apply and count the others as skipped."""
        report, statuses = self.report, session.ledger.statuses()
        if isinstance(edits, Sequence) and self.options.on_error == "stop":
            raise_all(problem for edit in edits if (problem := _conflict(session, edit)))
        for edit in edits:
            if problem := _conflict(session, edit):
                self._refuse(problem)
                continue
            known = session.ledger.by_id.get(edit.id)
            report.ids.append(edit.id)
            if known is None or (self.options.reapply and edit.id in session.ledger.reverted):
                yield edit
            else:
                report.skipped += 1
                self.unscored += _has_new_probes(edit, known)
                if edit.id in session.ledger.reverted:
                    report.reverted.append(edit.id)
                if not self.options.dry_run:
                    self.listener.edited(known, statuses[edit.id], new=False)

    def _refuse(self, problem: Problem) -> None:
        """Report an edit whose id the ledger has with other content."""
        if self.options.on_error == "stop":
            raise_all([problem])
        self.listener.problem(problem)
        self.report.problems.append(str(problem))
        self.report.total -= 1

    def _consolidated_from(self, session: Session) -> int | None:
        """Return the place from which edits are consolidated at the end of the stream; None for no consolidation."""
        if self.options.consolidate in EVERY:
            return 1
        starts = session.standing.unwritten[:1] if self.options.batch else []
        if self.options.consolidate == "run":
            starts += self._new_to_consolidation(session.ledger.history)
        return min(starts, default=None)

    def _new_to_consolidation(self, history: Entries) -> list[int]:
        """Return the places of this stream's edits that came after the last consolidation.

        Those that an interrupted run has written are among them, so that the next one ends with the same bytes.
        """
        places, ids = list[int](), set(self.report.ids)
        for place, (kind, id) in enumerate(history.kinds(), 1):
            if kind == "consolidate":
                places = []
            elif kind == "edit" and id in ids:
                places.append(place)
        return places

    def _dry_run(self, edits: Iterable[Edit]) -> None:
        """Check everything that can be checked without writing."""
        target, report = self.report.target, self.report
        report.dry_run = True
        if target.sidecar.exists():
            session = open_session(target, Machine())
            _refuse_other_recipe(session, self.options)
            load_fitting_blueprint(session.checkpoint)
            pending = sum(1 for _ in self._pending(session, edits))
            known = f"{report.skipped:,} {verb(report.skipped, 'is', 'are')} in the ledger already"
            report.notes.append(f"{counted(pending, 'edit')} would be applied, {known}")
            return
        target.require_place()
        chosen = plan(target, self.options.recipe, self.options.settings)
        self._inputs.wanted(chosen)
        load_fitting_blueprint(chosen.checkpoint, chosen.model)
        count = sum(1 for _ in edits)
        sites, applied = counted(len(chosen.sites), "site"), counted(count, "edit")
        report.notes.append(f"a state with {sites} would be created and {applied} applied")


def _prepare(session: Session, item: Edit | Problem) -> None:
    """Encode the prompt of the next edit in advance; its errors are raised when the edit is applied."""
    if isinstance(item, Edit) and item.id not in session.ledger.by_id:
        request = EditRequest.of(item)
        with suppress(DataError):
            session.runtime.prepare(request.query, request.target)


def _conflict(session: Session, edit: Edit) -> Problem | None:
    """Return what is wrong with an edit whose id the ledger has with other content; None for any other."""
    if session.ledger.by_id.content(edit.id) in (None, edit.content):
        return None
    hint = "give the new correction its own id; it will supersede the old one"
    return Problem(f"{edit.source}:{edit.line}", f"id `{edit.id}` is in the ledger with other content", hint, edit.line)


def _has_new_probes(edit: Edit, known: Entry) -> bool:
    """Return whether a line has a probe that the ledger, which keeps those it was applied with, does not know."""
    asked = {*edit.rephrases, *(image.sha256 for image in edit.image_rephrases)}
    asked |= {probe.question for probe in (*edit.locality, *edit.portability)}
    kept = {*known.rephrases, *known.image_rephrases}
    kept |= {probe.question for probe in (*known.locality, *known.portability)}
    return not asked <= kept


def _refuse_other_recipe(session: Session, options: EditOptions) -> None:
    if options.recipe is None and not options.settings:
        return
    wanted = load_recipe(options.recipe or session.state.meta.recipe.name, options.settings)
    if wanted.canonical() != session.state.meta.recipe.canonical():
        raise StateError(
            f"`{session.target.sidecar}` was made with another recipe than `{wanted.name}` with these settings",
            "drop --recipe and --set, or start a new state with --state FILE",
        )


FIELDS = {
    "gen_text": "rephrases", "gen_image": "image_rephrases", "portability": "portability",
    "loc_text": "locality", "loc_image": "locality",
}  # fmt: skip
"""Field of an edit line that has the probes of a kind."""
_PLAIN = re.compile("[A-Za-z0-9 .,'-]*")
"""A target that every tokenizer is taken to have tokens for, so that none must be loaded to know."""


class EditCheck:
    """Checks edits against what the model can be asked and can say; counts probes to leave out."""

    def __init__(self, target: Target, options: EditOptions) -> None:
        self.target = target
        self.options = options
        self._probes = 0
        """Locality probes so far."""
        self._anchors_too = 0
        """Of these, those that are anchors too."""
        self._with_placeholder = 0
        """Edits whose question has the placeholder of an image in it."""

    @cached_property
    def prompter(self) -> Prompter:
        """The tokenizer with the chat template."""
        return load_prompter(open_checkpoint(self.target.model))

    @cached_property
    def family(self) -> Family:
        """The entry of the model's family."""
        return family_in(open_checkpoint(self.target.model).config)

    @cached_property
    def anchors(self) -> frozenset[tuple[str, str]]:
        """Questions of the state's anchors or, before there is a state, of the file of anchors that it will take."""
        if not self.target.sidecar.exists():
            name = self.options.recipe or recipe_for(open_checkpoint(self.target.model))
            recipe = load_recipe(name, self.options.settings)
            named = self.options.anchors_file
            return identities(Inputs(named.path if named else None).questions(recipe))
        return identities(anchors_of(self.target.folder, load_meta(self.target.sidecar)))

    def load(self) -> None:
        """Read everything now: model files must not be read in a thread while a model runs in another."""
        _ = self.prompter, self.family, self.anchors

    def problem(self, edit: Edit) -> Problem | None:
        """Return why an edit does not fit, or None; the length of a system prompt is not counted."""
        if refused := self._refused(edit):
            return Problem(f"{edit.source}:{edit.line}", *refused, edit.line)
        self._with_placeholder += PLACEHOLDER in edit.question
        self._probes += len(edit.locality)
        self._anchors_too += sum(identity(probe) in self.anchors for probe in edit.locality)
        for probe in probes_of(edit):
            if not may_not_fit(probe, self.family):
                continue
            try:
                self.prompter.encode(probe.query, probe.target)
            except DataError as error:
                field = "" if probe.kind == "rel" else f"`{FIELDS[probe.kind]}`: "
                return Problem(f"{edit.source}:{edit.line}", f"{field}{error.message}", error.hint, edit.line)
        if not _PLAIN.fullmatch(edit.target) and (missing := self.prompter.unwritten(edit.target)):
            # The model would learn to say the token for unknown text, which is no text.
            said = f"the model's tokenizer has no tokens for `{shorten(missing, 40)}` in the target"
            return Problem(f"{edit.source}:{edit.line}", said, "write the target in other characters", edit.line)
        return None

    def notes(self) -> list[str]:
        """Return what is odd about the checked edits: probes that are not scored, placeholders in questions."""
        notes = []
        if self._anchors_too:
            notes.append(f"{anchors_too(self._anchors_too, self._probes)}, which `more eval` leaves out")
        if self._with_placeholder:
            many = counted(self._with_placeholder, "question")
            notes.append(f"{many} with `{PLACEHOLDER}` in the text: it is read as text, only `image` shows a picture")
        return notes

    def _refused(self, edit: Edit) -> tuple[str, str] | None:
        """Return why the model cannot be asked this edit or one of its locality probes, with a hint."""
        if refused := self.family.refuses(len(edit.images)):
            return refused
        for number, probe in enumerate(edit.locality, 1):
            if refused := self.family.refuses(len(probe.images), alone=True):
                return f"locality {number}: {refused[0]}", refused[1]
        return None
