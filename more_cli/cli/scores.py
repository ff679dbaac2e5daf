"""What scores look like: tables for people, one object for programs that has all to get the numbers again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from more_cli.cli.outlets import gate_values, show_gates
from more_cli.cli.output import Output
from more_cli.evaluation.names import is_locality, metric_of

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate
    from more_cli.evaluation.per_edit import EditScores
    from more_cli.ops.evaluate import EvalReport

_SHOWN = 20
"""Rows of a list of edits that people see; `--json` has them all."""


def show_eval(output: Output, report: EvalReport) -> None:
    """Show every metric with n and interval, the gates, and the edits that do not hold with their answers."""
    if output.as_json:
        output.json("more.eval/1", eval_values(report))
    if report.replayed:
        output.note(f"replayed {report.replayed} edits that the ledger had and the state did not")
    if not report.estimates:
        output.line("nothing to score: the state has no edits that stand")
    else:
        output.line(f"protocol {report.protocol}, locality against {report.baseline}, {report.scope}")
        _show_numbers(output, report)
    show_gates(output, report.gates)


def _show_numbers(output: Output, report: EvalReport) -> None:
    output.table(
        ("metric", "value", "95 % interval", "n"),
        [(name, *estimate_cells(value)) for name, value in report.told.items()],
        numbers=("value", "n"),
    )
    if len(report.retention) > 1:
        output.line()
        output.table(
            ("edits since", "rel.gen_exact", "95 % interval", "n"),
            [(ages, *estimate_cells(value)) for ages, value in report.retention.items()],
            numbers=("rel.gen_exact", "n"),
        )
    if report.failing:
        output.line()
        oldest = f", the oldest of them {report.first_forgotten}" if report.first_forgotten else ""
        output.line(f"{len(report.failing)} do not hold{oldest}:")
    output.table(
        ("edit", "question", "target", "answer"),
        [(s.probe.edit, s.probe.query.question, s.probe.target, s.answer) for s in report.failing[:_SHOWN]],
    )


def eval_values(report: EvalReport) -> dict[str, Any]:
    """Return an evaluation as JSON values."""
    return {
        "state": str(report.target.sidecar),
        "source": report.source,
        "protocol": report.protocol,
        "baseline": report.baseline,
        "edits": report.edits,
        "replayed": report.replayed,
        "metrics": metrics_values(report.estimates, report.protocol, report.baseline),
        "retention": {ages: asdict(value) for ages, value in report.retention.items()},
        "gates": [gate_values(found) for found in report.gates],
        "first_forgotten": report.first_forgotten,
        "failing": [
            {
                "id": score.probe.edit,
                "question": score.probe.query.question,
                "target": score.probe.target,
                "answer": score.answer,
                "values": score.values,
            }
            for score in report.failing
        ],
        "per_edit": [values_of_edit(scores, report.base_answers.get(scores.id)) for scores in report.per_edit],
        "reproduce": report.reproduce,
    }


def estimate_cells(value: Estimate) -> tuple[str, str, int]:
    """Return value, interval and n as table cells."""
    return f"{value.value:.3f}", f"{value.low:.3f} to {value.high:.3f}", value.n


def values_of_edit(scores: EditScores, before: str | None) -> dict[str, Any]:
    """Return what was measured of one edit as JSON values."""
    shown = scores.shown
    return {
        "id": scores.id,
        "probes": scores.probes,
        "question": shown.probe.query.question,
        "target": shown.probe.target,
        "answer": shown.answer,
        "before": before,
        "verdict": scores.verdict,
        "values": scores.values(),
    }


def metrics_values(found: Mapping[str, Estimate], protocol: str, baseline: str) -> dict[str, Any]:
    """Return metrics as JSON values, each with what it is over, against and when it was measured."""
    return {
        name: asdict(value)
        | {
            "mask": metric_of(name).mask,
            "baseline": baseline if is_locality(name) else None,
            "protocol": protocol,
        }
        for name, value in found.items()
    }
