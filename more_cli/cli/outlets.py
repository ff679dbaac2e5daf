"""Where an evaluation goes beside the terminal, and the gates that it must pass: what every `eval` has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli.output import Output

if TYPE_CHECKING:
    from more_cli.evaluation.gates import Gate, Judgement
    from more_cli.render.page import Page

Gates = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        metavar="METRIC>=NUMBER",
        help="Exit with 6 if missed; METRIC.low or .high is an end of its interval; repeatable.",
    ),
]
Reports = Annotated[
    list[Path] | None,
    typer.Option(
        "--report", metavar="FILE", help="Write tables, plots and a gallery (.html), or a summary (.md); repeatable."
    ),
]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML: one case per edit and per gate.")]


@dataclass(frozen=True)
class Outlets:
    """Files to write, and gates as they were typed."""

    reports: Sequence[Path] = ()
    junit: Path | None = None
    gates: Sequence[str] = ()

    def check(self) -> None:
        """Refuse files that could not be written.

        Raises:
            UsageError, StateError: see `check_outlets`.
        """
        from more_cli.render.outlets import check_outlets

        check_outlets(self.reports, self.junit)

    def gates_on(self, names: Sequence[str] = ()) -> list[Gate]:
        """Read the gates, each on one of `names`.

        Raises:
            UsageError: not a gate.
        """
        from more_cli.evaluation.gates import parse_gate

        return [parse_gate(text, names) for text in self.gates]

    def write(self, page: Page) -> None:
        """Write the files, then go on only if every gate was met.

        Raises:
            GateError: one was not.
            StateError, ResourceError: a file cannot be written.
        """
        from more_cli.evaluation.gates import require
        from more_cli.render.outlets import write_outlets

        write_outlets(page, self.reports, self.junit)
        require(page.gates)


def show_gates(output: Output, gates: Sequence[Judgement]) -> None:
    """Show what became of each gate."""
    if gates:
        output.line()
        output.table(
            ("gate", "", "measured"),
            [(str(found.gate), "met" if found.met else "MISSED", found.reason) for found in gates],
        )


def gate_values(found: Judgement) -> Mapping[str, Any]:
    """Return what became of a gate as JSON values."""
    gate = found.gate
    return {
        "gate": str(gate),
        "metric": gate.metric,
        "bound": gate.bound,
        "operator": gate.operator,
        "threshold": gate.threshold,
        "actual": found.actual,
        "met": found.met,
        "reason": found.reason,
    }
