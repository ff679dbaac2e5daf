"""Scores, gates and drifts: objects of several outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from more_cli.evaluation.names import is_locality, metric_of
from more_cli.outputs.base import Number, Part

if TYPE_CHECKING:
    from more_cli.evaluation import per_edit
    from more_cli.evaluation.gates import Judgement
    from more_cli.evaluation.metrics import Estimate
    from more_cli.evaluation.probes import ProbeScore
    from more_cli.ops import drift


class Mean(Part):
    """A mean with its 95 % interval over edits: probes of one edit hold or fail together."""

    value: Number | None
    """the mean; `null` where nothing was measured"""
    low: Number | None
    """lower end of the 95 % interval"""
    high: Number | None
    """upper end of the 95 % interval"""
    n: int
    """values that the mean is over"""
    interval: str
    """how the interval was computed: `wilson` for proportions if the probes of each edit agree, else `bootstrap`"""


class Score(Mean):
    """One number of a report."""

    baseline: str | None
    """locality only: what is compared with, `base` or `prev` (the model before each edit)"""
    mask: str
    """which tokens count"""
    protocol: str
    """`final`, `online`, `lag` or `single`"""


class ProbeAnswer(Part):
    """What the edited model says to one probe."""

    kind: str
    """`rel` (the edit itself), `gen_text`, `gen_image`, `portability`, `loc_text` or `loc_image`"""
    question: str
    """the question"""
    images: list[str]
    """SHA-256 of each image"""
    expected: str
    """the target or, for locality, the answer of the baseline"""
    answer: str | None
    """greedy answer of the edited model; `null` where it could not be asked"""
    holds: bool | None
    """whether that is as expected; `null` where it was not measured"""


class EditScores(Part):
    """What became of one edit, or of one question of a file."""

    id: str
    """name of the edit or question"""
    question: str
    """its question"""
    target: str | None
    """its target"""
    answer: str | None
    """greedy answer of the edited model; `null` where it could not be asked"""
    base: str | None
    """greedy answer of the base; with `--report` or `--suite` only"""
    before: str | None
    """the same as `base`"""
    verdict: str
    """`holds`, `does not hold` or `refused`; of a question without a target `unchanged` or `changed`"""
    probes: str
    """SHA-256 of its probes: `compare --paired` compares only equal ones"""
    values: dict[str, list[Number]]
    """values of its probes by metric"""
    answers: list[ProbeAnswer]
    """one per probe, the edit's own question first"""


class HubPin(Part):
    """A commit on the hub."""

    repo: str
    """id of the repository"""
    commit: str
    """hash of the commit"""


class FailedEdit(Part):
    """An edit that was asked for, and was refused or not learnt."""

    id: str
    """name of the edit"""
    status: str
    """`refused` or `not-learnt`"""
    reason: str
    """why, and what may help; can be empty in ledgers of older versions"""


class Gate(Part):
    """The result of a gate."""

    gate: str
    """the gate as it was read"""
    metric: str
    """full name of the metric"""
    bound: str
    """what is compared: `value`, or the `low` or `high` end of the interval"""
    operator: str
    """how it is compared"""
    threshold: Number
    """what it is compared with"""
    actual: Number | None
    """what was measured; `null` where nothing was"""
    met: bool
    """whether the gate was met"""
    reason: str
    """what was measured, in words"""
    warning: str | None
    """why the verdict is unsure: an interval over too few samples"""


class Drift(Part):
    """How far the watched anchors have moved from the base: the last known KL divergence of each, in nats per token."""

    watched: int
    """watched anchors"""
    seen: int
    """of these, those that were looked at; the following are over them"""
    mean: Number | None
    """mean; `null` where none was looked at yet"""
    largest: Number | None
    """the largest"""
    above: int
    """anchors above `max_drift`"""
    max_drift: Number
    """`anchors.max_drift` of the recipe"""

    @classmethod
    def of_drift(cls, found: drift.Drift | None) -> Self | None:
        """Make it of the drift of the watched anchors, if there are any."""
        if found is None:
            return None
        last = found.curve[-1] if found.curve else None
        ends = {"mean": last and last.mean, "largest": last and last.largest}
        return cls.of(found, seen=len(found.seen), above=len(found.above), **ends)


class _DriftAfter(Part):
    edits: int
    """edits until then; an edit after which no anchor was looked at has no place here"""
    mean: Number
    """mean over the anchors that were looked at until then"""
    largest: Number
    """the largest of them"""


class DriftCurve(Drift):
    """The drift of the watched anchors, and how it went."""

    curve: list[_DriftAfter]


def gates_of(results: Iterable[Judgement]) -> list[Gate]:
    """Return the results of gates."""
    return [
        Gate.of(
            result,
            gate=str(result.gate),
            metric=result.gate.metric,
            bound=result.gate.bound,
            operator=result.gate.operator,
            threshold=result.gate.threshold,
            warning=result.warning or None,
        )
        for result in results
    ]


def metrics_of(estimates: Mapping[str, Estimate], protocol: str, baseline: str) -> dict[str, Score]:
    """Return metrics, each with its mask, locality baseline and protocol."""
    return {
        name: Score.of(
            value, mask=metric_of(name).mask, baseline=baseline if is_locality(name) else None, protocol=protocol
        )
        for name, value in estimates.items()
    }


def edit_scores(scores: per_edit.EditScores, base: str | None) -> EditScores:
    """Return the scores of one edit; `base` is the base's answer."""
    shown = scores.shown
    return EditScores.of(
        scores,
        question=shown.probe.query.question,
        target=shown.probe.target,
        answer=shown.answer,
        base=base,
        before=base,
        values=scores.values(),
        answers=[_answer(score) for score in scores.scores],
    )


def _answer(score: ProbeScore) -> ProbeAnswer:
    probe = score.probe
    images = [image.sha256 for image in probe.query.images]
    return ProbeAnswer.of(score, kind=probe.kind, question=probe.query.question, images=images)
