"""`more combine`: makes one state of the edits of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli.failures import exit_as
from more_cli.cli.output import ROWS, Output
from more_cli.cli.records import command
from more_cli.cli.words import model_and_states
from more_cli.model.machine import Machine
from more_cli.options import CombineOptions
from more_cli.store.names import file_of
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.ops.assembly import AssemblyReport
    from more_cli.ops.shared import Holding

USAGE = "more combine [MODEL] A.more B.more -o C.more"
States = Annotated[
    list[Path],
    typer.Argument(
        metavar="[MODEL] STATE...",
        help="States of one base: files, or names beside MODEL, the checkpoint folder. "
        "[default: the folder that a state's name says]",
    ),
]


@command
def combine(
    words: States,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="STATE", help="The new state: its file, or a name.")
    ] = ...,  # type: ignore[assignment]
    *,
    options: CombineOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Make one state from the edits of several states, in order of time.

    Lines that all states have in common are taken over once, as they are; the other edits are applied again. An edit
    that one of the states reverted stays out. Two targets for the same pictures and question are refused, unless a
    state that has both decided. After an interruption, run the same command again: it continues.

    \b
    Examples:
      more combine llava.more llava.ann.more -o llava.both.more --dry-run
      more combine llava/ a.more b.more c.more -o all.more --theirs
    """
    from more_cli.ops.combine import combine as run
    from more_cli.ops.shared import model_of

    model, paths = model_and_states(words, USAGE)
    with output.progress() as progress:
        base, say = model or model_of(paths), output.note
        target = Target(base, file_of(base, out))
        report = run(paths, target, options, machine, progress, starting=lambda work: say(str(work)))
    _show(output, report)
    exit_as(report)


def _show(output: Output, report: AssemblyReport) -> None:
    from more_cli.outputs.shared import CombineOutput

    output.json(CombineOutput.of_report(report))
    for note in report.notes:
        output.note(note)
    if report.interrupted:
        output.note("interrupted, there is no new state yet; run the same command again to continue")
        return
    plan = report.plan
    if report.dry_run:
        _list(output, plan.union.edits)
    for each in plan.union.contradictions:
        refused = report.statuses.get(each.later.id) is Status.REFUSED
        output.line(f"{'the later one is refused' if refused else 'the later one counts'}: {each}")
    for id, source in plan.union.withdrawn.items():
        output.line(f"{id} stays out: reverted in {source.path}")
    if report.dry_run and not report.existed:
        output.line(f"would combine {_what(report)}")
        output.line(str(plan.work))
        return
    rows = [(id, *statuses) for id, statuses in list(report.changed.items())[:ROWS]]
    output.table(("edit", "before", "now"), rows, left_out=len(report.changed) - ROWS)
    found = Counter(report.statuses.values())
    statuses = ", ".join(f"{found[status]:,} {status}" for status in sorted(found))
    holds = f"already holds {_edits(report)}" if report.existed else f"holds {_what(report)}"
    output.line(f"{report.target.sidecar} {holds}; {statuses or 'no edit'}")
    output.line(f"next: more eval {report.target.typed}")


def _what(report: AssemblyReport) -> str:
    """Return how many edits come from how many states, and how they came into the new one."""
    again = sum(step.edit is not None for step in report.plan.again)
    kept = len(report.plan.union.edits) - again
    return f"{_edits(report)}: {kept:,} taken over as they are, {again:,} applied again"


def _edits(report: AssemblyReport) -> str:
    return f"{counted(len(report.plan.union.edits), 'edit')} of {counted(len(report.plan.sources), 'state')}"


def _list(output: Output, edits: Sequence[Holding]) -> None:
    columns = "edit", "state", "status", "question", "target"
    shown = [(edit, edit.entry) for edit in edits[:ROWS]]
    rows = [(edit.id, edit.source.path, edit.status, entry.question, entry.target) for edit, entry in shown]
    output.table(columns, rows, cut=("question",), left_out=len(edits) - ROWS)
