"""The trials of a grid: each is one `run_suite`, named by a hash of everything that decides its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from more_cli.editors.base import Editor
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.errors import MoreError, StateError, UsageError
from more_cli.evaluation.metrics import Estimate
from more_cli.evaluation.streams import writes_together
from more_cli.ops.anchors import identities
from more_cli.progress import Progress
from more_cli.runner.anchors import choose_anchors
from more_cli.runner.plan import Base, plan_run, run_key, schedule_of
from more_cli.runner.report import SuiteReport
from more_cli.suites.load import EditSuite, load_suite
from more_cli.text import counted
from more_lab.experiments.fits import Fits
from more_lab.experiments.run import LabOptions, run_suite
from more_lab.sweep.file import Combination, Grid, SweepFile
from more_lab.sweep.jobs import reason
from more_lab.sweep.place import Place

Estimates = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class Source:
    """A suite as `load_suite` takes it."""

    name: str
    data_root: Path | None
    image_root: Path | None

    def load(self) -> EditSuite:
        """Load the suite; the last ones are kept.

        Raises:
            UsageError: unknown suite, or one without edits.
            DataError: a file of it is missing or bad.
        """
        return _loaded(self)


@lru_cache(maxsize=4)
def _loaded(source: Source) -> EditSuite:
    suite = load_suite(source.name, source.data_root, source.image_root)
    if not isinstance(suite, EditSuite):
        raise UsageError(f"suite `{suite.name}` has no edits, only questions", "name a suite of edits")
    return suite


@dataclass(frozen=True)
class Trial:
    """One run of an editor on a suite."""

    names: Combination
    """As the file has them."""
    options: LabOptions
    model: Path
    source: Source
    place: Place
    threads: int
    key: str = ""
    problem: str = ""
    """Why it cannot be run; it has no key then."""
    label: str = ""
    """What differs between it and the other trials."""

    @property
    def group(self) -> str:
        """Name of the trials that take about as long."""
        names = self.names
        return f"{names.model}, {names.suite}, {names.editor}, {_stream(names)}"

    def run(self, progress: Progress) -> tuple[dict[str, Any], bool]:
        """Run it, or finish what another process began."""
        report = run_suite(self.source.load(), self.model, self.options, self.place.machine, progress)
        return result_of(report), not report.work.resumed

    def stands(self, values: Mapping[str, Any]) -> bool:
        """Return true: its key holds everything that decides its values."""
        return True


@dataclass(frozen=True)
class Setup:
    """What all jobs of a sweep share, beside their file."""

    models: Mapping[str, Path]
    """Checkpoint folders by their name in the file."""
    place: Place
    threads: int
    cache: Path | None = None


def make_trials(sweep: SweepFile, setup: Setup) -> list[Trial]:
    """Return the trials of a grid in the order of its file; no model is loaded.

    Raises:
        UsageError: an editor, a setting or a suite that there is not; nothing has run then.
        DataError: a suite's file is missing or bad.
    """
    try:
        return labelled(list(_Maker(sweep, setup).trials()))
    except UsageError as error:
        raise sweep.blamed(error) from None


class _Maker:
    """Makes trials; each checkpoint is read once."""

    def __init__(self, sweep: SweepFile, setup: Setup) -> None:
        assert isinstance(sweep.table, Grid)
        self.sweep, self.setup, self.grid = sweep, setup, sweep.table
        self._bases = {name: Base(folder) for name, folder in setup.models.items()}
        self._versions = setup.place.versions(setup.threads)
        self._draws = dict[tuple[str, str], bool]()
        self._held = self._all_anchors() if self.grid.anchors else {}
        """Identities of all anchors by suite: no trial is scored on one, so that all have the same probes."""

    def _all_anchors(self) -> dict[Source, frozenset[tuple[str, str]]]:
        """Return the identities of the anchors of all trials by suite."""
        held: dict[Source, set[tuple[str, str]]] = {}
        for names in {replace(names, order=0, limit=0): None for names in self.sweep.combinations()}:
            if given := self._anchors_of(names):
                source = self._source(names)
                questions = choose_anchors(self._editor(names), given, source.load())
                held.setdefault(source, set()).update(identities(questions))
        if not held:
            raise UsageError("no editor uses anchors with these settings", "leave `anchors` out")
        return {source: frozenset(found) for source, found in held.items()}

    def _anchors_of(self, names: Combination) -> Path | Literal["auto"] | None:
        try:
            return self.sweep.anchors(names.model) if "anchors" in self._editor(names).capabilities else None
        except StateError:  # a broken checkpoint: planning its trial says why
            return None

    def _editor(self, names: Combination) -> Editor:
        options = EditorOptions(self.setup.models[names.model], settings=names.settings)
        return entry_of(self.sweep.editor(names.editor)).make(options)

    def _source(self, names: Combination) -> Source:
        roots = (self.grid.data_root, self.grid.image_root)
        folders = (self.sweep.beside(root, names.model) if root else None for root in roots)
        return Source(self.sweep.suite(names.suite, names.model), *folders)

    def trials(self) -> Iterator[Trial]:
        """Yield every trial; seeds change last of all."""
        for names in map(self._written, self.sweep.combinations()):
            draws = self._draws.get((names.model, names.editor))
            trial = None if self.grid.seeds and draws else self._planned(names)
            if self.grid.seeds and self._draws.get((names.model, names.editor)):
                yield from (self._planned(replace(names, seed=seed)) for seed in self.grid.seeds)
            elif trial:
                yield trial

    def _written(self, names: Combination) -> Combination:
        """Return a combination as its editor can write it: each edit as it comes, if it knows nothing else."""
        if names.writing == "online":
            return names
        try:
            return names if writes_together(self._editor(names)) else replace(names, writing="online")
        except StateError:  # a broken checkpoint: planning its trial says why
            return names

    def _planned(self, names: Combination) -> Trial:
        """Return a trial with its key, or with the reason why it cannot be run."""
        trial = self._unplanned(names)
        suite, base = trial.source.load(), self._bases[names.model]
        try:
            plan = plan_run(base, suite, trial.options, self._versions)
            self._draws[names.model, names.editor] = plan.reproduce["seed"] is not None
        except UsageError:
            raise
        except MoreError as error:  # such as a broken checkpoint: the other trials can still be run
            return replace(trial, problem=reason(error))
        fit, schedule = None, schedule_of(suite, trial.options)
        with suppress(UsageError):  # too few edits to fit it on: its outcome when it runs
            about = [plan.reproduce[name] for name in ("base", "template", "versions")]
            fit = Fits(trial.options.folder, suite, about).digest(plan.editor)
        # The editor as the file names it: what its recipe says is in the constants, and where it lies does not matter.
        facts = plan.reproduce | {"editor": names.editor, "fit": fit, "metrics": self.grid.metrics}
        return replace(trial, key=run_key(facts, schedule, trial.options.yardstick))

    def _unplanned(self, names: Combination) -> Trial:
        grid, sweep, source = self.grid, self.sweep, self._source(names)
        options = LabOptions(
            editor=sweep.editor(names.editor),
            settings=names.settings + (() if names.seed is None else (f"seed={names.seed}",)),
            limit=names.limit or None,
            order=names.order,
            writing=names.writing,
            scored=grid.scored,
            cache=self.setup.cache,
            preset=grid.preset,
            anchors=self._anchors_of(names) if grid.anchors else None,
            unscored=self._held.get(source, frozenset()),
        )
        setup = self.setup
        return Trial(names, options, setup.models[names.model], source, setup.place, setup.threads)


def labelled(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with labels of what differs between them, the editor at least."""
    differ = {
        field.name
        for field in fields(Combination)
        if field.name == "editor" or len({getattr(trial.names, field.name) for trial in trials}) > 1
    }
    return [replace(trial, label=_label(trial.names, differ)) for trial in trials]


