"""What scores look like: tables for people, one object for programs that has all to get the numbers again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from more_cli.cli.output import Output
from more_cli.evaluation.names import is_locality, metric_of

if TYPE_CHECKING:
    from more_cli.evaluation.gates import Judgement
    from more_cli.evaluation.metrics import Estimate
    from more_cli.evaluation.paired import Difference
    from more_cli.evaluation.per_edit import EditScores
    from more_cli.ops.compare import Comparison
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
    if report.gates:
        output.line()
        output.table(
            ("gate", "", "measured"),
            [(str(found.gate), "met" if found.met else "MISSED", found.reason) for found in report.gates],
        )


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
    """Return an evaluation as JSON values; a number that is not finite becomes null."""
    return {
        "state": str(report.target.sidecar),
        "source": report.source,
        "protocol": report.protocol,
        "baseline": report.baseline,
        "edits": report.edits,
        "replayed": report.replayed,
        "metrics": metrics_values(report.estimates, report.protocol, report.baseline),
        "retention": {ages: estimate_values(value) for ages, value in report.retention.items()},
        "gates": [_gate_values(found) for found in report.gates],
        "first_forgotten": report.first_forgotten,
        "failing": [
            {
                "id": score.probe.edit,
                "question": score.probe.query.question,
                "target": score.probe.target,
                "answer": score.answer,
                "values": {name: _finite(value) for name, value in score.values.items()},
            }
            for score in report.failing
        ],
        "per_edit": [_edit_values(scores, report.base_answers.get(scores.id)) for scores in report.per_edit],
        "reproduce": report.reproduce,
    }


def show_comparison(output: Output, found: Comparison) -> None:
    """Show every metric of two runs, and what the runs were made with where it differs."""
    output.json(
        "more.compare/1",
        {
            "first": str(found.first),
            "second": str(found.second),
            "source": found.run.source,
            "protocol": found.run.protocol,
            "baseline": found.run.baseline,
            "edits": len(found.run.per_edit),
            "test": "exact two-sided sign test over edits",
            "metrics": {name: asdict(value) | {"n": value.n} for name, value in found.metrics.items()},
            "skipped": found.skipped,
            "differ": found.differ,
        },
    )
    output.line(
        f"{len(found.run.per_edit)} edits in both, protocol {found.run.protocol}, locality against "
        f"{found.run.baseline}; {found.second} minus {found.first}, p of the exact sign test"
    )
    output.table(
        ("metric", "first", "second", "difference", "95 % interval", "up", "down", "same", "p"),
        [(name, *_difference_cells(value)) for name, value in found.metrics.items()],
        numbers=("first", "second", "difference", "up", "down", "same", "p"),
    )
    for name, reason in found.skipped.items():
        output.note(f"note: {name} is left out: {reason}")
    output.line(f"they differ in: {', '.join(found.differ) or 'nothing that is recorded'}")


def estimate_cells(value: Estimate) -> tuple[str, str, int]:
    """Return value, interval and n as table cells."""
    return f"{value.value:.3f}", f"{value.low:.3f} to {value.high:.3f}", value.n


def _difference_cells(value: Difference) -> tuple[object, ...]:
    interval = f"{value.low:+.3f} to {value.high:+.3f}"
    counts = (value.up, value.down, value.same)
    return f"{value.first:.3f}", f"{value.second:.3f}", f"{value.difference:+.3f}", interval, *counts, f"{value.p:.3g}"


def _edit_values(scores: EditScores, before: str | None) -> dict[str, Any]:
    shown = scores.shown
    return {
        "id": scores.id,
        "probes": scores.probes,
        "question": shown.probe.query.question,
        "target": shown.probe.target,
        "answer": shown.answer,
        "before": before,
        "verdict": scores.verdict,
        "values": {name: [_finite(value) for value in values] for name, values in scores.values().items()},
    }


def _gate_values(found: Judgement) -> dict[str, Any]:
    gate = found.gate
    return {
        "gate": str(gate),
        "metric": gate.metric,
        "bound": gate.bound,
        "operator": gate.operator,
        "threshold": gate.threshold,
        "actual": None if found.actual is None else _finite(found.actual),
        "met": found.met,
        "reason": found.reason,
    }


def metrics_values(found: Mapping[str, Estimate], protocol: str, baseline: str) -> dict[str, Any]:
    """Return metrics as JSON values, each with what it is over, against and when it was measured."""
    return {
        name: estimate_values(value)
        | {
            "mask": metric_of(name).mask,
            "baseline": baseline if is_locality(name) else None,
            "protocol": protocol,
        }
        for name, value in found.items()
    }


def estimate_values(value: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON values."""
    return {name: _finite(item) if isinstance(item, float) else item for name, item in asdict(value).items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
