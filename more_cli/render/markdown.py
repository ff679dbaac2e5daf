"""An evaluation as Markdown, short enough for a pull request; what records and models say stands in code spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from more_cli.evaluation.metrics import Estimate
from more_cli.evaluation.per_edit import EditScores
from more_cli.files import plain, shorten
from more_cli.ops.evaluate import EvalReport

SHOWN = 20
"""Edits that do not hold, at most."""
_LENGTH = 120


def markdown(report: EvalReport) -> str:
    """Return the report: what holds, the gates, every metric, retention by age, and what does not hold."""
    return "\n\n".join(_parts(report)) + "\n"


def _parts(report: EvalReport) -> Iterator[str]:
    yield f"### more eval: {report.headline}"
    yield f"{code(report.scope)}, protocol {report.protocol}, locality against {report.baseline}."
    if report.gates:
        yield _table(
            ("gate", "", "measured"),
            [(code(str(found.gate)), "met" if found.met else "**missed**", found.reason) for found in report.gates],
        )
    if report.estimates:
        yield _estimates("metric", report.told)
    if len(report.retention) > 1:
        yield _estimates("edits since", report.retention)
    bad = [scores for scores in report.per_edit if not scores.good]
    if bad:
        yield _bad(report, bad)


def _bad(report: EvalReport, bad: Sequence[EditScores]) -> str:
    rows = []
    for scores in bad[:SHOWN]:
        question, before = scores.shown.probe.query.question, report.base_answers.get(scores.id, "")
        rows.append([code(text) for text in (scores.id, question, before, scores.wanted, scores.shown.answer)])
    table = _table(("does not hold", "question", "before", "wanted", "answer"), rows)
    return f"{table}\n\nand {len(bad) - SHOWN} more" if len(bad) > SHOWN else table


def _estimates(head: str, rows: Mapping[str, Estimate]) -> str:
    return _table(
        (head, "value", "95 % interval", "n"),
        [(code(name), f"{v.value:.3f}", f"{v.low:.3f} to {v.high:.3f}", str(v.n)) for name, v in rows.items()],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def code(text: str) -> str:
    """Return text as a code span that fits a table: nothing in it is markup, a link, a mention or an image."""
    shown = shorten(plain(text), _LENGTH).strip()
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    # A table is split at its pipes before code spans are read, so these are escaped; a backslash before one is set
    # apart, as readers of tables differ in what two of them mean.
    return f"{fence}{pad}{shown}{pad}{fence}".replace("\\|", "\\ |").replace("|", "\\|")
