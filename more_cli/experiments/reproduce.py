"""`more reproduce table-1`: every editor of the paper's table on both suites, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.errors import MoreError, UsageError
from more_cli.evaluation.metrics import Estimate
from more_cli.experiments.editors import entry_of
from more_cli.experiments.presets import PRESETS
from more_cli.experiments.published import BACKBONES, table
from more_cli.experiments.published import EDITORS as PAPER
from more_cli.experiments.report import SuiteReport
from more_cli.experiments.run import RunOptions, run_suite
from more_cli.model.machine import Machine
from more_cli.progress import Progress, no_progress
from more_cli.suites.load import EditSuite, load_suite
from more_cli.text import shorten

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
    undertrained: Sequence[str]
    """Editors whose fit does not suffice, with their suite."""
    notices: Sequence[str]
    """What differs from the paper, a line each."""


def reproduce(
    name: str,
    model: Path,
    data_root: Path | None,
    options: RunOptions,
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
    """
    if name != "table-1":
        table(name)
        raise UsageError(f"table `{shorten(name)}` is only printed: no command runs it", "use table-1")
    chosen = [entry_of(editor).name for editor in editors] or [*PAPER.values(), "more"]
    backbone = BACKBONES.get(str(open_checkpoint(model).config.get("model_type", "")))
    printed = {(row.suite, PAPER[row.name], row.edits): row.values for row in table(name) if row.backbone == backbone}
    options = replace(options, preset=PRESET, protocols=PRESET.protocols, limit=max(options.checkpoints))
    rows, undertrained = list[Row](), list[str]()
    notices = [*PRESET.notices, *_notices(backbone, data_root)]
    for suite_name in SUITES:
        suite, why = _suite(suite_name, data_root, image_root)
        for editor in chosen:
            report, reason = None, why
            if suite is not None:
                report, reason = _run(suite, model, replace(options, editor=editor), machine, progress)
            fit = report.fit if report else None
            if fit and fit.obstacle:
                notices.append(f"{editor} on {suite_name}: {fit.obstacle}; its scores say little about the method")
            elif fit and fit.undertrained:
                undertrained.append(f"{editor} on {suite_name}: {fit.right} of {fit.held_out}")
            for edits in options.checkpoints:
                measured = _measured(report, edits)
                short = "" if measured or not report else f"the suite has {len(report.edits)} edits"
                paper = printed.get((suite_name, editor, edits))
                rows.append(Row(suite_name, editor, edits, paper, measured, reason or short))
    return Reproduction(name, model, backbone, rows, undertrained, notices)


def _suite(name: str, data_root: Path | None, image_root: Path | None) -> tuple[EditSuite | None, str]:
    """Return a suite of edits, or why it cannot be had."""
    try:
        suite = load_suite(name, data_root, image_root)
    except MoreError as error:
        return None, error.message
    assert isinstance(suite, EditSuite)
    return suite, ""


def _run(
    suite: EditSuite, model: Path, options: RunOptions, machine: Machine, progress: Progress
) -> tuple[SuiteReport | None, str]:
    """Return the report of one editor on one suite, or why it could not be run."""

    def named(done: int, total: int | None, text: str) -> None:
        progress(done, total, f"{suite.name}, {options.editor}: {text}")

    try:
        return run_suite(suite, model, options, machine, named), ""
    except MoreError as error:
        return None, error.message


def _measured(report: SuiteReport | None, edits: int) -> Mapping[str, Estimate] | None:
    """Return the columns right after each of the first `edits` edits."""
    return report.preset_values.get(f"online@{edits}") if report else None


def _notices(backbone: str | None, data_root: Path | None) -> list[str]:
    found = []
    if data_root is None:
        found.append("embedded suites, not E-VQA and E-IC: these are other numbers than the paper's")
    if backbone is None:
        found.append(f"not one of the table's backbones ({', '.join(BACKBONES.values())}): nothing is printed beside")
    elif data_root is None:
        found.append(f"the printed numbers are those of {backbone} with 7 or 2.7 billion parameters")
    return found
