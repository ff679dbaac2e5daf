"""`more diff`: shows in what two states differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli.output import ROWS, Output
from more_cli.cli.records import command
from more_cli.cli.words import model_and_states
from more_cli.model.machine import Machine
from more_cli.text import counted, shorten

if TYPE_CHECKING:
    from more_cli.ops.diff import Difference, DiffReport

USAGE = "more diff [MODEL] A.more B.more"


@command
def diff(
    words: Annotated[
        list[Path],
        typer.Argument(
            metavar="[MODEL] STATE STATE",
            help="Two states: files, or names beside MODEL, the checkpoint folder. "
            "[default: the folder that a state's name says]",
        ),
    ],
    answers: Annotated[
        bool, typer.Option("--answers", help="Ask both states the questions of their edits; this loads the model.")
    ] = False,
    *,
    machine: Machine,
    output: Output,
) -> None:
    """Show how two states differ: in base, recipe, anchors, edits and, if asked for, answers.

    A difference is no failure: `same` in --json says whether they are alike.

    \b
    Examples:
      more diff llava.more llava.ann.more
      more diff llava.more llava.ann.more --answers
    """
    from more_cli.ops.diff import ask_both
    from more_cli.ops.diff import diff as run
    from more_cli.ops.shared import model_of
    from more_cli.outputs.shared import DiffOutput

    model, paths = model_and_states(words, USAGE)
    report = run(paths)
    if answers:
        with output.progress() as progress:
            ask_both(report, model or model_of(paths), machine, progress)
    output.json(DiffOutput.of_report(report))
    _show_setup(output, report)
    _show_edits(output, report)
    if report.asked is not None:
        _show_answers(output, report)


def _show_setup(output: Output, report: DiffReport) -> None:
    names = str(report.first.path), str(report.second.path)
    rows = [(name, *(shorten(str(value), 40) for value in values)) for name, values in report.setup.items()]
    only = [counted(len(questions), "anchor") for questions in report.anchors]
    rows += [("anchors only there", *only)] if any(report.anchors) else []
    output.table(("setup", *names), rows)


def _show_edits(output: Output, report: DiffReport) -> None:
    columns = "edit", str(report.first.path), str(report.second.path), "question", "target"
    rows = [
        (each.edit.id, *(held.status if held else "-" for held in (each.first, each.second)), *_content(each))
        for each in report.edits[:ROWS]
    ]  # fmt: skip
    output.table(columns, rows, cut=("question",), left_out=len(report.edits) - ROWS)
    for contradiction in report.contradictions:
        output.line(f"contradiction: {contradiction}")
    text = ", ".join(f"{number:,} {what}" for what, number in report.counts.items())
    output.line(text.replace("the first", str(report.first.path)).replace("the second", str(report.second.path)))
    if report.same:
        other = f"the same edits, other bytes: {_why(report)}"
        output.line("the files have the same bytes" if report.same_bytes else other)


def _why(report: DiffReport) -> str:
    if not report.behind:
        return "in another order, or made on another machine"
    lacking = " and ".join(f"`{path}`" for path in report.behind)
    return f"{lacking} lacks lines of its ledger, as after a crash; `more edit` or `more anchors add` writes them"


def _content(each: Difference) -> list[str]:
    """Return question and target of an edit; both of each where the states differ in them."""
    entries = [held.entry for held in (each.first, each.second) if held]
    pairs = [entry.question for entry in entries], [entry.target for entry in entries]
    return [" | ".join(dict.fromkeys(texts)) for texts in pairs]


def _show_answers(output: Output, report: DiffReport) -> None:
    columns = "edit", "question", "target", str(report.first.path), str(report.second.path)
    rows = [
        (each.edit.id, each.edit.entry.question, each.edit.entry.target, each.first, each.second)
        for each in report.answers[:ROWS]
    ]
    output.table(columns, rows, cut=("question",), left_out=len(report.answers) - ROWS)
    output.line(f"{len(report.answers):,} of {counted(report.asked or 0, 'answer')} differ")
