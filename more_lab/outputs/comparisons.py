"""What `more compare` and `more reproduce` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.outputs.base import FilePath, Number, Part, Printed
from more_cli.outputs.runs import SuiteRun, SuiteTask
from more_cli.outputs.scores import Mean
from more_lab.outputs.experiments import Summary

if TYPE_CHECKING:
    from more_lab.experiments.compare_editors import EditorComparison
    from more_lab.experiments.compare_results import Comparison
    from more_lab.paper.reproduce import Reproduction


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
    name: str
    """name of the run in the paper, or of an editor that its table lacks"""
    editor: str
    """name of the editor"""
    protocol: str
    """`online`: right after each edit; `final`: after the last one, against the base"""
    edits: int
    """edits made"""
    printed: dict[str, Number] | None
    """what the paper prints, in percent, by column"""
    measured: dict[str, Mean] | None
    """what was measured, by column; `null` if it could not be run"""
    reason: str
    """why it could not be run"""


class _Figure(Part):
    suite: str
    """name of the suite"""
    analysis: str
    """name of the analysis"""
    scalars: list[Summary]
    """its numbers"""
    files: list[FilePath]
    """table, then figures"""


class _Beside(Part):
    name: str
    """the row's name"""
    values: dict[str, Number | str]
    """its values by column"""


class _Reproduced(Part):
    exhibit: str
    """name of the table or figure"""
    title: str
    """what it shows"""
    labels: list[str]
    """its labels in the paper's source"""
    model: FilePath
    backbone: str | None
    """the paper's backbone that the model is one of"""
    rows: list[_Row]
    """runs of a table"""
    figures: list[_Figure]
    """what a figure shows"""
    printed: list[_Beside]
    """what the paper prints beside a figure"""
    problems: list[str]
    """runs of a figure that could not be made, and why"""
    warnings: list[str]
    """editors whose scores say little about the method, with their suite and the reason"""
    notices: list[str]
    """what differs from the paper"""

    @classmethod
    def of_result(cls, found: Reproduction) -> _Reproduced:
        """Make it of an exhibit on one model."""
        figures = [
            _Figure(suite=suite, analysis=done.analysis.name, scalars=done.result.scalars, files=list(done.files))
            for suite, analyses in found.figures.items()
            for done in analyses
        ]
        printed = [_Beside(name=row.name or row.backbone, values=dict(row.values)) for row in found.printed]
        exhibit = found.exhibit
        about = {"exhibit": exhibit.name, "title": exhibit.title, "labels": exhibit.labels}
        return cls.of(found, figures=figures, printed=printed, **about)


class ReproduceOutput(Printed, schema="more.reproduce/1", command="more reproduce NAME --json"):
    """Tables and figures of the paper, measured."""

    results: list[_Reproduced]
    """each table and figure, on each model"""
    page: FilePath | None
    """with `--out`: the page of all"""

    @classmethod
    def of_results(cls, results: Sequence[Reproduction], page: Path | None) -> ReproduceOutput:
        """Make it of what was measured."""
        return cls(results=[_Reproduced.of_result(found) for found in results], page=page)


class _Exhibit(Part):
    name: str
    """its name on the command line"""
    title: str
    """what it shows"""
    labels: list[str]
    """its labels in the paper's source"""
    backbones: list[str]
    """the models that the paper shows it on"""
    suites: list[str]
    """the suites it runs"""
    edits: list[int]
    """numbers of edits after which something is measured"""


class ExhibitsOutput(Printed, schema="more.exhibits/1", command="more reproduce --json"):
    """The tables and figures that can be measured."""

    exhibits: list[_Exhibit]


class KitOutput(Printed, schema="more.kit/1", command="more reproduce kit -o DIR --json"):
    """The kit for a real model."""

    folder: FilePath
    """where it was written"""
    files: list[str]
    """its files"""
