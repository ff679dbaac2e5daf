"""Report files and gates of an evaluation: the options that every `eval` has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.cli.output import Output
from more_cli.errors import UsageError
from more_cli.options import REPORT, option

if TYPE_CHECKING:
    from more_cli.evaluation.gates import Gate, Judgement
    from more_cli.render.page import Page


@dataclass(frozen=True)
class Reports:
    """Files that a command writes beside what it prints."""

    reports: tuple[Path, ...] = option(
        (),
        "Write tables, plots and a gallery (.html), or a summary (.md); repeatable.",
        "--report",
        metavar="FILE",
        panel=REPORT,
    )

    def check(self) -> None:
        """Check that the files can be written.

        Raises:
            UsageError, StateError: see `check_outlets`.
        """
        from more_cli.render.outlets import check_outlets

        check_outlets(self.reports, self._junit())

    def write(self, page: Page, show: Callable[[], None]) -> None:
        """Write the files, show the result, then check the page's gates.

        A reader who has left loses no file, and a full disk no result.

        Raises:
            GateError: one was not met.
            StateError, ResourceError: a file cannot be written.
        """
        from more_cli.evaluation.gates import require
        from more_cli.render.outlets import write_outlets

        try:
            write_outlets(page, self.reports, self._junit())
        finally:
            show()
        require(page.gates)

    def _junit(self) -> Path | None:
        return None


@dataclass(frozen=True)
class Outlets(Reports):
    """Files that an evaluation writes, and gates as they were typed."""

    gates: tuple[str, ...] = option(
        (),
        "Exit with 6 if this is not met. METRIC.low and METRIC.high are the ends of its interval. Repeatable.",
        "--gate",
        metavar="METRIC>=NUMBER",
        panel=REPORT,
    )
    strict_gates: bool = option(
        False,
        "Count a gate on .low or .high as missed if it has fewer than ten samples.",
        "--strict-gates",
        panel=REPORT,
    )
    junit: Path | None = option(None, "Write JUnit XML: one case per edit and per gate.", metavar="FILE", panel=REPORT)

    def check(self) -> None:
        """Check also that strict gates are gates.

        Raises:
            UsageError, StateError: as `Reports.check`, or there is no gate.
        """
        if self.strict_gates and not self.gates:
            hint = 'add --gate "METRIC>=NUMBER", or leave --strict-gates out'
            raise UsageError("`--strict-gates` needs `--gate`", hint)
        super().check()

    def gates_on(self, names: Sequence[str] = ()) -> list[Gate]:
        """Parse the gates; their metrics must be among `names` if any are given.

        Raises:
            UsageError: not a gate.
        """
        from more_cli.evaluation.gates import parse_gate

        return [parse_gate(text, names, strict=self.strict_gates) for text in self.gates]

    def _junit(self) -> Path | None:
        return self.junit


def show_gates(output: Output, gates: Sequence[Judgement]) -> None:
    """Show whether each gate was met."""
    if gates:
        output.line()
        output.table(
            ("gate", "", "measured"),
            [(str(result.gate), "met" if result.met else "MISSED", result.reason) for result in gates],
        )
