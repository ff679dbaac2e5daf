"""`more edit`: applies edits from a file, a pipe or a growing file; reports at the end or line by line."""

from __future__ import annotations

import stat
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli import options as opt
from more_cli.cli.failures import EDITS_FAILED, INTERRUPTED
from more_cli.cli.init import show_notices
from more_cli.cli.output import ROWS, Output
from more_cli.errors import UsageError
from more_cli.store.target import locate

if TYPE_CHECKING:
    from more_cli.inputs.feeds import Feed
    from more_cli.inputs.records import Problem
    from more_cli.ops.edit import EditReport, Listener
    from more_cli.store.entry import Entry, Status


class OnError(StrEnum):
    """What happens at a bad line."""

    stop = "stop"
    skip = "skip"


class Consolidate(StrEnum):
    """Which edits are checked, and if necessary written, once more after a stream."""

    off = "off"
    run = "run"
    all = "all"


def edit(
    model: opt.ModelFolder,
    edits: Annotated[Path, typer.Argument(metavar="EDITS", help="JSON Lines file, or - for standard input.")],
    recipe: opt.RecipeName = None,
    set_: opt.Settings = None,
    state: opt.StateFile = None,
    image_root: opt.ImageRoot = None,
    strict_paths: opt.StrictPaths = False,
    on_error: Annotated[
        OnError, typer.Option(help="At a bad line: refuse the whole file, or skip the line.")
    ] = OnError.stop,
    limit: Annotated[int | None, typer.Option(min=1, help="Apply at most the first N edits of the stream.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep reading EDITS as it grows, also after it was replaced.")
    ] = False,
    idle: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="End --watch after this time without a new line.")
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Write the state every N edits (and every 30 s).")] = 10,
    store_images: Annotated[bool, typer.Option(help="Keep a copy of every image, for replay and scoring.")] = True,
    consolidate: Annotated[
        Consolidate, typer.Option(help="At the end, write again the edits that do not hold: of this run, or all.")
    ] = Consolidate.off,
    batch: Annotated[bool, typer.Option("--batch", help="Write all edits of the stream together, at its end.")] = False,
    reapply: Annotated[bool, typer.Option("--reapply", help="Apply reverted edits again.")] = False,
    snapshot_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Keep a copy of the state every N edits: it makes `revert` faster."),
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

    Creates the state first if there is none. After an interruption, run the same command again: it continues.

    \b
    Examples:
      more edit llava/ edits.jsonl
      producer | more edit llava/ - --json-lines | consumer
      more edit llava/ --watch fixes.jsonl --idle 600
    """
    if as_json and json_lines:
        raise UsageError("--json and --json-lines were both given", "leave one of them out")
    output = Output(as_json=as_json or json_lines, quiet=quiet, verbose=verbose)
    from more_cli.ops.edit import EditOptions, edit_file, edit_stream

    options = EditOptions(
        recipe=recipe,
        settings=tuple(set_ or ()),
        image_root=image_root,
        strict_paths=strict_paths,
        on_error=on_error.value,
        limit=limit,
        save_every=save_every,
        dry_run=dry_run,
        store_images=store_images,
        consolidate=consolidate.value,
        batch=batch,
        reapply=reapply,
        snapshot_every=snapshot_every,
    )
    target, machine = locate(model, state), opt.machine(device, dtype, device_map, memory)
    listener = _result_lines(output) if json_lines else None
    feed = _feed(output, edits, watch, idle)
    with output.progress() as progress:
        if feed is None:
            report = edit_file(target, edits, options, machine, progress, listener=listener)
        else:
            report = edit_stream(target, feed, options, machine, progress, listener=listener)
    _show_edit(output, report, line_by_line=json_lines)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.failed:
        raise typer.Exit(EDITS_FAILED)


def _feed(output: Output, edits: Path, watch: bool, idle: float | None) -> Feed | None:
    """Return the source to read line by line; None for a file that is complete."""
    from more_cli.inputs.feeds import Pipe, Watch

    if idle is not None and not watch:
        raise UsageError("--idle needs --watch", "add --watch, or leave --idle out")
    if str(edits) == "-":
        if watch:
            raise UsageError("--watch reads a file, not standard input", "name the file, or leave --watch out")
        if sys.stdin is None:
            raise UsageError("standard input is closed", "pipe the edits in, or name a file")
        return Pipe(sys.stdin.buffer)
    if watch:
        return Watch(edits, idle, output.note)
    if edits.exists() and stat.S_ISFIFO(edits.stat().st_mode):
        return Pipe(edits.open("rb"), str(edits))
    return None


def _result_lines(output: Output) -> Listener:
    """Return what prints a JSON object for each edit and each bad line at once (`--json-lines`)."""
    from more_cli.ops.edit import Listener

    class ResultLines(Listener):
        def edited(self, entry: Entry, status: Status, *, new: bool) -> None:
            values = entry_values(entry) | {"status": status, "new": new, "source": entry.source, "line": entry.line}
            output.json("more.edit.result/1", values)

        def problem(self, problem: Problem) -> None:
            output.json("more.edit.problem/1", asdict(problem))

    return ResultLines()


def _show_edit(output: Output, report: EditReport, *, line_by_line: bool) -> None:
    """Show the result of a stream and name its failed edits; in JSON without edits and problems if `line_by_line`."""
    values = edit_values(report)
    if line_by_line:
        output.json("more.edit.end/1", {key: values[key] for key in values if key not in ("edits", "problems")})
    else:
        output.json("more.edit/1", values)
    _show_notes(output, report)
    if report.dry_run:
        output.line(f"{report.total} edits checked, nothing written")
        return
    failed = set(report.failed)
    entries = [entry for entry in report.entries if entry.id in failed]
    output.table(
        ("edit", "status", "question", "target", "answer", "reason"),
        [(e.id, report.statuses[e.id], e.question, e.target, e.answer_after, e.reason) for e in entries[:ROWS]],
    )
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items()) or "no edits"
    output.line(f"{report.applied} applied, {report.skipped} skipped (already in the ledger); of this stream: {counts}")
    if report.consolidation is not None:
        done = report.consolidation
        result = "all hold" if done.status == "learnt" else "some still do not hold"
        output.line(f"consolidation: {len(done.looks)} edits checked, {done.writes} writes, cost {done.cost}; {result}")
    if report.failed:
        output.note(f"failed edits: {', '.join(report.failed[:ROWS])}")
    if report.interrupted:
        output.note("interrupted, state saved; run the same command again to continue")


def _show_notes(output: Output, report: EditReport) -> None:
    if report.created is not None:
        show_notices(output, report.created.plan)
        output.note(f"created {report.created.target.sidecar} with recipe {report.created.plan.recipe.name}")
    output.replayed(report.replayed)
    for problem in report.problems:
        output.note(f"skipped: {problem}")
    for note in report.notes:
        output.note(note)
    if report.reverted:
        output.note(f"{len(report.reverted)} of these edits stay reverted; --reapply applies them again")


def edit_values(report: EditReport) -> dict[str, Any]:
    """Return an edit report as JSON values."""
    return {
        "state": str(report.target.sidecar),
        "total": report.total,
        "applied": report.applied,
        "skipped": report.skipped,
        "reverted": report.reverted,
        "replayed": report.replayed,
        "counts": report.counts,
        "failed": report.failed,
        "problems": report.problems,
        "notes": report.notes,
        "interrupted": report.interrupted,
        "dry_run": report.dry_run,
        "wall_seconds": round(report.wall_seconds, 3),
        "consolidation": entry_values(report.consolidation) if report.consolidation else None,
        "edits": [entry_values(entry) | {"status": report.statuses[entry.id]} for entry in report.entries],
    }


def entry_values(entry: Entry) -> dict[str, Any]:
    """Return what a ledger line says about its edit as JSON values."""
    return {
        "id": entry.id,
        "status": entry.status,
        "reason": entry.reason,
        "question": entry.question,
        "target": entry.target,
        "answer_before": entry.answer_before,
        "answer_after": entry.answer_after,
        "nll_before": entry.nll_before,
        "nll_after": entry.nll_after,
        "right_after": entry.right_after,
        "writes": entry.writes,
        "cost": entry.cost,
        "wall_ms": entry.wall_ms,
    }
