"""What an analysis gives: a table, a figure, and one line with a number."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from more_cli.evaluation.metrics import Estimate
from more_cli.files import write_whole
from more_lab.figures import Draw, save_figure

FORMATS = ("png", "svg")
Cell = str | int | float | None


@dataclass(frozen=True)
class Scalar:
    """The number that sums up an analysis of one run."""

    run: str
    name: str
    value: float
    low: float | None = None
    """End of the 95 % interval, where one makes sense; likewise `high`."""
    high: float | None = None

    @classmethod
    def of(cls, run: str, name: str, found: Estimate) -> Scalar:
        """Return an estimate as a scalar."""
        return cls(run, name, found.value, found.low, found.high)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.run}: {self.name} {self.value:.3g}"
        return f"{self.run}: {self.name} {self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Result:
    """One analysis of one or several runs."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    scalars: Sequence[Scalar]
    draw: Draw
    size: tuple[float, float] = (6.0, 3.6)
    """Of the figure, in inches."""
    note: str = ""
    """How to read it, beyond what the analysis says of itself."""

    @property
    def summary(self) -> str:
        """The scalars, in one line."""
        return "; ".join(map(str, self.scalars))

    def write_table(self, path: Path) -> None:
        """Write the table as CSV.

        Raises:
            StateError: not writable.
            ResourceError: no space.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        write_whole(path, text.getvalue().encode())

    def write_figure(self, path: Path) -> None:
        """Draw the figure in the format of the path's suffix; the same numbers give the same bytes.

        Raises:
            StateError: not writable.
            ResourceError: no space.
        """
        save_figure(path, self.size, self.draw)
