"""What `more eval --suite` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from more_cli.outputs.base import LEFT_OUT, FilePath, Number, Part, Printed, Seconds
from more_cli.outputs.evaluations import Machine
from more_cli.outputs.scores import EditScores, Gate, Mean, Score, edit_scores, gates_of, metrics_of
from more_cli.outputs.states import Calibration

if TYPE_CHECKING:
    from more_cli.runner.report import SuiteReport


class ReproduceRun(Machine):
    """What is needed to get the same numbers again from a suite."""

    suite: str
    """name of the suite"""
    file: str
    """SHA-256 of the suite's file"""
    edits: str
    """SHA-256 of the edits and their probes"""
    generation: str = LEFT_OUT
    """with a `generation_config.json` beside the weights: its SHA-256"""
    order: int = LEFT_OUT
    """with `--order`: seed of the order of the edits"""
    writing: str = LEFT_OUT
    """with `--batch` or `--consolidate`: how the edits were written together: `batch`, `all` or `anew`"""
    editor: str
    """name of the editor"""
    constants: dict[str, Any]
    """the editor's constants in full"""
    seed: int | None
    """seed of the editor"""
    anchors: str | None
    """SHA-256 of the anchors"""
    calibration: Calibration = LEFT_OUT
    """with `--calibrate`: what was tried and chosen"""
    fit: str = LEFT_OUT
    """SHA-256 of everything that decides the fit of an editor that is fitted before its first edit"""


class _SuiteName(Part):
    name: str
    """name of the suite"""
    from_: str = Field(alias="from")
    """`embedded`, or the folder of `--data-root`"""
    notices: list[str]
    """what to know before using a score"""


class SuiteTask(Part):
    """Suite, model and protocol of a run."""

    model: FilePath
    suite: _SuiteName
    edits: int
    """edits made"""
    available: int
    """edits that the suite has"""
    headline: str
    """protocol and checkpoint of `metrics`"""
    protocol: str
    """protocol of `metrics`"""
    baseline: str
    """what locality compares with: `base` or `prev`"""
    prefix: str
    """answer that locality is scored on: the baseline's `own`, or `gold`"""

    @classmethod
    def of_run(cls, report: SuiteReport, **values: Any) -> Self:
        """Make it of the report of a run."""
        return cls.of(
            report,
            suite=_SuiteName.of(report.suite, from_=report.suite.source),
            edits=len(report.edits),
            protocol=report.headline.partition("@")[0],
            baseline=report.yardstick.baseline,
            prefix=report.yardstick.prefix,
            **values,
        )


class Fit(Part):
    """What an editor learnt before its first edit, on edits that no score is measured on."""

    key: str
    """SHA-256 of everything that decides the fit"""
    facts: dict[str, Any]
    """what the editor says about it, such as iterations and losses"""
    records: int
    """edits it was fitted on"""
    held_out: int
    """other edits that check it"""
    right: int
    """of these, those that it learns, each alone"""
    undertrained: bool
    """whether it learns less than 90 % of them: its scores then say little about the method"""
    seconds: Number
    """time of the fit"""


class Footprint(Part):
    """What an editor keeps."""

    fixed: int
    """bytes that do not grow with the number of edits"""
    growing: int
    """bytes of what is kept for the edits so far"""
    fitted: int
    """parameters learnt before the first edit"""


class _Preset(Part):
    name: str
    """name of the preset"""
    title: str
    """what it reproduces"""
    columns: dict[str, str]
    """our metric for each of the source's columns"""
    notices: list[str]
    """what could not be reproduced"""
    protocols: dict[str, dict[str, Mean]]
    """means by protocol and column"""


