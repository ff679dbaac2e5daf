"""Reports of `ops` and `runner` as pages: which tables and plots each kind has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from more_cli.evaluation.cells import value_cell
from more_cli.evaluation.metrics import Estimate, estimate
from more_cli.evaluation.names import is_share
from more_cli.evaluation.per_edit import headline
from more_cli.ops.capability import CapabilityReport
from more_cli.ops.drift import Drift
from more_cli.ops.evaluate import STATE, EvalReport, by_age
from more_cli.render import words
from more_cli.render.page import Page, Table
from more_cli.render.plots import Bars, Course, Curve, marks
from more_cli.runner.report import SuiteReport
from more_cli.suites.yes_no import YesNoScore
from more_cli.text import counted

_ESTIMATE = ("value", "95 % interval", "kind", "n")
_AGES = "rel.gen_exact, grouped by how many edits came after"


def of_state(report: EvalReport) -> Page:
    """Return the page of a state, or of a file of questions."""
    full = []
    if report.estimates:
        full.append(_metrics(f"All {counted(len(report.listed), 'metric')}", report.listed))
    if len(report.retention) > 1:
        full.append(_retention(report.retention))
    if report.drift and report.drift.curve:
        full.append(_drift(report.drift))
    return Page(
        command="more eval",
        subject=report.target.model.resolve().name,
        headline=report.headline,
        scope=report.scope,
        reading=f"protocol {report.protocol}, locality against {report.baseline}",
        sentences=words.of_state(report),
        left_out=report.left_out_sentence,
        gates=report.gates,
        tables=[
            *([words.measures(report)] if report.scores or report.source == STATE else []),
            *(replace(table, folded=True) for table in full),
        ],
        edits=report.per_edit,
        base=report.base_answers,
        reproduce=report.reproduce,
        properties={
            "state": report.target.sidecar,
            "source": report.source,
            "protocol": report.protocol,
            "baseline": report.baseline,
        },
        seconds=report.seconds,
    )


def of_suite(report: SuiteReport, command: str = "more eval --suite") -> Page:
    """Return the page of an editor's run on a suite."""
    edits = report.per_edit
    protocol = report.headline.partition("@")[0]
    return Page(
        command=command,
        subject=f"{report.suite.name}, {report.editor}",
        headline=headline(edits),
        scope=f"{report.suite.name}, editor {report.editor}, {counted(len(edits), 'edit')}",
        reading=f"{report.headline} unless noted otherwise, {report.locality}",
        sentences=words.failures_first(
            [*words.of_edits(edits, report.base_answers, "correction"), words.of_gates(report.gates)]
        ),
        left_out=report.left_out_sentence,
        gates=report.gates,
        tables=[*_suite_tables(report), *notices({report.editor: report})],
        edits=edits,
        base=report.base_answers,
        reproduce=report.reproduce,
        properties={
            "model": report.model,
            "source": report.suite.name,
            "editor": report.editor,
            "protocol": protocol,
            "baseline": report.yardstick.baseline,
        },
        seconds=report.work.seconds,
    )


def notices(reports: Mapping[str, SuiteReport]) -> Iterator[Table]:
    rows = [
        (name, text)
        for name, report in reports.items()
        for text in (report.fit.warning if report.fit else "", *report.notices)
        if text
    ]
    if rows:
        yield Table("What to know about these scores", ("editor", ""), rows)


