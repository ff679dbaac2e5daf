"""`more reproduce table-1`: every editor of the paper's table on both suites, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.registry import entry_of
from more_cli.errors import MoreError, UsageError
from more_cli.evaluation.metrics import Estimate
from more_cli.model.machine import Machine
from more_cli.progress import Progress, no_progress
from more_cli.runner.report import SuiteReport
from more_cli.suites.load import EditSuite, load_suite
from more_cli.text import shorten
from more_lab.experiments.presets import PRESETS
from more_lab.experiments.published import BACKBONES, table
from more_lab.experiments.published import EDITORS as PAPER
from more_lab.experiments.run import LabOptions, run_suite

SUITES = ("e-vqa", "e-ic")
PRESET = PRESETS["paper-table"]
COLUMNS = (*PRESET.columns, "Avg")


@dataclass(frozen=True)
class Row:
    """One editor on one suite after so many edits."""

    suite: str
    editor: str
    """Its name on the command line."""
    edits: int
    printed: Mapping[str, float] | None
    """What the paper prints for it, in percent; None for an editor or a backbone that is not in its table."""
    measured: Mapping[str, Estimate] | None
    """By column, from 0 to 1; None if it could not be run."""
    reason: str = ""
    """Why it could not be run."""

    def difference(self, column: str) -> float | None:
        """Return measured minus printed, in points."""
        if self.measured is None or self.printed is None or column not in self.measured:
            return None
        return 100 * self.measured[column].value - self.printed[column]


@dataclass(frozen=True)
class Reproduction:
    """The paper's table, measured."""

    table: str
    model: Path
    backbone: str | None
    """The table's backbone that the model is one of; None for another one."""
    rows: Sequence[Row]
    warnings: Sequence[str]
    """Editors whose scores say little about the method, with their suite and the reason."""
    notices: Sequence[str]
    """What differs from the paper, a line each."""

    @property
    def missing(self) -> list[Row]:
        """One row for each editor, suite and reason that has none measured."""
        found = {(row.suite, row.editor, row.reason): row for row in self.rows if row.measured is None}
        return list(found.values())


def reproduce(
    name: str,
    model: Path,
    data_root: Path | None,
    options: LabOptions,
    machine: Machine,
    *,
    editors: Sequence[str] = (),
    image_root: Path | None = None,
    progress: Progress = no_progress,
) -> Reproduction:
    """Run the editors of the paper's table, or those given, on its suites; finished runs are read from the cache.

    An editor or suite that cannot be run has rows that say why.

    Raises:
        UsageError: no such table or editor, or a table that no command runs.
        StateError: no checkpoint.
        MoreError: nothing could be run; the first reason.
    """
    if name != "table-1":
        table(name)
        raise UsageError(f"table `{shorten(name)}` is only printed: no command runs it", "use table-1")
    chosen = [entry_of(editor).name for editor in editors] or [*PAPER.values(), "more"]
    backbone = BACKBONES.get(str(open_checkpoint(model).config.get("model_type", "")))
    printed = {(row.suite, PAPER[row.name], row.edits): row.values for row in table(name) if row.backbone == backbone}
    options = replace(options, preset=PRESET, limit=max(options.scored.checkpoints))
    rows, warnings, problems = list[Row](), list[str](), list[MoreError]()
    notices = [*PRESET.notices, *_notices(backbone, data_root)]
    for suite_name in SUITES:
        suite = _suite(suite_name, data_root, image_root)
        for editor in chosen:
            report = _run(suite, model, replace(options, editor=editor), machine, progress)
            if isinstance(report, MoreError):
                problems.append(report)
            elif report.fit and report.fit.warning:
                warnings.append(f"{editor} on {suite_name}: {report.fit.warning}")
            for edits in options.scored.checkpoints:
                measured, reason = _measured(report, edits)
                rows.append(Row(suite_name, editor, edits, printed.get((suite_name, editor, edits)), measured, reason))
    if len(problems) == len(SUITES) * len(chosen):
        raise problems[0]
    return Reproduction(name, model, backbone, rows, warnings, notices)


def _suite(name: str, data_root: Path | None, image_root: Path | None) -> EditSuite | MoreError:
    """Return a suite of edits, or why it cannot be had."""
    try:
        suite = load_suite(name, data_root, image_root)
    except MoreError as error:
        return error
    assert isinstance(suite, EditSuite)
    return suite


def _run(
    suite: EditSuite | MoreError, model: Path, options: LabOptions, machine: Machine, progress: Progress
) -> SuiteReport | MoreError:
    """Return the report of one editor on one suite, or why it could not be run."""
    if isinstance(suite, MoreError):
        return suite
    name = suite.name

    def named(done: int, total: int | None, text: str) -> None:
        progress(done, total, f"{name}, {options.editor}: {text}")

    try:
        return run_suite(suite, model, options, machine, named)
    except MoreError as error:
        return error


def _measured(report: SuiteReport | MoreError, edits: int) -> tuple[Mapping[str, Estimate] | None, str]:
    """Return the columns right after each of the first `edits` edits, or why there are none."""
    if isinstance(report, MoreError):
        return None, report.message
    measured = report.preset_values.get(f"online@{edits}")
    return measured, "" if measured else f"the suite has {len(report.edits)} edits"


def _notices(backbone: str | None, data_root: Path | None) -> list[str]:
    found = []
    if data_root is None:
        found.append("embedded suites, not E-VQA and E-IC: these are other numbers than the paper's")
    if backbone is None:
        found.append(f"not one of the table's backbones ({', '.join(BACKBONES.values())}): nothing is printed beside")
    elif data_root is None:
        found.append(f"the printed numbers are those of {backbone} with 7 or 2.7 billion parameters")
    return found
