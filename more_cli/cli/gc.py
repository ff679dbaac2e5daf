"""`more gc`: removes files of a state that are no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.store.target import locate
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.ops.gc import GcReport


@command
def gc(
    model: opt.Model = None,
    state: opt.StateFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be removed; remove nothing.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Remove files that a state no longer needs.

    Removes snapshots of earlier states, caches, unfinished reverts, and images that no ledger line names. Never removes
    the ledger. Without snapshots, the next `revert` replays more edits.

    \b
    Examples:
      more gc llava/ --dry-run
    """
    from more_cli.ops.gc import collect

    _show_gc(output, collect(locate(model, state), dry_run=dry_run))


def _show_gc(output: Output, report: GcReport) -> None:
    from more_cli.outputs.states import GcOutput

    output.json(GcOutput.of(report, state=report.target.sidecar, bytes=report.size))
    output.table(("file", "bytes"), [(name, f"{size:,}") for name, size in report.files.items()], numbers=("bytes",))
    verb = "would remove" if report.dry_run else "removed"
    output.line(f"{verb} {counted(len(report.files), 'file')}, {counted(report.size, 'byte')}")
