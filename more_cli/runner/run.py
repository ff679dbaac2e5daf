"""Run an editor on a suite of edits from the untouched base, as `more eval --suite` and `more run` do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from more_cli.editors.base import Editor
from more_cli.evaluation.names import Yardstick
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.versions import versions
from more_cli.progress import Progress, no_progress
from more_cli.recipe.tables import asking_of
from more_cli.runner.anchors import without_keys
from more_cli.runner.journal import RunJournal, settled
from more_cli.runner.plan import Base, Plan, RunOptions, base_key, plan_run, run_key, schedule_of
from more_cli.runner.protocols import Schedule
from more_cli.runner.references import BaseAnswers, EarlierAnswers
from more_cli.runner.report import SuiteReport, Work
from more_cli.runner.steps import Answers, Run
from more_cli.suites.load import EditSuite


def run_suite(
    suite: EditSuite, model: Path, options: RunOptions, machine: Machine, progress: Progress = no_progress
) -> SuiteReport:
    """Run an editor on a suite, or finish an interrupted run.

    Raises:
        UsageError: unknown editor or setting, or anchors for an editor that uses none.
        StreamErrors: an image of the suite is missing or unreadable.
        DataError: locality is measured on gold answers, and a question has none.
        StateError: the checkpoint cannot be edited.
    """
    return SuiteTask(suite, Base(model), options, machine, progress).run()


@dataclass(frozen=True)
class SuiteTask:
    """What to run, on which model and machine."""

    suite: EditSuite
    base: Base
    options: RunOptions
    machine: Machine
    progress: Progress

    def run(self) -> SuiteReport:
        """Run what no earlier run did, and return the whole report."""
        started = time.monotonic()
        schedule, plan = schedule_of(self.suite, self.options), self.plan()
        run = self.run_of(plan, schedule)
        with run.journal.opened():
            if self.options.again:
                run.journal.forget()
            known = len(run.journal.lines)
            if not run.finished:
                runtime = self.load(plan)
                answers = self.answers(plan, run, runtime)
                self.prepare(plan.editor, runtime)
                known = run.go(runtime, answers)
        return SuiteReport(
            self.suite,
            self.base.model,
            self.options,
            plan.edits,
            settled(run.journal.lines[: run.steps]),
            plan.reproduce,
            left_out=plan.left_out,
            work=Work(run.asked, known, time.monotonic() - started),
            notices=[*plan.editor.notices, *without_keys(plan.editor, plan.anchors.questions)],
        )

    def plan(self) -> Plan:
        """Return everything that decides the numbers."""
        return plan_run(self.base, self.suite, self.options, versions(self.machine))

    def load(self, plan: Plan) -> Runtime:
        """Load the model with the system prompt of the editor's recipe."""
        self.progress(0, None, "loading the model")
        return load_runtime(self.base.checkpoint, self.machine, **asking_of(plan.reproduce["constants"]))

    def run_of(self, plan: Plan, schedule: Schedule) -> Run:
        """Return the run of a plan, with its journal in the cache."""
        options = self.options
        journal = RunJournal(options.folder / "runs" / run_key(plan.reproduce, schedule, options.yardstick))
        stream = plan.editor, plan.anchors, plan.edits, schedule, options.yardstick, journal, self.progress
        return Run(*stream, writing=options.writing)

    def answers(self, plan: Plan, run: Run, runtime: Runtime) -> Answers:
        """Return the answers that scores are compared with; those of the base are cached."""
        folder, yardstick = self.options.folder / "base" / base_key(plan.reproduce), self.options.yardstick
        return Answers(
            BaseAnswers(runtime, folder, Yardstick()),
            BaseAnswers(runtime, folder, yardstick),
            EarlierAnswers(runtime, run.journal.folder / "before", yardstick),
        )

    def prepare(self, editor: Editor, runtime: Runtime) -> None:
        """Do what an editor needs before its first edit: M-ORE needs nothing."""
