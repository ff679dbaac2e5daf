"""What `more compare` and `more reproduce` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from more_cli.outputs.base import FilePath, Number, Part, Printed
from more_cli.outputs.runs import SuiteRun, SuiteTask
from more_cli.outputs.scores import Mean

if TYPE_CHECKING:
    from more_lab.experiments.compare_editors import EditorComparison
    from more_lab.experiments.compare_results import Comparison


class PairedDifference(Part):
    """Second result minus first, over the same edits."""

    first: Number | None
    """mean of the first"""
    second: Number | None
    """mean of the second"""
    difference: Number | None
    """mean of the differences"""
    low: Number | None
    """lower end of its 95 % bootstrap interval over edits"""
    high: Number | None
    """upper end of that interval"""
    n: int
    """edits compared"""
    up: int
    """edits that went up"""
    down: int
    """edits that went down"""
    same: int
    """edits that did not change"""
    p: Number | None
    """p of an exact two-sided sign test; not corrected for the number of metrics"""


class CompareOutput(Printed, schema="more.compare/1", command="more compare --paired FIRST SECOND --json"):
    """Two results over the same edits."""

    first: FilePath
    """first file"""
    second: FilePath
    """second file"""
    source: str
    """what both scored: `state`, a file of probes, or a suite"""
    protocol: str
    """protocol of both"""
    baseline: str
    """what locality compares with"""
    edits: int
    """edits in both"""
    differ: list[str]
    """what differs between the runs, such as recipe or versions"""
    skipped: dict[str, str]
    """metrics without a comparison, and why"""
    test: str
    """name of the test behind `p`"""
    metrics: dict[str, PairedDifference]
    """differences by metric"""

    @classmethod
    def of_pair(cls, pair: Comparison, test: str) -> CompareOutput:
        """Make it of a comparison."""
        run = pair.run
        about = {"source": run.source, "protocol": run.protocol, "baseline": run.baseline}
        return cls.of(pair, edits=len(run.per_edit), test=test, **about)


class CompareEditorsOutput(
    SuiteTask, Printed, schema="more.compare-editors/1", command="more compare EDITOR... --suite NAME --json"
):
    """Several editors on one suite; only `run --json` has the scores of each edit."""

    editors: dict[str, SuiteRun]
    """runs by editor"""
    first: str
    """editor that the others are compared with"""
    differences: dict[str, dict[str, PairedDifference]]
    """differences by editor and metric"""
    skipped: dict[str, dict[str, str]]
    """by editor: metrics without a comparison, and why"""
    test: str
    """name of the test behind `p`"""

    @classmethod
    def of_comparison(cls, comparison: EditorComparison, test: str) -> CompareEditorsOutput:
        """Make it of a comparison."""
        return cls.of_run(
            comparison.first,
            editors={name: SuiteRun.of_report(report) for name, report in comparison.reports.items()},
            first=comparison.first.editor,
            differences=comparison.differences,
            skipped=comparison.skipped,
            test=test,
        )


class _Row(Part):
    suite: str
    """name of the suite"""
    editor: str
    """name of the editor"""
    edits: int
    """edits made"""
    printed: dict[str, Number] | None
    """what the paper prints, in percent, by column"""
    measured: dict[str, Mean] | None
    """what was measured, by column; `null` if it could not be run"""
    reason: str
    """why it could not be run"""


class ReproduceOutput(Printed, schema="more.reproduce/1", command="more reproduce TABLE --json"):
    """A table of the paper, measured."""

    table: str
    """name of the table"""
    model: FilePath
    """path of the checkpoint"""
    backbone: str | None
    """the table's backbone that the model is one of"""
    rows: list[_Row]
    warnings: list[str]
    """editors whose scores say little about the method, with their suite and the reason"""
    notices: list[str]
    """what differs from the paper"""
