"""`more edit`: a file, a pipe or a growing file of corrections, with results as one report or line by line."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.failures import EDITS_FAILED, INTERRUPTED
from more_cli.cli.output import Output
from more_cli.errors import UsageError

if TYPE_CHECKING:
    from more_cli.inputs.feeds import Feed


def edit(
    model: opt.ModelFolder,
    edits: Annotated[Path, typer.Argument(metavar="EDITS", help="JSON Lines file, or - for standard input.")],
    recipe: opt.RecipeName = None,
    set_: opt.Settings = None,
    state: opt.StateFile = None,
    image_root: opt.ImageRoot = None,
    strict_paths: opt.StrictPaths = False,
    on_error: Annotated[opt.OnError, typer.Option(help="Refuse the whole file for a bad line, or skip the line.")] = (
        opt.OnError.stop
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="Apply at most the first N edits of the stream.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow EDITS as it grows, also when it is replaced.")] = False,
    idle: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="End --watch after so long without a new line.")
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Write the state every N edits (and every 30 s).")] = 10,
    store_images: Annotated[bool, typer.Option(help="Keep a copy of every image, for replay and scoring.")] = True,
    consolidate: Annotated[
        opt.Consolidate,
        typer.Option(help="At the end, write once more what does not hold: of this run, or of all edits."),
    ] = opt.Consolidate.off,
    batch: Annotated[bool, typer.Option("--batch", help="Write all edits of the stream together, at its end.")] = False,
    reapply: Annotated[bool, typer.Option("--reapply", help="Apply edits again that were reverted.")] = False,
    snapshot_every: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep the state of every N-th edit: a revert starts there.")
    ] = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Print one JSON object per edit as soon as it is safe on disk.")
    ] = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Apply the edits of a stream that are not applied yet.

    Creates the state first if there is none. Run it again after an interruption: it continues.

    \b
    Examples:
      more edit llava/ edits.jsonl
      producer | more edit llava/ - --json-lines | consumer
      more edit llava/ --watch fixes.jsonl --idle 600
    """
    if as_json and json_lines:
        raise UsageError("--json and --json-lines were both given", "leave one of them out")
    output = Output(as_json=as_json or json_lines, quiet=quiet, verbose=verbose)
    from more_cli.cli import reports
    from more_cli.ops.edit import EditOptions, edit_file, edit_stream
    from more_cli.ops.session import locate

    chosen = EditOptions(
        recipe,
        tuple(set_ or ()),
        image_root,
        strict_paths,
        on_error.value,
        limit,
        save_every,
        dry_run,
        store_images,
        consolidate.value,
        batch,
        reapply,
        snapshot_every,
    )
    target, machine = locate(model, state), opt.machine(device, dtype, device_map, memory)
    listener = reports.ResultLines(output) if json_lines else None
    feed = _feed(output, edits, watch, idle)
    with output.progress() as progress:
        if feed is None:
            report = edit_file(target, edits, chosen, machine, progress, listener)
        else:
            report = edit_stream(target, feed, chosen, machine, progress, listener)
    reports.show_edit(output, report, told=json_lines)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.failed:
        raise typer.Exit(EDITS_FAILED)


def _feed(output: Output, edits: Path, watch: bool, idle: float | None) -> Feed | None:
    """Return what is read line by line as it comes; None for a file that is there as a whole."""
    from more_cli.inputs.feeds import Pipe, Watch

    if idle is not None and not watch:
        raise UsageError("--idle is for --watch", "add it, or leave --idle out")
    if str(edits) == "-":
        if watch:
            raise UsageError("--watch follows a file, not standard input", "name the file, or leave --watch out")
        if sys.stdin is None:
            raise UsageError("standard input is closed", "pipe the edits in, or name a file")
        return Pipe(sys.stdin.buffer)
    if watch:
        return Watch(edits, idle, output.note)
    if edits.exists() and stat.S_ISFIFO(edits.stat().st_mode):
        return Pipe(edits.open("rb"), str(edits))
    return None
