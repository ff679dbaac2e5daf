"""`more merge`: writes a standalone checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.failures import EDITS_FAILED
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.cli.words import refuse_swapped
from more_cli.model.machine import Machine
from more_cli.options import MergeOptions
from more_cli.store.target import locate
from more_cli.text import counted, quoted, verb

if TYPE_CHECKING:
    from more_cli.ops.folding import Verification
    from more_cli.ops.merge import MergeReport


@command
def merge(
    model: opt.Model = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the edited checkpoint.")] = ...,  # type: ignore[assignment]
    state: opt.StateFile = None,
    *,
    options: MergeOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Write a standalone checkpoint that includes the edits.

    \b
    Examples:
      more merge llava/ -o llava-edited/
      more merge llava/ -o llava-edited/ --require-all --verify --sha256
      more merge llava/ -o llava-edited/ --link
      more merge llava-nf4/ -o llava-edited/ --into llava/
    """
    from more_cli.ops.merge import merge as run

    if model is not None and not (out / "more.json").exists():  # a folder that an earlier merge wrote
        refuse_swapped(model, [out], "more merge {} -o {}")
    target = locate(model, state)
    with output.progress() as progress:
        report = run(target, out, machine, options, progress)
    _show_merge(output, report)
    if report.verification is not None and report.verification.lost:
        raise typer.Exit(EDITS_FAILED)


def _show_merge(output: Output, report: MergeReport) -> None:
    from more_cli.outputs.products import MergeOutput
    from more_cli.store.entry import failed_sentence

    output.json(MergeOutput.of_report(report))
    output.replayed(report.replayed)
    for name in report.files.left_out:
        output.note(f"not copied (it may hold weights without the edits): {name}")
    if report.dry_run:
        changed = f"{counted(len(report.folds), 'tensor')} changed"
        output.line(f"would write {report.out}: {report.files.size:,} bytes of weights, {changed}")
    else:
        _show_written(output, report)
    if report.failed:
        output.line(failed_sentence(report.failed, report.asked))


def _show_written(output: Output, report: MergeReport) -> None:
    output.table(
        ("tensor", "dtype", "entries changed", "update kept"),
        [
            (fold.disk_key, fold.dtype, f"{fold.changed / max(fold.entries, 1):.1%}", f"{fold.realised:.1%}")
            for fold in report.folds
        ],
        numbers=("entries changed", "update kept"),
    )
    if report.folds:
        output.line(f"merged {counted(report.edits, 'edit')} into {report.out}; all other bytes equal the base's")
    else:
        output.line(f"wrote {report.out}; nothing changed: all its weights are the base's")
    if report.files.not_linked:
        output.note(f"note: shards were copied because they cannot be linked here: {report.files.not_linked}")
    if report.files.linked:
        shards = f"{len(report.files.linked)} of {counted(report.files.shards, 'shard')}"
        links = "is a hard link to the base's file: do not modify it in place"
        if len(report.files.linked) > 1:
            links = "are hard links to the base's files: do not modify them in place"
        output.line(f"{shards} {links}")
    _show_verification(output, report)


def _show_verification(output: Output, report: MergeReport) -> None:
    result = report.verification
    if result is None:
        return
    if report.into is not None:
        _show_held(output, report, result)
        return
    kept = f"{result.edits - len(result.lost)} of {counted(result.edits, 'edit')}"
    gap = f"largest logit difference {result.largest_logit_gap:.2g}"
    output.line(f"verified: {kept} {verb(result.edits, 'scores', 'score')} as with the live state or better, {gap}")
    if result.lost:
        output.note(f"lost to rounding: {', '.join(result.lost)}")
        output.note("hint: try --rounding stochastic, or serve the base with the state")


def _show_held(output: Output, report: MergeReport, result: Verification) -> None:
    """Show how many edits that were learnt beside quantised weights hold in the full-precision ones."""
    held = result.edits - len(result.lost) - len(report.not_held)
    output.line(f"verified: {held} of {counted(result.edits, 'edit')} {verb(held, 'holds', 'hold')} in {report.out}")
    if report.not_held:
        output.note(f"did not hold beside the quantised weights either: {', '.join(report.not_held)}")
    if result.lost:
        output.note(f"lost beside full-precision weights: {', '.join(result.lost)}")
        output.note(f"hint: correct these there: more edit {quoted(report.out)} STREAM")