def of_capability(report: CapabilityReport) -> Page:
    """Return the page of what a model can do besides its edits."""
    found = report.changes.get("all")
    moved = f"change of accuracy {found.value:+.3f} ({found.between('+.3f')})" if found else "no state to compare with"
    shown = {"base": report.base} | ({"edited": report.state} if report.state else {})
    scores = [(name, which, of.categories[name]) for name in report.base.categories for which, of in shown.items()]
    after = f"the untouched base and the state after {counted(report.edits, 'edit')}"
    rows = [(name, which, score.questions, *yes_no_cells(score)) for name, which, score in scores]
    changes = [(name, f"{value.value:+.3f}", value.between("+.3f"), value.n) for name, value in report.changes.items()]
    tables = [
        Table(
            "Categories",
            ("category", "", "questions", "accuracy", "accuracy+", "score", "unparsable"),
            rows,
            plots=[
                Bars("Accuracy by category", {f"{name}, {which}": _accuracy(score) for name, which, score in scores})
            ],
        )
    ]
    if changes:
        tables.append(Table("Change of accuracy", ("category", "change", "95 % interval", "images"), changes))
    return Page(
        command="more eval --suite",
        subject=f"{report.suite.name}, {report.target.model.resolve().name}",
        headline=f"accuracy {(report.state or report.base).accuracy:.3f}, {moved}",
        scope=report.suite.name,
        reading=after if found else "the untouched base",
        gates=report.gates,
        tables=tables,
        reproduce=report.reproduce,
        properties={"state": report.target.sidecar, "source": report.suite.name},
    )


def _suite_tables(report: SuiteReport) -> Iterator[Table]:
    yield _metrics(f"Metrics, {report.headline}", report.estimates[report.headline])
    if online := report.so_far:
        points = {
            mark: report.estimates[f"final@{mark}"]["rel.gen_exact"]
            for mark in report.schedule.marks
            if f"final@{mark}" in report.estimates
        }
        lost = report.forgetting
        yield Table(
            "During the stream",
            ("after", "online", "final"),
            [(f"{mark}", f"{online[mark - 1]:.3f}", value_cell(points.get(mark))) for mark in report.schedule.marks],
            f"rel.gen_exact; forgotten by the end: {lost.value:.3f} ({lost.between()})" if lost else "rel.gen_exact",
            [Curve("rel.gen_exact: the line is online, the dots are final", online, points)],
        )
    ages = by_age([scores.shown.values["gen_exact"] for scores in report.per_edit])
    if report.headline.startswith("final") and len(ages) > 1:
        yield _retention(ages)
    names = {name: None for found in report.estimates.values() for name in found}
    yield Table(
        "Protocols by checkpoint",
        ("metric", *report.estimates),
        [(name, *(value_cell(found.get(name)) for found in report.estimates.values())) for name in names],
    )


def _metrics(title: str, estimates: Mapping[str, Estimate]) -> Table:
    shares = {name: value for name, value in estimates.items() if is_share(name)}
    return Table(
        title,
        ("metric", *_ESTIMATE),
        _estimates(estimates),
        plots=[Bars("Every metric between 0 and 1", shares)],
    )


def _retention(ages: Mapping[str, Estimate]) -> Table:
    plot = Bars("rel.gen_exact by edits since", ages)
    return Table("Retention by age", ("edits since", *_ESTIMATE), _estimates(ages), _AGES, [plot])


def _drift(drift: Drift) -> Table:
    shown = {after.edits: after for after in drift.curve}
    chosen = [shown[edits] for edits in marks(drift.curve[-1].edits) if edits in shown]
    rows = [(f"{edits:,}", f"{mean:.4f}", f"{largest:.4f}") for edits, mean, largest in chosen]
    plot = Course(
        "Drift in nats per token: largest (thick), mean (thin) and limit (dashed)", drift.curve, drift.max_drift
    )
    return Table("Drift of watched anchors", ("edits", "mean", "largest"), rows, f"{drift.summary}.", [plot])


def _estimates(estimates: Mapping[str, Estimate]) -> list[tuple[object, ...]]:
    return [(name, value_cell(v), v.between(), v.interval, v.n) for name, v in estimates.items()]


def yes_no_cells(score: YesNoScore) -> tuple[str, str, str, str]:
    """Return accuracy, accuracy+, score and the share of unparsable answers, as tables show them."""
    return f"{score.accuracy:.3f}", f"{score.accuracy_plus:.3f}", f"{score.score:.1f}", f"{score.unparsable_rate:.3f}"


def _accuracy(score: YesNoScore) -> Estimate:
    return estimate([1.0] * score.right + [0.0] * (score.questions - score.right))
