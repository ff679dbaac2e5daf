"""`more reproduce`: tables and figures of the paper, measured beside what it prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.registry import entry_of
from more_cli.errors import MoreError, UsageError
from more_cli.evaluation.metrics import Estimate
from more_cli.files import disk_errors
from more_cli.model.machine import Machine
from more_cli.ops.auto_anchors import AUTO
from more_cli.progress import Progress, no_progress
from more_cli.runner.protocols import Scored
from more_cli.runner.report import SuiteReport
from more_cli.suites.load import EditSuite, YesNoSuite, load_suite
from more_lab.analyses.run import Analysed, analyse
from more_lab.experiments.keep import Keep
from more_lab.experiments.presets import PRESETS
from more_lab.experiments.published import BACKBONES, Printed, published, table
from more_lab.experiments.run import LabOptions, run_suite
from more_lab.paper.exhibits import Exhibit, Variant, exhibits

TABLE = {"online": PRESETS["paper-table"], "final": PRESETS["paper-final"]}
SMALL = 1024
"""Hidden size of the text layers below which a model gets the settings of the embedded ones."""
COLUMNS = (*PRESETS["paper-table"].columns, "Avg")
COMMAND = "more reproduce"
PAGES = ("index.html", "index.md")
"""Of what was measured, in the folder of its figures."""
_ELSEWHERE = "name an empty folder with -o"


@dataclass(frozen=True)
class Row:
    """One run of a table after so many edits."""

    suite: str
    name: str
    """In the paper; for an editor that its table lacks, ours."""
    editor: str
    protocol: Literal["online", "final"]
    edits: int
    printed: Mapping[str, float | str] | None
    """What the paper prints for it, in percent; None where it prints nothing."""
    measured: Mapping[str, Estimate] | None
    """By column, from 0 to 1; None if it could not be run."""
    reason: str = ""
    """Why it could not be run."""

    def difference(self, column: str) -> float | None:
        """Return measured minus printed, in points."""
        if self.measured is None or self.printed is None or not {column} <= self.measured.keys() & self.printed.keys():
            return None
        return 100 * self.measured[column].value - float(self.printed[column])


@dataclass
class Reproduction:
    """An exhibit on one model."""

    exhibit: Exhibit
    model: Path
    backbone: str | None
    """The paper's backbone that the model is one of; None for another one."""
    rows: list[Row] = field(default_factory=list)
    """Of a table."""
    figures: dict[str, list[Analysed]] = field(default_factory=dict)
    """Of a figure, by suite."""
    problems: list[str] = field(default_factory=list)
    """Of a figure: what could not be run, and why."""
    warnings: list[str] = field(default_factory=list)
    """Editors whose scores say little about the method, with their suite and the reason."""
    notices: list[str] = field(default_factory=list)
    """What differs from the paper, a line each."""
    first: MoreError | None = None
    """The first reason why something could not be run."""

    def failed(self, what: str, error: MoreError) -> None:
        """Note what could not be run."""
        self.problems.append(f"{what}: {error.message}")
        self.first = self.first or error

    @property
    def measured(self) -> bool:
        """Whether anything was."""
        return bool(self.figures) or any(row.measured is not None for row in self.rows)

    @property
    def missing(self) -> list[Row]:
        """One row for each run and reason that has none measured."""
        found = {(row.suite, row.name, row.reason): row for row in self.rows if row.measured is None}
        return list(found.values())

    @property
    def complete(self) -> bool:
        """Whether everything was measured."""
        return not self.missing and not self.problems and self.measured

    @property
    def printed(self) -> list[Printed]:
        """The rows that the paper prints beside a figure, for this backbone."""
        name = self.exhibit.printed
        found = table(name) if self.exhibit.analyses and name in published() else []
        return [row for row in found if row.backbone in ("", self.backbone)]


