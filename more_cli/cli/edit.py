"""`more edit`: applies edits from a file, a pipe or a growing file; reports at the end or line by line."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.failures import EDITS_FAILED, INTERRUPTED
from more_cli.cli.hub import fetched
from more_cli.cli.init import ARRIVING, show_new
from more_cli.cli.output import ROWS, Output
from more_cli.cli.project import anchors_named, recipe_of
from more_cli.cli.records import command
from more_cli.cli.tracked import finish_edits, start_edits, tracked, tracks_edits
from more_cli.cli.words import refuse_swapped
from more_cli.errors import UsageError
from more_cli.model.machine import Machine
from more_cli.options import EditOptions, FeedOptions, HubOptions, TrackOptions, given
from more_cli.store.project import settings_for
from more_cli.store.target import locate
from more_cli.text import counted, listed, quoted

if TYPE_CHECKING:
    from more_cli.inputs.feeds import Feed
    from more_cli.inputs.records import Problem
    from more_cli.ops.edit import EditReport, Listener
    from more_cli.progress import Progress
    from more_cli.store.entry import Entry
    from more_cli.store.status import Status
    from more_cli.store.target import Target

FOR_EVERY_TRY = {
    *("--retry", "--set", "--image-root", "--strict-paths", "--dry-run", "--json-lines"),
    *("--on-error", "--save-every", "--store-images", "--anchors", "--compact"),
}
"""Options that a retry takes too, or that cannot matter to it."""


@command
def edit(
    model: opt.ModelFolder,
    edits: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EDITS",
            help="JSON Lines file, or - for standard input. With --retry: ids of edits, or such a file. Optional with "
            "--consolidate all or anew.",
        ),
    ] = None,
    state: opt.StateFile = None,
    *,
    feed: FeedOptions,
    options: EditOptions,
    hub: HubOptions,
    machine: Machine,
    tracker: TrackOptions,
    output: Output,
) -> None:
    """Apply the edits of a stream that are not applied yet.

    Creates the state first if there is none. After an interruption, run the same command again: it continues.

    \b
    Examples:
      more edit llava/ edits.jsonl
      producer | more edit llava/ - --json-lines | consumer
      more edit llava/ --watch fixes.jsonl --idle 600
      more edit llava/ --retry
      more edit llava/ --retry e17 --set max_steps=30
      more edit llava/ edits.jsonl --retry --dry-run
    """
    if output.as_json and feed.json_lines:
        raise UsageError("--json and --json-lines were both given", "leave one of them out")
    output.as_json = output.as_json or feed.json_lines
    refuse_swapped(model, edits or (), "more edit {} {}" + " --retry" * feed.retry)
    target = locate(*fetched(output, model, state, hub))
    apply = _application(output, target, edits or [], feed, options)
    listener = _listener(output, line_by_line=feed.json_lines)
    with tracked(output, tracker) as to:
        if to is not None:
            start_edits(to, target.sidecar.stem)
            listener = tracks_edits(to, listener)
        with output.progress() as progress:
            report = apply(machine, progress, listener)
        if to is not None:
            finish_edits(to, report)
    _show_edit(output, report, line_by_line=feed.json_lines, retry=feed.retry)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.failed and not report.dry_run:
        raise typer.Exit(EDITS_FAILED)


def _application(
    output: Output, target: Target, edits: list[str], feed: FeedOptions, options: EditOptions
) -> Callable[[Machine, Progress, Listener], EditReport]:
    """Return what applies a file, or a stream as it arrives, or tries edits again."""
    from more_cli.ops.edit import edit_file, edit_stream
    from more_cli.ops.retry import retry

    if feed.retry:
        _refuse_stream_options(options, feed)
        return partial(retry, target, edits, options)
    if feed.watch and options.dry_run:
        raise UsageError("`--dry-run` looks at what a file holds, and `--watch` waits for more", "leave --watch out")
    options = _for_new_state(target, options)
    source = _feed(output, _one_stream(edits), feed) if edits else _no_edits(target, options, feed)
    if isinstance(source, Path):
        return partial(edit_file, target, source, options)
    return partial(edit_stream, target, source, options)


def _for_new_state(target: Target, options: EditOptions) -> EditOptions:
    """Take recipe and anchors of `more.toml` where the call makes the state; a state that exists has its own."""
    if target.sidecar.exists():
        return options
    project = settings_for(target.model)
    anchors = anchors_named(project) if options.anchors else None
    return replace(options, recipe=options.recipe or recipe_of(project), anchors_file=anchors)


def _no_edits(target: Target, options: EditOptions, source: FeedOptions) -> Feed:
    """Return an empty stream for a call that only consolidates what a state has."""
    from more_cli.inputs.feeds import Pipe
    from more_cli.ops.edit import EVERY
    from more_cli.store.state import open_state

    if target.model.is_file():
        raise UsageError(
            f"missing argument MODEL: `{target.model}` is no folder",
            f"type: more edit MODEL {quoted(target.model)}",
        )
    if options.consolidate not in EVERY or source.watch or source.idle is not None:
        raise UsageError("missing argument EDITS", "name a JSON Lines file, or - for standard input")
    open_state(target.sidecar)  # raises where there is none: without edits none is created
    return Pipe(io.BytesIO())


def _one_stream(edits: list[str]) -> Path:
    if len(edits) > 1:
        raise UsageError(f"one stream at a time, not {len(edits)}", "cat a.jsonl b.jsonl | more edit MODEL -")
    return Path(edits[0])


def _refuse_stream_options(options: EditOptions, feed: FeedOptions) -> None:
    """Refuse options that are about a stream: a retry reads the edits from the ledger."""
    if about_stream := [option for option in (*given(options), *given(feed)) if option not in FOR_EVERY_TRY]:
        option = about_stream[0]
        raise UsageError(f"`--retry` and `{option}` exclude each other", f"leave {option} out")


def _feed(output: Output, edits: Path, source: FeedOptions) -> Feed | Path:
    """Return the source to read line by line, or the file if it is complete."""
    from more_cli.inputs.feeds import Pipe, Watch

    if source.idle is not None and not source.watch:
        raise UsageError("--idle needs --watch", "add --watch, or leave --idle out")
    if str(edits) == "-":
        if source.watch:
            raise UsageError("--watch reads a file, not standard input", "name the file, or leave --watch out")
        if sys.stdin is None:
            raise UsageError("standard input is closed", "pipe the edits in, or name a file")
        return Pipe(sys.stdin.buffer)
    if source.watch:
        return Watch(edits, source.idle, output.note)
    if edits.is_fifo():
        return Pipe(edits.open("rb"), str(edits))
    return edits


def _listener(output: Output, *, line_by_line: bool) -> Listener:
    """Return what says that a compaction begins and, with `--json-lines`, prints each edit and bad line at once."""
    from more_cli.ops.edit import Listener
    from more_cli.outputs.edits import EditProblemOutput, EditResultOutput

    class Notes(Listener):
        def compacting(self, edits: int, seconds: float) -> None:
            longest = counted(math.ceil(seconds / 60), "minute")
            output.note(f"{counted(edits, 'edit')} are written anew now, in about {longest} or less")
            output.note("hint: --no-compact leaves that to a later call; after an interrupt the next call continues it")

    class ResultLines(Notes):
        def edited(self, entry: Entry, status: Status, *, new: bool, supersedes: Sequence[str] = ()) -> None:
            output.json(EditResultOutput.of_entry(entry, status, new=new, supersedes=supersedes))

        def problem(self, problem: Problem) -> None:
            output.json(EditProblemOutput.of(problem))

    return ResultLines() if line_by_line else Notes()


def _show_edit(output: Output, report: EditReport, *, line_by_line: bool, retry: bool) -> None:
    """Show the result of a stream and name its failed edits; in JSON without edits and problems if `line_by_line`."""
    from more_cli.outputs.edits import EditEndOutput, EditOutput

    whole = EditOutput.of_report(report)
    output.json(EditEndOutput.of(whole) if line_by_line else whole)
    _show_notes(output, report)
    _show_failed(output, report)
    if report.dry_run:
        result = "would be tried again" if retry else "checked"
        output.line(f"{counted(report.total, 'edit')} {result}, nothing written")
        return
    together = [("compaction", entry) for entry in report.run.compactions]
    together += [("consolidation", report.run.consolidation)] if report.run.consolidation else []
    if report.total or not together:
        output.line(_summary(report))
    for word, done in together:
        outcome = "all hold" if done.status == "learnt" else "some still do not hold"
        checked, writes = counted(len(done.looks), "edit"), counted(done.writes, "write")
        output.line(f"{word}: {checked} {done.consolidated}, {writes}, cost {done.cost}; {outcome}")
    if report.run.drift:
        output.line(f"drift of {report.run.drift.sentence}")
    if report.failed:
        output.note(f"failed edits: {listed(report.failed, ROWS)}")
    if report.interrupted:
        output.note("interrupted, state saved; run the same command again to continue")
    elif report.failed:
        output.note(f"next: more edit {report.target.typed} --retry")
    elif report.applied:
        output.note(f"next: more eval {report.target.typed}")


def _show_failed(output: Output, report: EditReport) -> None:
    failed = set(report.failed)
    entries = [entry for entry in report.entries if entry.id in failed]
    rows = list[tuple[object, ...]]()
    for e in entries[:ROWS]:
        rows.append((e.id, report.statuses[e.id], e.question, e.target, e.greedy_base, e.greedy_after))
        rows += [("", e.reason)] if e.reason else []
    answers = ("question", "target", "base", "after")
    output.table(("edit", "status", *answers), rows, cut=answers, left_out=len(entries) - ROWS)


def _summary(report: EditReport) -> str:
    """Return how many edits have each status, learnt, not learnt, refused and already right always among them."""
    names = dict.fromkeys(("learnt", "not-learnt", "refused", "already-right"), 0) | report.counts
    counts = ", ".join(f"{count} {name.replace('-', ' ')}" for name, count in names.items())
    return f"{report.applied} applied, {report.skipped} skipped (already in the ledger); of this stream: {counts}"


def _show_notes(output: Output, report: EditReport) -> None:
    if (made := report.run.created) is not None:
        show_new(output, made.plan)
        anchors = f" and {counted(made.anchors, 'anchor')}" if made.anchors else ""
        more = ARRIVING if made.state.arriving else ""
        output.note(f"created {made.target.sidecar} with recipe {made.plan.recipe.name}{anchors}{more}")
    output.replayed(report.run.replayed)
    for problem in report.problems:
        output.note(f"skipped: {problem}")
    for note in report.notes:
        output.note(note)
    pictured = {entry.id for entry in report.entries if entry.images} if report.superseded else ()
    for id, superseded in report.superseded.items():
        about = "picture and question" if id in pictured else "question"
        output.note(f"{id} supersedes {', '.join(superseded)}: same {about}, another answer")
    if report.reverted:
        output.note(f"{len(report.reverted)} of these edits stay reverted; --reapply applies them again")
