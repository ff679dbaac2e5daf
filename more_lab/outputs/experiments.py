"""What `more sweep`, `analyze` and `bench` print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from more_cli.outputs.base import FilePath, Number, Part, Printed, Seconds
from more_cli.outputs.scores import Mean

if TYPE_CHECKING:
    from pathlib import Path

    from more_lab.analyses.run import AnalysisReport
    from more_lab.bench.run import BenchReport


class Problem(Part):
    """What a sweep could not do."""

    label: str
    """the trial or checkpoint"""
    reason: str
    """why"""


def problems_of(reasons: Mapping[str, str]) -> list[Problem]:
    """Return what failed by its label."""
    return [Problem(label=label, reason=reason) for label, reason in reasons.items()]


class Trial(Part):
    """A finished trial of a grid."""

    key: str
    """key of a finished trial: a hash of everything that decides its numbers"""
    label: str
    """what differs between it and the others"""


class SweepOutput(Printed, schema="more.sweep/1", command="more sweep FILE -o DIR --json"):
    """The trials of a grid."""

    file: FilePath
    """the sweep file"""
    out: FilePath
    """folder of the results: `results.jsonl` there has the numbers of every trial"""
    trials: list[Trial]
    """those that are finished"""
    repeated: int
    """combinations that are the same trial as another one"""
    problems: list[Problem]
    """what failed, or cannot be run"""


class _Member(Part):
    schema_: str = Field(alias="schema")
    """`more.sweep.member/1`, as in `results.jsonl`"""
    model: str
    """name of the checkpoint's folder in the output"""
    edits: int
    """edits of the stream"""
    counts: dict[str, int]
    """edits by status"""
    failed: list[str]
    """edits that do not stand"""
    state: str
    """its state, below the output folder"""
    written: str
    """what was written, below the output folder; empty for nothing"""
    metrics: dict[str, Mean]
    """metrics of all edits, protocol `final`"""


class SweepFleetOutput(
    Printed, schema="more.sweep.fleet/1", command="more sweep FILE -o DIR --json", example="sweep-fleet"
):
    """The checkpoints of a fleet."""

    file: FilePath
    """the sweep file"""
    out: FilePath
    """folder of the states and of what was written"""
    checkpoints: list[_Member]
    problems: list[Problem]
    """what failed, or cannot be run"""


class PlannedJob(Part):
    """A trial or checkpoint that is not done."""

    key: str
    """key of one that is not done"""
    label: str
    """what differs between it and the others"""
    seconds: Number | None
    """median time of those like it that are done; `null` if there are none"""


class SweepPlanOutput(
    Printed, schema="more.sweep.plan/1", command="more sweep FILE -o DIR --dry-run --json", example="sweep-plan"
):
    """What a sweep would run."""

    file: FilePath
    """the sweep file"""
    done: int
    """trials or checkpoints that are done"""
    jobs: list[PlannedJob]
    """those that are not"""
    problems: list[Problem]
    """what failed, or cannot be run"""


class _Analysis(Part):
    name: str
    """the analysis"""
    title: str
    """what it shows"""
    paper: str
    """where the paper shows it"""


class _KnownAnalysis(_Analysis):
    reads: str
    """what of a run it reads"""


class AnalysesOutput(Printed, schema="more.analyses/1", command="more analyze --json"):
    """The analyses there are."""

    analyses: list[_KnownAnalysis]


class _AnalysedRun(Part):
    folder: FilePath
    """folder of a kept run"""
    label: str
    """its editor, with what differs from the other runs"""
    edits: int
    """edits of the run"""


class Summary(Part):
    """The number that sums up an analysis of one run."""

    run: str
    """label of a run"""
    name: str
    """what was measured"""
    value: Number | None
    """the number that sums it up; `null` if it is not finite, as a lag that is never reached"""
    low: Number | None
    """lower end of its 95 % interval, where one makes sense"""
    high: Number | None
    """upper end of that interval"""


class _DoneAnalysis(_Analysis):
    scalars: list[Summary]
    """its numbers, one for each run"""
    files: list[FilePath]
    """table, then figures"""
    seconds: Seconds
    """how long it took"""


class AnalyzeOutput(Printed, schema="more.analyze/1", command="more analyze NAME --run DIR --out DIR --json"):
    """The numbers and files of analyses."""

    runs: list[_AnalysedRun]
    analyses: list[_DoneAnalysis]
    skipped: dict[str, str]
    """of `all`: why an analysis was left out, by its name"""
    page: FilePath | None
    """of `all`: page with every figure"""
    wall_seconds: Seconds
    """how long all took"""

    @classmethod
    def of_report(cls, report: AnalysisReport, page: Path | None) -> AnalyzeOutput:
        """Make it of what was analysed."""
        return cls.of(
            report,
            runs=[_AnalysedRun.of(run, edits=len(run)) for run in report.runs],
            analyses=[
                _DoneAnalysis.of(done.analysis, scalars=done.result.scalars, files=done.files, seconds=done.seconds)
                for done in report.done
            ],
            page=page,
            wall_seconds=report.seconds,
        )


class Trend(Part):
    """How a quantity changes over a stream, by least squares."""

    median: Number
    """median over the edits"""
    growth: Number | None
    """slope times number of edits, as a part of the median"""
    low: Number | None
    """lower end of its 95 % bootstrap interval over edits"""
    high: Number | None
    """upper end of that interval"""
    n: int
    """edits"""


class _BenchEdit(Part):
    id: str
    """name of the edit"""
    status: str
    """its status"""
    writes: int
    """writes made for it"""
    seconds: Number
    """its time in seconds"""
    parts: dict[str, Number]
    """the same by part"""
    steps: list[Number]
    """seconds of each write"""
    floor: Number | None
    """with `--floor`: seconds of a bare PyTorch loop with the same passes"""
    lora_steps: list[Number]
    """with `--peers`: seconds of PEFT LoRA steps"""
    peak_memory_bytes: int | None
    """most memory above the start"""
    state_bytes: int
    """size of the state after it"""


class BenchOutput(Printed, schema="more.bench/1", command="more bench [MODEL] [EDITS] --json"):
    """How long edits take, and what they keep."""

    model: FilePath
    source: str
    """file of the edits"""
    edits: list[_BenchEdit]
    edits_per_second: Number | None
    """edits divided by their time"""
    parts: dict[str, Number]
    """seconds of all edits by part"""
    ratios: dict[str, Mean]
    """with `--floor` and `--peers`: time divided by theirs"""
    trends: dict[str, Trend]
    """change of time, memory and state from the first edit to the last; needs more edits than two"""
    ledger_bytes: int
    """bytes of ledger and images that the stream added"""
    seconds: Number
    """time of the stream in seconds"""
    interrupted: bool
    """whether a signal ended the run"""
    versions: dict[str, str]
    """versions of `more` and its libraries, device, dtype, attention kernel and threads"""

    @classmethod
    def of_report(cls, report: BenchReport) -> BenchOutput:
        """Make it of the times of a stream."""
        edits = [
            _BenchEdit.of(
                edit,
                seconds=edit.lap.seconds,
                parts=edit.lap.parts,
                steps=edit.lap.steps,
                peak_memory_bytes=edit.lap.peak,
                lora_steps=edit.peers,
            )
            for edit in report.edits
        ]
        return cls.of(report, edits=edits, edits_per_second=len(edits) / report.seconds if edits else None)