@dataclass(frozen=True)
class Sources:
    """Where suites are, and where results go."""

    data_root: Path | None = None
    """Folder with the files of E-VQA and E-IC; by default the embedded suites."""
    image_root: Path | None = None
    questions: Path | None = None
    """Folder with the questions of MME; by default the embedded ones."""
    out: Path | None = None
    """Folder for the figures and the runs that they show."""

    def suite(self, name: str) -> EditSuite:
        """Return a suite of edits.

        Raises:
            DataError, StreamErrors: a file is missing or damaged.
        """
        suite = load_suite(name, self.data_root, self.image_root)
        assert isinstance(suite, EditSuite)
        return suite

    def asked(self) -> YesNoSuite:
        """Return MME.

        Raises:
            DataError: a file is missing or damaged.
        """
        suite = load_suite("mme", self.questions)
        assert isinstance(suite, YesNoSuite)
        return suite


def check_folder(out: Path) -> None:
    """Refuse a folder of something else, in which pages would be replaced.

    Raises:
        UsageError: it is not empty and holds no tables or figures of the paper, or is a file.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"`{out}` is a file", _ELSEWHERE)
    with disk_errors(out):
        names = {path.name for path in out.iterdir() if not path.name.startswith(".")} if out.exists() else set[str]()
        page = out / PAGES[-1]
        is_ours = page.is_file() and COMMAND.encode() in page.read_bytes().partition(b"\n")[0]
    if names and not is_ours and not names & exhibits().keys():
        raise UsageError(f"`{out}` is not empty and holds no tables or figures of the paper", _ELSEWHERE)


def placed(exhibit: Exhibit, models: Sequence[Path]) -> Iterator[tuple[Path, str | None, list[str]]]:
    """Yield the models to run an exhibit on: those of its backbones that were given, else the first one.

    With each come its backbone and what to say of the choice.

    Raises:
        StateError: no checkpoint.
    """
    known = {model: BACKBONES.get(str(open_checkpoint(model).config.get("model_type", ""))) for model in models}
    fitting = [model for model in models if known[model] in exhibit.backbones]
    shown = ", ".join(exhibit.backbones)
    for model in fitting or models[:1]:
        backbone = known[model]
        yield model, backbone, [] if fitting else [f"the paper shows this on {shown}; here it is `{model.name}`"]


@dataclass(frozen=True)
class Measurement:
    """An exhibit that is measured on one model."""

    exhibit: Exhibit
    model: Path
    backbone: str | None
    sources: Sources
    options: LabOptions
    """`settings` and what is cached; checkpoints are those of the exhibit, if none are given here."""
    machine: Machine
    editors: Sequence[str] = ()
    """The only editors to run; where all of the paper are compared, also such as it lacks."""
    progress: Progress = no_progress

    def run(self, notices: Sequence[str] = ()) -> Reproduction:
        """Run everything that no earlier call did; what cannot be run is named with its reason."""
        result = Reproduction(self.exhibit, self.model, self.backbone)
        result.notices += [*notices, *self._notices()]
        for name in self.exhibit.suites:
            suite = self._suite(name)
            if self.exhibit.analyses:
                self._draw(suite, name, result)
                continue
            for variant, run in self.variants.items():
                result.rows += self._rows(name, variant, run, self._scored(suite, run, result), result)
        return result

    @cached_property
    def marks(self) -> tuple[int, ...]:
        """Numbers of edits after which something is measured."""
        return self.options.scored.checkpoints or self.exhibit.edits

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """The runs to make, by name."""
        found, beside = self.exhibit.variants, self.exhibit.compares_editors
        if not self.editors:
            return found | {"more": Variant(editor="more")} if beside else found
        names = [entry_of(editor).name for editor in self.editors]
        chosen = {name: run for name, run in found.items() if run.editor in names}
        there = {run.editor for run in chosen.values()}
        return chosen | {name: Variant(editor=name) for name in names if beside and name not in there}

    @cached_property
    def is_small(self) -> bool:
        """Whether the paper's ranks are beyond the model's widths."""
        config = open_checkpoint(self.model).config
        text = config.get("text_config", config)
        return int(text.get("hidden_size") or 0) < SMALL

    def _suite(self, name: str) -> EditSuite | MoreError:
        """Return a suite of edits, or why it cannot be had."""
        try:
            return self.sources.suite(name)
        except MoreError as error:
            return error

    def _options(self, run: Variant) -> LabOptions:
        settings = run.settings_on(small=self.is_small)
        return replace(
            self.options,
            editor=run.editor,
            settings=(*settings, *self.options.settings),
            limit=max(self.marks),
            anchors=AUTO if run.anchors else None,
        )

    def _run(
        self, suite: EditSuite | MoreError, options: LabOptions, result: Reproduction, label: str
    ) -> SuiteReport | MoreError:
        """Return the report of a run, or why it could not be run."""
        if isinstance(suite, MoreError):
            return suite

        def named(done: int, total: int | None, text: str) -> None:
            self.progress(done, total, f"{self.exhibit.name}, {suite.name}, {label}: {text}")

        try:
            report = run_suite(suite, self.model, options, self.machine, named)
        except MoreError as error:
            return error
        if report.fit and report.fit.warning:
            result.warnings.append(f"{label} on {suite.name}: {report.fit.warning}")
        return report

    def _scored(self, suite: EditSuite | MoreError, run: Variant, result: Reproduction) -> SuiteReport | MoreError:
        options = replace(self._options(run), preset=TABLE[run.protocol], scored=Scored((), self.marks, ()))
        return self._run(suite, options, result, run.editor)

    def _rows(
        self, suite: str, name: str, run: Variant, report: SuiteReport | MoreError, result: Reproduction
    ) -> Iterator[Row]:
        """Yield a row for every number of edits."""
        if isinstance(report, MoreError):
            result.first = result.first or report
        printed = {
            (row.suite, row.name, row.edits): row.values
            for row in table(self.exhibit.printed)
            if row.backbone == self.backbone
        }
        for edits in self.marks:
            values, reason = _measured(report, f"{run.protocol}@{edits}")
            yield Row(suite, name, run.editor, run.protocol, edits, printed.get((suite, name, edits)), values, reason)

    def _draw(self, suite: EditSuite | MoreError, name: str, result: Reproduction) -> None:
        """Make the runs of a figure on a suite, and the figure."""
        assert self.sources.out is not None, "the command asks for a folder"
        folder, kept = self.sources.out / self.exhibit.name / self.model.resolve().name / name, list[Path]()
        for label, run in self.variants.items():
            options = self._options(run)
            lags = tuple(range(1, max(self.marks))) if self.exhibit.every_lag else ()
            scored = Scored(("final", "online", "lag") if lags else ("final", "online"), self.marks, lags)
            runs = folder / "runs" / label.replace("/", " ")
            report = self._kept_run(suite, replace(options, scored=scored), result, label, runs)
            if isinstance(report, MoreError):
                result.failed(f"{label} on {name}", report)
            else:
                kept.append(runs)
        for analysis in self.exhibit.analyses if kept else ():
            try:
                analysed = analyse(analysis, kept, folder, self.machine, progress=self.progress)
            except MoreError as error:
                result.failed(f"{analysis} on {name}", error)
            else:
                result.figures.setdefault(name, []).extend(analysed.done)

    def _kept_run(
        self, suite: EditSuite | MoreError, options: LabOptions, result: Reproduction, label: str, folder: Path
    ) -> SuiteReport | MoreError:
        """Make a run that is kept in a folder."""
        parts = self.exhibit.keep
        try:
            questions = self.sources.asked() if "answers" in parts else None
        except MoreError as error:
            return error
        keep = Keep(folder, "updates" in parts, "states" in parts, questions)
        return self._run(suite, replace(options, keep=keep), result, label)

    def _notices(self) -> Iterator[str]:
        if not self.exhibit.analyses:
            yield from PRESETS["paper-table"].notices
        if self.sources.data_root is None:
            yield "embedded suites, not E-VQA and E-IC: these are other numbers than the paper's"
            if self.backbone is not None:
                yield f"the printed numbers are those of {self.backbone} with billions of parameters"
        if self.backbone is None:
            yield f"not one of the paper's backbones ({', '.join(BACKBONES.values())}): nothing is printed beside"


def _measured(report: SuiteReport | MoreError, readout: str) -> tuple[Mapping[str, Estimate] | None, str]:
    """Return the columns of a readout, or why there are none."""
    if isinstance(report, MoreError):
        return None, report.message
    measured = report.preset_values.get(readout)
    return measured, "" if measured else f"the suite has {len(report.edits)} edits"
