"""Scores as table cells and as JSON values, the same in every command that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from more_cli.evaluation.names import is_locality, metric_of

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate
    from more_cli.evaluation.per_edit import EditScores
    from more_cli.evaluation.probes import ProbeScore
    from more_cli.ops.drift import Drift


def cell(value: Estimate | None) -> str:
    """Return a value as a table cell."""
    return "" if value is None else f"{value.value:.3f}"


def estimate_cells(value: Estimate) -> tuple[str, str, int]:
    """Return value, interval and n as table cells."""
    return f"{value.value:.3f}", f"{value.low:.3f} to {value.high:.3f}", value.n


def values_of_edit(scores: EditScores, before: str | None) -> dict[str, Any]:
    """Return the scores of one edit as JSON values; `before` is the base's answer."""
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
        "answers": [_answer_values(score) for score in scores.scores],
    }


def _answer_values(score: ProbeScore) -> dict[str, Any]:
    return {
        "kind": score.probe.kind,
        "question": score.probe.query.question,
        "images": [image.sha256 for image in score.probe.query.images],
        "expected": score.expected,
        "answer": score.answer,
        "holds": score.holds,
    }


def metrics_values(estimates: Mapping[str, Estimate], protocol: str, baseline: str) -> dict[str, Any]:
    """Return metrics as JSON values, each with its mask, locality baseline and protocol."""
    return {
        name: asdict(value)
        | {
            "mask": metric_of(name).mask,
            "baseline": baseline if is_locality(name) else None,
            "protocol": protocol,
        }
        for name, value in estimates.items()
    }


def drift_values(drift: Drift) -> dict[str, Any]:
    """Return the drift of the watched anchors as JSON values."""
    last = drift.curve[-1] if drift.curve else None
    return {
        "watched": drift.watched,
        "seen": len(drift.seen),
        "mean": last.mean if last else None,
        "largest": last.largest if last else None,
        "above": len(drift.above),
        "max_drift": drift.max_drift,
    }
