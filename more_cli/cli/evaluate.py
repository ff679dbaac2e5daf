"""`more eval`: scores a state, or M-ORE on a suite, with gates and report files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.hub import fetched
from more_cli.cli.outlets import Outlets, show_gates
from more_cli.cli.output import ROWS, Output
from more_cli.cli.records import command
from more_cli.cli.suite_eval import evaluate_suite
from more_cli.cli.suite_source import loaded_suite, suite_target
from more_cli.errors import UsageError
from more_cli.evaluation.cells import estimate_cells
from more_cli.model.machine import Machine
from more_cli.options import STATE, FileOptions, HubOptions, SuiteOptions, TrackOptions, given
from more_cli.store.target import locate
from more_cli.text import counted, verb

if TYPE_CHECKING:
    from more_cli.evaluation.per_edit import EditScores
    from more_cli.evaluation.probes import ProbeScore
    from more_cli.ops.evaluate import EvalReport


@command
def evaluate(
    model: opt.Model = None,
    probes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Score the questions of this JSON Lines file instead of the edits.",
            rich_help_panel=STATE,
        ),
    ] = None,
    state: opt.StateFile = None,
    *,
    outlets: Outlets,
    on_suite: SuiteOptions,
    files: FileOptions,
    hub: HubOptions,
    machine: Machine,
    tracker: TrackOptions,
    output: Output,
) -> None:
    """Score all edits and their probes.

    Probes of an edit are its question in other words, about other pictures, and questions whose answers must not
    change. Every edit that was asked for counts, a refused one as failed; reverted and superseded ones do not count.
    With --suite, M-ORE runs on a suite of edits instead, from the untouched base, and no state is changed.

    \b
    Examples:
      more eval llava/
      more eval llava/ --probes regression.jsonl --json
      more eval llava/ --gate "rel.gen_exact>=0.95" --junit more.xml --report more.html
      more eval --suite e-ic
      more eval llava/ --suite e-vqa --data-root data/mmedit
    """
    _check_together(on_suite, tracker, probes, files)
    outlets.check()
    gates = outlets.gates_on() if on_suite.suite is None else []  # those of a suite depend on it
    model, state = fetched(output, model, state, hub)
    if on_suite.suite is not None:
        loaded = loaded_suite(output, on_suite.suite, on_suite.data_root, files)
        target = suite_target(output, loaded, model, state)
        evaluate_suite(output, loaded, target, on_suite, machine, outlets, tracker)
        return

    from more_cli.evaluation.gates import judge
    from more_cli.ops.evaluate import evaluate_probes, evaluate_state
    from more_cli.render.pages import of_state

    target = locate(model, state)
    ask_base = bool(outlets.reports)
    with output.progress() as progress:
        if probes is None:
            scored = evaluate_state(target, machine, progress, ask_base=ask_base)
        else:
            scored = evaluate_probes(target, probes, files, machine, progress, ask_base=ask_base)
    scored.gates = judge(gates, scored.estimates, of_probes=probes is not None)
    outlets.write(of_state(scored), lambda: _show_eval(output, scored))


def _check_together(on_suite: SuiteOptions, tracker: TrackOptions, probes: Path | None, files: FileOptions) -> None:
    """Refuse options that exclude each other, options of suites without a suite, and of pictures where none is read."""
    if on_suite.suite is not None and probes is not None:
        raise UsageError("`--suite` and `--probes` were both given", "leave one of them out")
    if on_suite.suite is None and (others := [*given(on_suite), *given(tracker)]):
        raise UsageError(f"`{others[0]}` needs `--suite`", "add --suite NAME; see `more suites list`")
    if on_suite.suite is None and probes is None and (others := given(files)):
        hint = f"add --probes FILE or --suite NAME, or leave {others[0]} out"
        raise UsageError(f"`{others[0]}` needs `--probes` or `--suite`", hint)


def _show_eval(output: Output, report: EvalReport) -> None:
    if output.as_json:
        from more_cli.outputs.evaluations import EvalOutput

        output.json(EvalOutput.of_report(report))
    output.replayed(report.replayed)
    if not report.estimates:
        output.line("nothing to score" + ("" if report.left_out else ": no edits, or all of them reverted"))
    else:
        output.line(report.headline)
        output.line(f"protocol {report.protocol}, locality against {report.baseline}, {report.scope}")
    if report.left_out:
        output.line(report.left_out_sentence)
    if report.drift:
        output.line(f"drift of {report.drift.sentence}")
    if report.estimates:
        _show_numbers(output, report)
        _show_answers(output, report.per_edit, report.first_forgotten)
    show_gates(output, report.gates)
    if report.failed:
        output.line()
        output.line(report.failed_sentence)
    if report.forgotten:
        output.note(f"next: more edit {report.target.typed} --consolidate all")


def _show_numbers(output: Output, report: EvalReport) -> None:
    output.table(
        ("metric", "value", "95 % interval", "n"),
        [(name, *estimate_cells(value)) for name, value in report.listed.items()],
        numbers=("value", "n"),
    )
    if len(report.retention) > 1:
        output.line()
        output.table(
            ("edits since", "rel.gen_exact", "95 % interval", "n"),
            [(ages, *estimate_cells(value)) for ages, value in report.retention.items()],
            numbers=("rel.gen_exact", "n"),
        )


def _show_answers(output: Output, edits: Sequence[EditScores], first_forgotten: str | None) -> None:
    """Show the edits that do not hold, then other answers that are not as expected; both with what was expected."""
    from more_cli.evaluation.per_edit import moved

    if bad := [scores for scores in edits if not scores.good]:
        oldest = f", the oldest of them {first_forgotten}" if first_forgotten else ""
        output.line()
        output.line(f"{len(bad):,} of {len(edits):,} {verb(len(bad), 'does', 'do')} not hold{oldest}:")
        _show_some(output, "status", [row for scores in bad[:ROWS] for row in _rows(scores)], len(bad) - ROWS)
    if others := moved(edits):
        output.line()
        output.line(f"{counted(len(others), 'other answer')} not as expected:")
        rows = [(scores.id, scores.words(score), *_cells(score)) for scores, score in others[:ROWS]]
        _show_some(output, "asked", rows, len(others) - ROWS)


def _rows(scores: EditScores) -> Iterator[tuple[object, ...]]:
    """Yield the row of an edit that does not hold and, under it, the reason if the ledger has one."""
    status = scores.failed.status if scores.failed else "" if scores.rel else scores.verdict
    yield scores.id, status, *_cells(scores.shown)
    if scores.failed and scores.failed.reason:
        yield "", scores.failed.reason


def _cells(score: ProbeScore) -> tuple[object, ...]:
    return score.probe.query.question, score.expected, score.answer


def _show_some(output: Output, second: str, rows: Sequence[Sequence[object]], left_out: int) -> None:
    columns = ("edit", second, "question", "expected", "answer")
    output.table(columns, rows, cut=("question", "expected", "answer"), left_out=left_out)
