"""`more eval --suite mme`: yes/no scores of the base and the state, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from more_cli.cli.outlets import Outlets, gate_values, show_gates
from more_cli.cli.output import Output
from more_cli.errors import UsageError

if TYPE_CHECKING:
    from more_cli.experiments.capability import Capability, CapabilityReport
    from more_cli.model.machine import Machine
    from more_cli.ops.session import Target
    from more_cli.suites.load import YesNoSuite
    from more_cli.suites.yes_no import YesNoScore


def evaluate_capability(output: Output, suite: YesNoSuite, target: Target, machine: Machine, files: Outlets) -> None:
    """Ask a suite's questions and show what was measured.

    Raises:
        UsageError: a gate on what edits changed, and no state.
    """
    from more_cli.evaluation.gates import judge
    from more_cli.experiments.capability import evaluate_capability as run
    from more_cli.experiments.capability import gate_names
    from more_cli.render.pages import of_capability

    gates = files.gates_on(gate_names(suite))
    if gates and not target.sidecar.exists():
        raise UsageError(
            f"`--gate` on {suite.name}: there is no state `{target.sidecar}` to compare with the base",
            "make one with `more edit`",
        )
    with output.progress() as progress:
        report = run(suite, target, machine, progress)
    report = replace(report, gates=judge(gates, report.gated))
    show_capability(output, report)
    files.write(of_capability(report))


def show_capability(output: Output, report: CapabilityReport) -> None:
    """Show accuracy, accuracy+, score and unparsable answers per category, and what the state changed."""
    if output.as_json:
        output.json("more.capability/1", capability_values(report))
    if report.replayed:
        output.note(f"replayed {report.replayed} edits that the ledger had and the state did not")
    after = f" and after {report.edits} edits" if report.state else "; no state lies beside it"
    output.line(f"{report.suite.name}: the untouched base{after}")
    rows: list[tuple[object, ...]] = []
    for name, base in report.base.categories.items():
        rows.append((name, base.questions, *_cells(base), *_after(report, name)))
    columns = ("category", "questions", "accuracy", "accuracy+", "score", "unparsable")
    edited = ("edited: accuracy", "edited: score", "edited: unparsable", "change of accuracy") if report.state else ()
    output.table((*columns, *edited), rows, numbers=(*columns[1:], *edited))
    for name, total in report.base.totals.items():
        moved = f" -> {report.state.totals[name].score:.1f}" if report.state else ""
        output.line(f"{name}: {total.score:.1f}{moved} of {total.maximum:.0f}")
    output.line(f"accuracy {report.base.accuracy:.3f}, accuracy+ {report.base.accuracy_plus:.3f}")
    if report.state is not None:
        found = report.changes["all"]
        interval = f"95 % interval {found.low:+.3f} to {found.high:+.3f} over {found.n} images"
        output.line(f"change of accuracy {found.value:+.3f}, {interval}")
    show_gates(output, report.gates)


def capability_values(report: CapabilityReport) -> dict[str, Any]:
    """Return a capability report as JSON values."""
    return {
        "suite": report.suite.name,
        "from": report.suite.source,
        "notices": list(report.suite.notices),
        "model": str(report.target.model),
        "state": str(report.target.sidecar) if report.state else None,
        "edits": report.edits,
        "replayed": report.replayed,
        "base": _values(report.base),
        "edited": _values(report.state) if report.state else None,
        "gates": [gate_values(found) for found in report.gates],
        "change": {name: asdict(value) for name, value in report.changes.items()},
        "reproduce": report.reproduce,
    }


def _values(found: Capability) -> dict[str, Any]:
    return {
        "accuracy": found.accuracy,
        "accuracy_plus": found.accuracy_plus,
        "unparsable_rate": found.unparsable_rate,
        "totals": {name: asdict(total) for name, total in found.totals.items()},
        "categories": {
            name: asdict(score)
            | {
                "accuracy": score.accuracy,
                "accuracy_plus": score.accuracy_plus,
                "score": score.score,
                "unparsable_rate": score.unparsable_rate,
            }
            for name, score in found.categories.items()
        },
    }


def _cells(score: YesNoScore) -> tuple[str, ...]:
    return f"{score.accuracy:.3f}", f"{score.accuracy_plus:.3f}", f"{score.score:.1f}", f"{score.unparsable_rate:.3f}"


def _after(report: CapabilityReport, name: str) -> tuple[str, ...]:
    if report.state is None:
        return ()
    score, found = report.state.categories[name], report.changes[name]
    moved = f"{found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    return f"{score.accuracy:.3f}", f"{score.score:.1f}", f"{score.unparsable_rate:.3f}", moved
