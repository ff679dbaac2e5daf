"""`more eval --suite`: run an editor on a suite of edits, starting from the untouched base; no state is changed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.errors import UsageError
from more_cli.evaluation.names import Yardstick
from more_cli.experiments.calibrate import EDITS, CachedCalibration, settings_of, try_settings
from more_cli.experiments.editors import EditorOptions, entry_of
from more_cli.experiments.fits import Fits
from more_cli.experiments.held_anchors import without_keys
from more_cli.experiments.keep import Keeper
from more_cli.experiments.protocols import Schedule
from more_cli.experiments.references import BaseAnswers, EarlierAnswers
from more_cli.experiments.report import SuiteReport, report
from more_cli.experiments.run_journal import RunJournal
from more_cli.experiments.run_plan import (
    Base,
    Plan,
    RunOptions,
    asking_of,
    base_key,
    edits_hash,
    plan_run,
    run_key,
    schedule_of,
)
from more_cli.experiments.run_record import claim, record_of
from more_cli.experiments.run_steps import Answers, Run
from more_cli.files import sha256_bytes
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import identities, leave_out
from more_cli.ops.session import versions
from more_cli.progress import Progress, no_progress
from more_cli.suites.load import EditSuite
from more_cli.text import canonical_json


def run_suite(
    suite: EditSuite, model: Path, options: RunOptions, machine: Machine, progress: Progress = no_progress
) -> SuiteReport:
    """Run an editor on a suite, or finish an interrupted run.

    Raises:
        UsageError: unknown editor or setting, or anchors for an editor that uses none.
        StreamErrors: an image of the suite is missing or unreadable.
        DataError: the preset measures locality on gold answers, and a question has none.
        StateError: the checkpoint cannot be edited.
    """
    started = time.monotonic()
    schedule = schedule_of(suite, options)
    base = Base(model)
    plan = plan_run(base, suite, options, versions(machine))
    fits = Fits(options.folder, suite, [plan.reproduce[name] for name in ("base", "template", "versions")], progress)
    task = _Task(suite, base, options, machine, progress)
    if options.calibrate:
        plan = _calibrated(task, plan, fits)
    if digest := fits.digest(plan.editor):
        plan = replace(plan, reproduce=plan.reproduce | {"fit": digest})
    run = task.run_of(plan, schedule)
    with run.journal.opened():
        if options.again:
            run.journal.forget()
        known, fit = len(run.journal.lines), fits.known(plan.editor)
        if not run.finished:
            runtime = task.load(plan)
            answers = task.answers(plan, run, runtime)
            fit = fits.prepare(plan.editor, runtime, again=options.again)
            known = run.go(runtime, answers)
    result = report(
        suite,
        plan.edits,
        schedule,
        run.journal.lines[: run.steps],
        model=model,
        editor=options.editor,
        reproduce=plan.reproduce,
        left_out=plan.left_out,
        preset=options.preset,
    )
    result.fit, result.notices = fit, [*plan.editor.notices, *without_keys(plan.editor, plan.anchors.questions)]
    result.base_asked, result.resumed, result.seconds = run.asked, known, time.monotonic() - started
    return result


@dataclass(frozen=True)
class _Task:
    """What to run, on which model and machine."""

    suite: EditSuite
    base: Base
    options: RunOptions
    machine: Machine
    progress: Progress

    def load(self, plan: Plan) -> Runtime:
        """Load the model with the system prompt of the editor's recipe."""
        self.progress(0, None, "loading the model")
        return load_runtime(self.base.checkpoint, self.machine, **asking_of(plan.reproduce["constants"]))

    def run_of(self, plan: Plan, schedule: Schedule) -> Run:
        """Return the run of a plan, with its journal; what it keeps goes into the folder of `--keep`.

        Raises:
            UsageError: that folder holds something else.
        """
        options = self.options
        folder, keeper = options.folder / "runs" / run_key(plan.reproduce, schedule, options.yardstick), None
        if options.keep:
            key = sha256_bytes(canonical_json([folder.name, options.keep.facts]).encode())
            about = options.editor, self.base.model, self.suite.name, schedule, plan.edits, plan.reproduce
            record = record_of(key, *about)
            folder, keeper = options.keep.folder, Keeper(options.keep, record, self.progress)
            claim(folder, record)
        journal = RunJournal(folder)
        return Run(plan.editor, plan.anchors, plan.edits, schedule, options.yardstick, journal, self.progress, keeper)

    def answers(self, plan: Plan, run: Run, runtime: Runtime) -> Answers:
        """Return the answers that scores are compared with; those of the base are cached."""
        folder, yardstick = self.options.folder / "base" / base_key(plan.reproduce), self.options.yardstick
        return Answers(
            BaseAnswers(runtime, folder, Yardstick()),
            BaseAnswers(runtime, folder, yardstick),
            EarlierAnswers(runtime, plan.editor, run.journal.folder / "before", yardstick),
        )


def _calibrated(task: _Task, plan: Plan, fits: Fits) -> Plan:
    """Return the plan with the best setting of those tried; an equal earlier calibration is read from the cache.

    Raises:
        UsageError: the suite has no calibration pool.
    """
    suite, options, reproduce = task.suite, task.options, plan.reproduce
    if "calibration" not in suite.pools:
        raise UsageError(f"suite `{suite.name}` has no calibration pool here", "drop --calibrate")
    unscored = options.unscored | identities(plan.anchors.questions)
    edits, _ = leave_out(suite.pools["calibration"][:EDITS], unscored)
    entry, settings = entry_of(options.editor), EditorOptions(task.base.model, options.recipe, options.settings)
    facts = [reproduce[name] for name in ("editor", "constants", "anchors", "base", "template", "versions")]
    tried = settings_of(entry, options.calibrate)
    cached = CachedCalibration(
        options.folder / "calibrations", *facts, list(settings.settings), list(map(list, tried)), edits_hash(edits)
    )
    result = None if options.again else cached.read()
    if result is None:
        runtime = task.load(plan)
        result = try_settings(
            entry,
            settings,
            options.calibrate,
            edits,
            runtime=runtime,
            references=BaseAnswers(runtime, options.folder / "base" / base_key(reproduce), Yardstick()),
            anchors=plan.anchors,
            fits=fits,
            progress=task.progress,
        )
        cached.write(result)
    editor = entry.make(settings.with_settings(*result["chosen"]))
    return replace(plan, editor=editor, reproduce=reproduce | {"constants": editor.constants(), "calibration": result})
