"""`more eval --suite mme`: yes/no scores of the base and of the state, as a table and as JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from more_cli.cli.outlets import Outlets, show_gates
from more_cli.cli.output import Output
from more_cli.errors import UsageError
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.model.machine import Machine
    from more_cli.ops.capability import CapabilityReport
    from more_cli.store.target import Target
    from more_cli.suites.load import YesNoSuite


def evaluate_capability(output: Output, suite: YesNoSuite, target: Target, machine: Machine, files: Outlets) -> None:
    """Ask base and state a suite's questions and show the scores.

    Raises:
        UsageError: there are gates but no state.
        GateError: a gate was missed.
    """
    from more_cli.evaluation.gates import judge
    from more_cli.ops.capability import evaluate_capability as run
    from more_cli.ops.capability import gate_names
    from more_cli.render.pages import of_capability

    gates = files.gates_on(gate_names(suite))
    if gates and not target.sidecar.exists():
        hint = "name MODEL or --state, or create the state with `more edit MODEL EDITS`"
        raise UsageError(f"`--gate` on {suite.name} needs a state: there is no `{target.sidecar}`", hint)
    with output.progress() as progress:
        report = run(suite, target, machine, progress)
    report = replace(report, gates=judge(gates, report.gated))
    files.write(of_capability(report), lambda: _show_capability(output, report))


def _show_capability(output: Output, report: CapabilityReport) -> None:
    from more_cli.render.pages import yes_no_cells

    if output.as_json:
        from more_cli.outputs.evaluations import CapabilityOutput

        output.json(CapabilityOutput.of_report(report))
    output.replayed(report.replayed)
    after = f" and after {counted(report.edits, 'edit')}" if report.state else " only, without a state"
    output.line(f"{report.suite.name}: the untouched base{after}")
    rows: list[tuple[object, ...]] = []
    for name, base in report.base.categories.items():
        rows.append((name, base.questions, *yes_no_cells(base), *_after(report, name)))
    columns = ("category", "questions", "accuracy", "accuracy+", "score", "unparsable")
    edited = ("edited: accuracy", "edited: score", "edited: unparsable", "change of accuracy") if report.state else ()
    output.table((*columns, *edited), rows, numbers=(*columns[1:], *edited))
    for name, total in report.base.totals.items():
        moved = f" -> {report.state.totals[name].score:.1f}" if report.state else ""
        output.line(f"{name}: {total.score:.1f}{moved} of {total.maximum:.0f}")
    output.line(f"accuracy {report.base.accuracy:.3f}, accuracy+ {report.base.accuracy_plus:.3f}")
    if report.state is not None:
        change = report.changes["all"]
        interval = f"95 % interval {change.between('+.3f')} over {counted(change.n, 'image')}"
        output.line(f"change of accuracy {change.value:+.3f}, {interval}")
    show_gates(output, report.gates)


def _after(report: CapabilityReport, name: str) -> tuple[str, ...]:
    from more_cli.render.pages import yes_no_cells

    if report.state is None:
        return ()
    accuracy, _, score, unparsable = yes_no_cells(report.state.categories[name])
    change = report.changes[name]
    return accuracy, score, unparsable, f"{change.value:+.3f} ({change.between('+.3f')})"
