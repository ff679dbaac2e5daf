"""What `more eval` of a state, `eval --suite mme`, `ask` and `demo` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from more_cli.outputs.base import LEFT_OUT, FilePath, Number, Part, Printed
from more_cli.outputs.edits import WholeStream
from more_cli.outputs.products import Source
from more_cli.outputs.scores import (
    DriftCurve,
    EditScores,
    FailedEdit,
    Gate,
    Mean,
    Score,
    edit_scores,
    gates_of,
    metrics_of,
)

if TYPE_CHECKING:
    from more_cli.ops.capability import CapabilityReport
    from more_cli.ops.evaluate import EvalReport


class Reproduce(Source):
    """What is needed to get the same numbers again from a state.

    A `merge` and an `export` write most of it as `more.json`.
    """

    schema_: str = Field(alias="schema")
    """`more.provenance/1`"""
    template: str
    """chat template of the prompts"""
    intervals: dict[str, int]
    """resamples and seed of the bootstrap"""
    probes: str = LEFT_OUT
    """with `--probes`: SHA-256 of the file"""


class _Failing(Part):
    id: str
    """an edit or question that does not hold"""
    question: str
    """its question"""
    target: str | None
    """its target"""
    answer: str | None
    """greedy answer of the edited model"""
    values: dict[str, Number]
    """its values by metric"""
    status: str | None
    """of an edit that does not stand: its status"""
    reason: str | None
    """and why"""


class EvalOutput(Printed, schema="more.eval/2", command="more eval [MODEL] --json"):
    """Scores of a state; with `--probes FILE` of a file of questions, then without locality and retention."""

    state: FilePath
    source: str
    """`state`, or the file of `--probes`"""
    edits: int
    """edits scored"""
    left_out: int
    """locality probes, or questions of the file, that are anchors too and were not scored"""
    drift: DriftCurve | None
    """how far the watched anchors have moved, by the ledger; `null` without any"""
    replayed: int
    protocol: str
    """protocol of `metrics`"""
    baseline: str
    """what locality compares with"""
    metrics: dict[str, Score]
    """scores by metric"""
    per_edit: list[EditScores]
    """one per edit or question"""
    failing: list[_Failing]
    failed: list[FailedEdit]
    """edits that do not stand; a refused one counts as wrong in `rel` and its variants"""
    first_forgotten: str | None
    """id of the oldest edit that does not hold"""
    retention: dict[str, Mean]
    """`rel.gen_exact` by how many edits came after"""
    gates: list[Gate]
    reproduce: Reproduce

    @classmethod
    def of_report(cls, report: EvalReport) -> EvalOutput:
        """Make it of the scores of a state."""
        return cls.of(
            report,
            state=report.target.sidecar,
            drift=DriftCurve.of_drift(report.drift),
            metrics=metrics_of(report.estimates, report.protocol, report.baseline),
            per_edit=[edit_scores(scores, report.base_answers.get(scores.id)) for scores in report.per_edit],
            failing=[
                _Failing.of(
                    scores.shown,
                    id=scores.id,
                    question=scores.shown.probe.query.question,
                    target=scores.shown.probe.target,
                    status=scores.failed.status if scores.failed else None,
                    reason=scores.failed.reason if scores.failed else None,
                )
                for scores in report.failing
            ],
            gates=gates_of(report.gates),
        )


class YesNoScore(Part):
    """Answers to the yes/no questions of one category."""

    questions: int
    """questions"""
    right: int
    """questions answered right"""
    images: int
    """images, two questions each"""
    images_right: int
    """images with both questions answered right"""
    unparsable: int
    """answers that are neither yes nor no"""
    accuracy: Number
    """part of the questions answered right"""
    accuracy_plus: Number
    """part of the images with both questions answered right"""
    score: Number
    """accuracy plus accuracy+, in percent"""
    unparsable_rate: Number
    """part of the answers that are neither yes nor no"""


class Total(Part):
    """The sum of the scores of several categories."""

    score: Number
    """the sum"""
    maximum: Number
    """the highest possible sum: 200 for each category"""


class Categories(Part, like=YesNoScore):
    """Answers to the yes/no questions of a suite."""

    accuracy: Number
    accuracy_plus: Number
    unparsable_rate: Number
    categories: dict[str, YesNoScore]
    """the same by category"""
    totals: dict[str, Total]
    """sums of the perception and of the cognition categories"""


class Machine(Part):
    """What all results depend on."""

    base: dict[str, str]
    """SHA-256 of config, shard headers, tokenizer, templates and of every site's tensor in the base, by name"""
    template: str
    """chat template of the prompts"""
    versions: dict[str, str]
    """versions of `more` and its libraries, device, dtype, attention kernel and threads"""


class ReproduceAnswers(Machine):
    """What is needed to get the same yes/no answers again."""

    parser: str
    """how a yes or no is read from an answer"""


class CapabilityOutput(Printed, schema="more.capability/1", command="more eval [MODEL] --suite mme --json"):
    """Yes/no answers of the base and of the state."""

    model: FilePath
    state: FilePath | None
    suite: str
    """name of the suite"""
    from_: str = Field(alias="from")
    """`embedded`, or the folder of `--data-root`"""
    notices: list[str]
    """what to know before using a score"""
    edits: int | None
    """edits in the state"""
    replayed: int
    base: Categories
    """answers of the base"""
    edited: Categories | None
    """answers of the edited model"""
    change: dict[str, Mean]
    """accuracy of the edited model minus the base's, by category and over all"""
    gates: list[Gate]
    reproduce: ReproduceAnswers

    @classmethod
    def of_report(cls, report: CapabilityReport) -> CapabilityOutput:
        """Make it of the answers to a suite of yes/no questions."""
        return cls.of(
            report,
            model=report.target.model,
            state=report.target.sidecar if report.state else None,
            suite=report.suite.name,
            from_=report.suite.source,
            notices=report.suite.notices,
            edited=report.state,
            change=report.changes,
            gates=gates_of(report.gates),
        )


class ModelAnswer(Part):
    """What one model says, and how likely the models that were asked find it."""

    text: str
    """greedy answer; it ends in `...` where it was cut off"""
    nll: dict[str, Number]
    """mean negative log-likelihood of this answer by each model, in nats per token, its end included"""


class AskOutput(Printed, schema="more.ask/1", command="more ask [MODEL] [QUESTION] --json"):
    """The answers to one question."""

    model: FilePath
    state: FilePath | None
    """path of the state; `null` without one"""
    merged: FilePath | None
    """path of the merged checkpoint, where one was asked"""
    images: list[str]
    """SHA-256 of each picture"""
    question: str
    """what was asked"""
    answers: dict[str, ModelAnswer]
    """the answer of each model: `base`, `edited` with a state, `merged` with `--merged`"""


class DemoOutput(Printed, schema="more.demo/2", command="more demo [DIR] --json"):
    """The demo's edits and scores."""

    folder: FilePath
    """folder with model, edits and results"""
    base_answers: dict[str, str]
    """answer of the base by edit"""
    edit: WholeStream
    """as `more edit` prints it"""
    holding: int
    """edits that hold after the last one"""
    metrics: dict[str, Mean]
    """means by metric"""
    lost_in_merge: list[str]
    """ids of edits lost to rounding"""
    wall_seconds: float


class DemoFilesOutput(
    Printed, schema="more.demo.files/1", command="more demo --files [DIR] --json", example="demo.files"
):
    """The folder of a demo; `more demo` without `--files` prints it too where the demo is there already."""

    folder: FilePath
    """folder with the model, pictures and edits"""
    written: bool
    """false if it was there already and nothing was written"""
