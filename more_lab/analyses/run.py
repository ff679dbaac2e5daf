"""`more analyze`: analyses of kept runs, each a table, a figure and a line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from more_cli.errors import UsageError, install_hint
from more_cli.files import disk_errors
from more_cli.model.machine import Machine
from more_cli.progress import Progress, no_progress
from more_lab.analyses.catalog import ALL, Analysis, chosen
from more_lab.analyses.kept import KeptRun, NotKept, read_runs
from more_lab.analyses.result import FORMATS, Result


@dataclass(frozen=True)
class Analysed:
    """One analysis with the files that show it."""

    analysis: Analysis
    result: Result
    files: tuple[Path, ...]
    """Table, then figures."""
    seconds: float

    @property
    def picture(self) -> Path | None:
        """The figure as PNG; None without figures."""
        return next((path for path in self.files if path.suffix == ".png"), None)


@dataclass
class AnalysisReport:
    """What `more analyze` made."""

    runs: list[KeptRun]
    done: list[Analysed] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why an analysis of `all` could not be computed from one or all of the runs, by its name."""
    seconds: float = 0.0

    @property
    def skipped_sentences(self) -> list[str]:
        """What was skipped and why; a reason that begins with the name is a sentence already."""
        partly = {done.analysis.name for done in self.done}
        return [
            f"skipped{' in part' if name in partly else ''}: "
            f"{reason if reason.startswith(name) else f'{name}: {reason}'}"
            for name, reason in self.skipped.items()
        ]


def analyse(
    name: str,
    folders: Sequence[Path],
    out: Path,
    machine: Machine,
    *,
    figures: bool = True,
    progress: Progress = no_progress,
) -> AnalysisReport:
    """Compute an analysis of kept runs, or all, and write `NAME.csv`, `NAME.png` and `NAME.svg` into a folder.

    Of `all`, what a run lacks is computed from the other runs, and what all of them lack is skipped.

    Raises:
        UsageError: unknown analysis, no matplotlib, or what the one analysis needs was not kept (`NotKept`).
        DataError: a folder holds no run, or a damaged or unfinished one.
        StateError: a model cannot be used, or the folder is not writable.
    """
    started, wanted = time.monotonic(), chosen(name)
    if figures and find_spec("matplotlib") is None:
        raise UsageError("figures need matplotlib", f"{install_hint('plots')}, or add --no-figures")
    report = AnalysisReport(read_runs(folders))
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    for number, analysis in enumerate(wanted):
        progress(number, len(wanted), analysis.title.lower())
        able = _able(analysis, report) if name == ALL else report.runs
        try:
            if able:
                report.done.append(_analysed(analysis, able, out, machine, figures, progress))
        except NotKept as error:
            if name != ALL:
                raise
            report.skipped[analysis.name] = error.message
    if not report.done:
        raise UsageError("no analysis can be computed from these runs", next(iter(report.skipped.values())))
    report.seconds = time.monotonic() - started
    return report


def _able(analysis: Analysis, report: AnalysisReport) -> list[KeptRun]:
    """Return the runs that have what an analysis reads, and note why others have not."""
    lacking = {run.label: reason for run in report.runs if (reason := run.lacks(analysis.reads))}
    if lacking:
        report.skipped[analysis.name] = "; ".join(lacking.values())
    return [run for run in report.runs if run.label not in lacking]


def _analysed(
    analysis: Analysis, runs: Sequence[KeptRun], out: Path, machine: Machine, figures: bool, progress: Progress
) -> Analysed:
    started = time.monotonic()
    result = analysis.of(runs, machine, progress)
    files = [out / f"{analysis.name}.csv"]
    result.write_table(files[0])
    if figures:
        files += [out / f"{analysis.name}.{kind}" for kind in FORMATS]
        for path in files[1:]:
            result.write_figure(path)
    return Analysed(analysis, result, tuple(files), time.monotonic() - started)
