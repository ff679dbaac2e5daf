"""`more anchors`: adds anchors to a state, or lists those it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from more_cli.cli import options as opt
from more_cli.cli.help import Command, Group
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.cli.words import names_model, refuse_swapped
from more_cli.model.machine import Machine
from more_cli.options import FileOptions
from more_cli.store.target import locate
from more_cli.text import counted, quoted


class _Anchors(Group):
    """Knows what `more anchors MODEL` is meant to be."""

    def hint(self, ctx: Any, word: str) -> str:
        return f"type: more anchors list {quoted(word)}" if names_model(word) else super().hint(ctx, word)


app = typer.Typer(
    cls=_Anchors,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Add anchors (questions whose answers must not change) to a state, or list them.",
)


@app.command(cls=Command)
@command
def add(
    model: opt.ModelFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON Lines file of questions; see `more init`.")],
    state: opt.StateFile = None,
    *,
    images: FileOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Add anchors to a state, also to one that has edits.

    Later writes hold them to the base's answers. Edits that were made before stay as they are.

    \b
    Examples:
      more anchors add llava/ regression.jsonl
    """
    from more_cli.ops.add_anchors import add_anchors
    from more_cli.outputs.states import AnchorsOutput

    refuse_swapped(model, [file], "more anchors add {} {}")
    target = locate(model, state)
    with output.progress() as progress:
        report = add_anchors(target, file, images, machine, progress)
    output.json(AnchorsOutput.of(report, state=target.sidecar, anchors=report.total))
    output.replayed(report.replayed)
    repeated = f", {report.repeated} known already" if report.repeated else ""
    output.line(f"{counted(report.added, 'anchor')} added{repeated}; {target.sidecar} holds {report.total} from now on")


@app.command("list", cls=Command)
@command
def list_(model: opt.Model = None, state: opt.StateFile = None, *, output: Output) -> None:
    """List the anchors that a state holds.

    \b
    Examples:
      more anchors list llava/
    """
    from more_cli.ops.add_anchors import list_anchors
    from more_cli.outputs.states import Anchor, AnchorsListOutput

    target = locate(model, state)
    anchors, corrected = list_anchors(target)
    rows = [Anchor.of(each, corrected_by=corrected.get(place)) for place, each in enumerate(anchors)]
    output.json(AnchorsListOutput(state=target.sidecar, anchors=rows))
    output.table(
        ("question", "answer", "image"),
        [
            (
                row.question,
                f"corrected by {row.corrected_by}" if row.corrected_by else row.answer or "the base's own",
                (row.image or (counted(len(row.images), "picture") if row.images else "none"))[:16],
            )
            for row in rows
        ],
    )
    rest = f"; edits correct {counted(len(corrected), 'other')}, held no longer" if corrected else ""
    output.line(f"{target.sidecar} holds {counted(len(rows) - len(corrected), 'anchor')}{rest}")