class SuiteRun(Part):
    """Scores of one editor on a suite."""

    editor: str
    """name of the editor"""
    metrics: dict[str, Score]
    """scores by metric"""
    protocols: dict[str, dict[str, Score]]
    """the same by `protocol@checkpoint`, such as `online@10`"""
    preset: _Preset | None
    """with `--metrics`: the scores under the source's names"""
    counts: dict[str, int]
    """edits by status"""
    left_out: int
    """locality probes that are anchors too and were not scored"""
    retention: dict[str, Mean]
    """`rel.gen_exact` by how many edits came after"""
    forgetting: Mean | None
    """`rel.gen_exact` right after an edit minus at the end"""
    forgetting_by_lag: dict[str, Mean]
    """the same by how many edits came after"""
    first_failing: str | None
    """id of the first edit that does not hold"""
    cost: Number | None
    """mean cost of an edit, in samples forward and backward"""
    base_asked: int
    """questions of edits and locality probes that the base was asked; the answers to others were cached"""
    resumed: int
    """steps read from the cache"""
    wall_seconds: Seconds
    """time of the run in seconds"""
    fit: Fit | None
    """how the editor was fitted; `null` for one that needs none"""
    notices: list[str]
    """what to know about the scores, such as how the editor differs from what was published"""
    footprints: dict[str, Footprint]
    """what the editor kept, by number of edits"""
    reproduce: ReproduceRun

    @classmethod
    def of_report(cls, report: SuiteReport) -> SuiteRun:
        """Make it of the report of a run."""
        baseline, preset = report.yardstick.baseline, report.preset
        protocols = {
            readout: metrics_of(estimates, readout.partition("@")[0], baseline)
            for readout, estimates in report.estimates.items()
        }
        return cls.of(
            report,
            metrics=protocols[report.headline],
            protocols=protocols,
            preset=preset and _Preset.of(preset, protocols=report.preset_values),
            counts=report.statuses,
            retention={str(lag): value for lag, value in report.retention.items()},
            forgetting_by_lag={str(lag): value for lag, value in report.lost.items()},
            base_asked=report.work.base_asked,
            resumed=report.work.resumed,
            wall_seconds=report.work.seconds,
            footprints={str(edits): footprint for edits, footprint in report.footprints.items()},
        )


class _CellScore(Part):
    kind: str
    """kind of the question, such as `rel`"""
    hop: int | None
    """portability: steps of reasoning"""
    answer: str
    """greedy answer of the edited model"""
    base: str
    """locality: answer of the baseline; else empty"""
    values: dict[str, Number]
    """values by metric"""


class _Cell(Part):
    edit: int
    """number of the edit"""
    after: int
    """after how many edits it was scored"""
    scores: list[_CellScore]


class _Outcome(Part):
    status: str
    """its status"""
    reason: str
    """why it was refused or not learnt; empty otherwise"""
    answer_before: str | None
    """before the edit, the most likely token at each position of the target, given the target before it"""
    answer_after: str | None
    """the same after the edit"""
    nll_before: Number | None
    """mean negative log-likelihood of the target's tokens before it, in nats"""
    nll_after: Number | None
    """the same after the edit"""
    writes: int
    """writes made for it"""
    cost: Number | None
    """samples sent forward and backward"""


class _Step(Part):
    t: int
    """number of the edit, from 1"""
    id: str
    """its name"""
    outcome: _Outcome
    seconds: Number
    """its time in seconds"""
    catch_up: Number
    """samples sent forward and backward for work on earlier edits"""


class SuiteEvalOutput(
    SuiteRun,
    SuiteTask,
    Printed,
    schema="more.eval/1",
    command="more eval [MODEL] --suite NAME --json",
    example="eval.suite",
):
    """An editor on a suite, from the untouched base."""

    source: str
    """name of the suite"""
    per_edit: list[EditScores]
    """one per edit"""
    matrix: list[_Cell]
    stream: list[_Step]
    gates: list[Gate]

    @classmethod
    def of_report(cls, report: SuiteReport) -> SuiteEvalOutput:
        """Make it of the report of a run: its scores, with those of every edit and probe."""
        base = report.base_answers
        return cls.of_run(
            report,
            **dict(SuiteRun.of_report(report)),
            source=report.suite.name,
            gates=gates_of(report.gates),
            stream=[
                {key: line[key] for key in ("t", "id", "seconds", "catch_up")}
                | {"outcome": {key: value for key, value in line["outcome"].items() if key != "looks"}}
                for line in report.lines
            ],
            matrix=[{"after": t, "edit": i, "scores": scores} for (t, i), scores in sorted(report.cells.items())],
            per_edit=[edit_scores(scores, base[scores.id]) for scores in report.per_edit],
        )
