"""Report files and gates of an evaluation: the options that every `eval` has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli.options import REPORT
from more_cli.cli.output import Output

if TYPE_CHECKING:
    from more_cli.evaluation.gates import Gate, Judgement
    from more_cli.render.page import Page

Gates = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        metavar="METRIC>=NUMBER",
        help="Exit with 6 if this is not met. METRIC.low and METRIC.high are the ends of its interval. Repeatable.",
        rich_help_panel=REPORT,
    ),
]
StrictGates = Annotated[
    bool,
    typer.Option(
        "--strict-gates", help="A gate on .low or .high over fewer than ten samples is missed.", rich_help_panel=REPORT
    ),
]
Reports = Annotated[
    list[Path] | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write tables, plots and a gallery (.html), or a summary (.md); repeatable.",
        rich_help_panel=REPORT,
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write JUnit XML: one case per edit and per gate.", rich_help_panel=REPORT),
]


@dataclass(frozen=True)
class Outlets:
    """Files to write, and gates as they were typed."""

    reports: Sequence[Path] = ()
    junit: Path | None = None
    gates: Sequence[str] = ()
    strict: bool = False
    """Whether a gate with a warning is missed."""

    def check(self) -> None:
        """Check that the files can be written.

        Raises:
            UsageError, StateError: see `check_outlets`.
        """
        from more_cli.render.outlets import check_outlets

        check_outlets(self.reports, self.junit)

    def gates_on(self, names: Sequence[str] = ()) -> list[Gate]:
        """Parse the gates; their metrics must be among `names` if any are given.

        Raises:
            UsageError: not a gate.
        """
        from more_cli.evaluation.gates import parse_gate

        return [parse_gate(text, names, strict=self.strict) for text in self.gates]

    def write(self, page: Page) -> None:
        """Write the files, then check the gates.

        Raises:
            GateError: one was not.
            StateError, ResourceError: a file cannot be written.
        """
        from more_cli.evaluation.gates import require
        from more_cli.render.outlets import write_outlets

        write_outlets(page, self.reports, self.junit)
        require(page.gates)


def show_gates(output: Output, gates: Sequence[Judgement]) -> None:
    """Show whether each gate was met."""
    if gates:
        output.line()
        output.table(
            ("gate", "", "measured"),
            [(str(result.gate), "met" if result.met else "MISSED", result.reason) for result in gates],
        )
