"""`more run`: a run on a suite, and what the laboratory adds: calibration, fits, files that an analysis reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from more_cli.editors.base import Editor
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.errors import UsageError
from more_cli.evaluation.names import Yardstick
from more_cli.files import sha256_json
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import identities, leave_out
from more_cli.progress import Progress, no_progress
from more_cli.runner.journal import RunJournal
from more_cli.runner.plan import Base, Plan, RunOptions, base_key, edits_hash
from more_cli.runner.protocols import Schedule
from more_cli.runner.references import BaseAnswers
from more_cli.runner.report import SuiteReport
from more_cli.runner.run import SuiteTask
from more_cli.runner.steps import Run
from more_cli.suites.load import EditSuite
from more_lab.experiments.calibrate import EDITS, CachedCalibration, settings_of, try_settings
from more_lab.experiments.fits import Fits
from more_lab.experiments.keep import Keep, Keeper
from more_lab.experiments.record import claim, record_of


@dataclass(frozen=True)
class LabOptions(RunOptions):
    """How an editor runs on a suite, and what comes before and beside it."""

    calibrate: int = 0
    """Number of editor settings to try first, on the suite's calibration pool; 0 for none."""
    keep: Keep | None = None
    """What the run keeps, and where; by default its journal alone, in the cache."""


def run_suite(
    suite: EditSuite, model: Path, options: LabOptions, machine: Machine, progress: Progress = no_progress
) -> SuiteReport:
    """Run an editor on a suite, or finish an interrupted run; an editor that must be fitted is fitted once.

    Raises:
        UsageError: unknown editor or setting, no calibration pool where one is needed, or a folder that keeps another
            run.
        StreamErrors, DataError, StateError: as in `more_cli.runner.run.run_suite`.
    """
    return LabTask(suite, Base(model), options, machine, progress).run()


@dataclass(frozen=True)
class LabTask(SuiteTask):
    """A run that may be calibrated, fitted and kept."""

    options: LabOptions

    @cached_property
    def fits(self) -> Fits:
        """The fitted editors of this model and suite."""
        facts = [self._given.reproduce[name] for name in ("base", "template", "versions")]
        return Fits(self.options.folder, self.suite, facts, self.progress)

    def run(self) -> SuiteReport:
        result = super().run()
        result.fit = self.fits.known(self.plan().editor)
        return result

    def plan(self) -> Plan:
        """Return everything that decides the numbers, the best setting of those tried among them."""
        return self._plan

    @cached_property
    def _given(self) -> Plan:
        """The plan with the settings that were given."""
        return super().plan()

    @cached_property
    def _plan(self) -> Plan:
        plan = self._given
        if self.options.calibrate:
            plan = self._calibrated(plan)
        if digest := self.fits.digest(plan.editor):
            plan = replace(plan, reproduce=plan.reproduce | {"fit": digest})
        return plan

    def prepare(self, editor: Editor, runtime: Runtime) -> None:
        """Fit an editor that needs it."""
        self.fits.prepare(editor, runtime, again=self.options.again)

    def run_of(self, plan: Plan, schedule: Schedule) -> Run:
        """Return the run of a plan; with `--keep`, its journal lies in that folder.

        Raises:
            UsageError: that folder holds something else.
        """
        run, keep = super().run_of(plan, schedule), self.options.keep
        if keep is None:
            return run
        key = sha256_json([run.journal.folder.name, keep.facts])
        about = self.options.editor, self.base.model, self.suite.name, schedule, plan.edits, plan.reproduce
        record = record_of(key, *about)
        claim(keep.folder, record)
        return replace(run, journal=RunJournal(keep.folder), observer=Keeper(keep, record, self.progress))

    def _calibrated(self, plan: Plan) -> Plan:
        """Return the plan with the best setting of those tried; an equal earlier calibration is read from the cache."""
        suite, options, reproduce = self.suite, self.options, plan.reproduce
        if "calibration" not in suite.pools:
            raise UsageError(f"suite `{suite.name}` has no calibration pool here", "drop --calibrate")
        unscored = options.unscored | identities(plan.anchors.questions)
        edits, _ = leave_out(suite.pools["calibration"][:EDITS], unscored)
        entry, settings = entry_of(options.editor), EditorOptions(self.base.model, options.recipe, options.settings)
        facts = [reproduce[name] for name in ("editor", "constants", "anchors", "base", "template", "versions")]
        if fitted := self.fits.digest(plan.editor):  # on more edits than those that are tried
            facts.append(fitted)
        tried = settings_of(entry, options.calibrate)

        def make(*changed: str) -> Editor:
            return entry.make(settings.with_settings(*changed))

        cached = CachedCalibration(
            options.folder / "calibrations", *facts, list(settings.settings), list(map(list, tried)), edits_hash(edits)
        )
        result = None if options.again else cached.read()
        if result is None:
            runtime = self.load(plan)
            result = try_settings(
                make,
                tried,
                edits,
                runtime=runtime,
                references=BaseAnswers(runtime, options.folder / "base" / base_key(reproduce), Yardstick()),
                anchors=plan.anchors,
                fits=self.fits,
                progress=self.progress,
            )
            cached.write(result)
        editor = make(*result["chosen"])
        constants = {"constants": editor.facts(), "calibration": result}
        return replace(plan, editor=editor, reproduce=reproduce | constants)
