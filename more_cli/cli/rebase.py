"""`more rebase`: applies the edits of a state to a new version of its base."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.failures import exit_as
from more_cli.cli.output import ROWS, Output
from more_cli.cli.records import command
from more_cli.errors import UsageError
from more_cli.model.machine import Machine
from more_cli.options import RebaseOptions
from more_cli.store.names import file_of, sidecar_path
from more_cli.store.target import Target, locate
from more_cli.text import counted, listed

if TYPE_CHECKING:
    from more_cli.ops.rebase import RebaseReport

USAGE = "more rebase [MODEL] NEW_BASE"
WORDS = {
    "held": "hold",
    "already_right": "already right on the new base",
    "lost": "no longer hold",
    "still_failed": "failed before too",
    "superseded": "superseded",
    "reverted": "reverted",
}
"""What became of edits, as it is said."""


@command
def rebase(
    words: Annotated[
        list[Path],
        typer.Argument(
            metavar="[MODEL] NEW_BASE",
            help="The new version of the checkpoint; before it, the folder whose state has the edits. [default: that "
            "of more.toml, or the model of the only `*.more` file in this folder]",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="STATE",
            help="The new state: its file, or a name beside NEW_BASE. [default: NEW_BASE.more]",
        ),
    ] = None,
    state: opt.StateFile = None,
    *,
    options: RebaseOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Apply the edits of a state to a new version of its base, in order, and say which still hold.

    The new base is another folder of the same architecture; recipe and anchors stay. The old folder is not read and
    may be gone. Reverted and superseded edits stay so. After an interruption, run the same command again: it continues.

    \b
    Examples:
      more rebase llava/ llava-v2/ --dry-run
      more rebase llava/ llava-v2/
      more rebase llava/ llava-v2/ --state llava.ann.more -o llava-v2.ann.more
    """
    from more_cli.ops.rebase import rebase as run

    if len(words) > 2:
        raise UsageError(f"one new base at a time, not {len(words) - 1}", f"type: {USAGE}")
    *models, base = words
    source = locate(models[0] if models else None, state)
    target = Target(base, file_of(base, out) if out else sidecar_path(base))
    with output.progress() as progress:
        report = run(source, target, options, machine, progress, starting=lambda work: output.note(str(work)))
    _show(output, report)
    exit_as(report)


def _show(output: Output, report: RebaseReport) -> None:
    from more_cli.outputs.shared import RebaseOutput

    output.json(RebaseOutput.of_report(report))
    for note in report.notes:
        output.note(note)
    if report.interrupted:
        output.note("interrupted, there is no new state yet; run the same command again to continue")
        return
    target, edits = report.target, report.plan.union.edits
    out = target.sidecar.name if target.sidecar == sidecar_path(target.model) else str(target.sidecar)
    what = f"{out} for {target.model}"
    if report.dry_run and not report.existed:
        rows = [(edit.id, edit.status, edit.entry.question, edit.entry.target) for edit in edits[:ROWS]]
        output.table(("edit", "status", "question", "target"), rows, cut=("question",), left_out=len(edits) - ROWS)
        output.line(f"would make {what} of {counted(len(edits), 'edit')}")
        output.line(str(report.plan.work))
        return
    groups = report.groups
    for name, ids in groups.items():
        if ids:
            output.line(f"{WORDS[name]}: {listed(ids, ROWS)}")
    for id in [*groups["lost"], *groups["still_failed"]][:ROWS]:
        if reason := report.reasons.get(id):
            output.line(f"{id}: {reason}")
    counts = ", ".join(f"{len(ids):,} {WORDS[name]}" for name, ids in groups.items() if ids)
    output.line(f"{what}{' is there already' if report.existed else ''}: {counts or 'no edit'}")
    if report.failed:
        output.note(f"next: more edit {report.target.typed} --retry")
    else:
        output.line(f"next: more eval {report.target.typed}")