def _label(names: Combination, differ: set[str]) -> str:
    words = {
        "model": names.model,
        "suite": names.suite,
        "editor": names.editor,
        "settings": " ".join(names.settings),
        "seed": "" if names.seed is None else f"seed={names.seed}",
        "order": f"order={names.order}",
        "writing": names.writing,
        "limit": _stream(names),
    }
    return ", ".join(word for name, word in words.items() if name in differ and word)


def _stream(names: Combination) -> str:
    return counted(names.limit, "edit") if names.limit else "all edits"


def result_of(report: SuiteReport) -> dict[str, Any]:
    """Return the numbers of a run as JSON values: no time, and nothing that depends on what ran before."""
    fit = report.fit
    return {
        "source": report.suite.name,
        "protocol": report.headline.partition("@")[0],
        "baseline": report.yardstick.baseline,
        "prefix": report.yardstick.prefix,
        "headline": report.headline,
        "edits": len(report.edits),
        "metrics": _values(report.estimates),
        "preset": _values(report.preset_values),
        "counts": report.statuses,
        "forgetting": asdict(report.forgetting) if report.forgetting else None,
        "first_failing": report.first_failing,
        "left_out": report.left_out,
        "cost": report.cost,
        "footprints": {str(edits): footprint for edits, footprint in report.footprints.items()},
        "fit": {"records": fit.records, "right": fit.right, "held_out": fit.held_out} if fit else None,
        "notices": [*([fit.warning] if fit and fit.warning else []), *report.notices],
        "per_edit": [
            {"id": scores.id, "probes": scores.probes, "values": scores.values()} for scores in report.per_edit
        ],
        "reproduce": report.reproduce,
    }


def _values(estimates: Estimates) -> dict[str, dict[str, Any]]:
    return {readout: {name: asdict(value) for name, value in found.items()} for readout, found in estimates.items()}
