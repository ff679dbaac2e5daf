"""`more revert`: undoes edits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion
from more_cli.cli import options as opt
from more_cli.cli.failures import exit_as
from more_cli.cli.output import ROWS, Output
from more_cli.cli.records import command
from more_cli.cli.words import locate_among
from more_cli.model.machine import Machine
from more_cli.options import RevertOptions
from more_cli.text import counted, listed

if TYPE_CHECKING:
    from more_cli.ops.revert import RevertReport


@command
def revert(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [ID...]",
            help="Checkpoint folder, and the ids of the edits to revert, in either order. [default: that of "
            "more.toml, or the model of the only `*.more` file in this folder]",
            autocompletion=completion.edits_in_force,
        ),
    ] = None,
    state: opt.StateFile = None,
    *,
    options: RevertOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Undo edits, as if they had never been applied.

    All later edits are applied again, and so are those between the nearest earlier snapshot and the first reverted
    edit. `edit` takes snapshots by itself, so the newest edits are undone fast. The command says first how many edits
    it applies and about how long that takes. The old state stays in use until this is finished. After an interruption,
    run the same command again: it continues.

    \b
    Examples:
      more revert llava/ e17 e18
      more revert llava/ --last 3 --dry-run
      more revert llava/ --to 100
    """
    from more_cli.ops.revert import revert as run

    target, ids = locate_among(words or [], state, "more revert MODEL ID...")
    with output.progress() as progress:
        report = run(target, ids, options, machine, progress, starting=lambda work: output.note(str(work)))
    _show_revert(output, report)
    exit_as(report)


def _show_revert(output: Output, report: RevertReport) -> None:
    from more_cli.outputs.edits import RevertOutput

    gone = report.plan.gone
    work = report.plan.work
    plan = {"reverted": gone, "kept": report.plan.kept, "expected_edits": work.edits, "expected_seconds": work.seconds}
    output.json(RevertOutput.of(report, state=report.target.sidecar, **plan))
    for note in report.notes:
        output.note(note)
    if report.dry_run:
        output.line(f"would revert {counted(len(gone), 'edit')} and apply {len(report.again):,} again")
        _list(output, "would be reverted", gone)
        _list(output, "would be applied again", report.again)
        output.line(str(work))
        return
    if report.interrupted:
        output.note("interrupted, the state is unchanged; run the same command again to continue")
        return
    if not gone:
        output.line("nothing to revert")
        return
    output.table(
        ("edit", "before", "now"),
        [(id, *statuses) for id, statuses in list(report.changed.items())[:ROWS]],
        left_out=len(report.changed) - ROWS,
    )
    again = f", {len(report.again):,} applied again" if report.again else ""
    others = counted(len(report.changed), "other edit")
    output.line(f"{counted(len(gone), 'edit')} reverted{again}; the status of {others} changed")
    if report.snapshot is not None:
        output.line(f"the previous state is kept in {report.snapshot} until `more gc`")
    if report.failed:
        output.note(f"failed edits: {listed(report.failed, ROWS)}")


def _list(output: Output, title: str, ids: list[str]) -> None:
    if ids:
        output.line(f"{title}: {listed(ids, ROWS)}")
