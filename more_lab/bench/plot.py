"""A stream's latency and memory over its edits, drawn by matplotlib (extra `plots`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.errors import UsageError, install_hint
from more_lab.bench.run import BenchReport
from more_lab.experiments.scaling import WINDOW, rolling
from more_lab.figures import STAMPS, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIB = 1 << 20


def check_plot(path: Path) -> None:
    """Check that a plot can be drawn, before anything is measured.

    Raises:
        UsageError: an unknown format, no such folder, or matplotlib is not installed.
    """
    if path.suffix.lower() not in STAMPS:
        raise UsageError(f"`--plot {path}`: a plot is {', '.join(STAMPS)}", "name a file such as bench.png")
    if not path.parent.is_dir():
        raise UsageError(f"`{path}`: there is no folder `{path.parent}`", "create it first")
    if find_spec("matplotlib") is None:
        raise UsageError("`--plot` needs matplotlib", install_hint("plots"))


def draw_plot(report: BenchReport, path: Path) -> None:
    """Draw latency, raw and as a rolling mean, and under it peak memory, as the paper's figure "scaling" does.

    Raises:
        StateError: not writable.
        ResourceError: no space.
    """
    save_figure(path, (7, 5), lambda figure: _draw(figure, report))


def _draw(figure: Figure, report: BenchReport) -> None:
    latency, memory = figure.subplots(2, sharex=True)
    t = range(1, len(report.edits) + 1)
    seconds = [edit.lap.seconds for edit in report.edits]
    latency.plot(t, seconds, ".", color="0.7", label="an edit")
    latency.plot(t, rolling(seconds), label=f"mean of the last {WINDOW}")
    if any(edit.floor for edit in report.edits):
        latency.plot(t, [edit.floor or float("nan") for edit in report.edits], ".", label="bare loop, same writes")
    latency.set(ylabel="seconds", ylim=(0, None))
    latency.legend()
    memory.plot(t, [float("nan") if edit.lap.peak is None else edit.lap.peak / MIB for edit in report.edits])
    memory.set(xlabel="edit", ylabel="peak memory above the model, MiB", ylim=(0, None))
