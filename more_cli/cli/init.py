"""`more init`: creates the state of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.hub import fetched
from more_cli.cli.output import Output
from more_cli.cli.project import anchors_named, recipe_of
from more_cli.cli.records import command, refuse_empty
from more_cli.cli.words import refuse_swapped
from more_cli.errors import UsageError
from more_cli.model.machine import Machine
from more_cli.options import FileOptions, HubOptions, RecipeOptions
from more_cli.store.project import settings_for
from more_cli.store.target import locate
from more_cli.text import counted, quoted

if TYPE_CHECKING:
    from more_cli.ops.init import InitReport
    from more_cli.ops.plan import Plan

ARRIVING = "; edits bring more, made of their pictures"
"""Said of anchors where the state lets edits bring some."""


@command
def init(
    model: opt.ModelFolder,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="EDITS|FOLDER", help="With --anchors auto: edits, or pictures, to make anchors from."),
    ] = None,
    state: opt.StateFile = None,
    anchors: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|auto",
            help="JSON Lines file of questions whose answers must not change; auto makes some from edits or pictures.",
        ),
    ] = None,
    no_anchors: Annotated[
        bool,
        typer.Option(
            "--no-anchors",
            help="Take no anchors, neither now nor with later edits. Then only --calibrate loads the weights.",
        ),
    ] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of edits to choose the recipe's constants with; they are not kept."),
    ] = None,
    *,
    chosen: RecipeOptions,
    files: FileOptions,
    hub: HubOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Create the state of a checkpoint, without edits yet.

    Picks the recipe for the architecture, and anchors: questions whose answers must not change. Without --anchors these
    are prompts of the recipe and questions that the model asks itself; each edit later adds some about its picture.

    \b
    Examples:
      more init llava/
      more init llava/ --anchors regression.jsonl
      more init llava/ --anchors auto edits.jsonl
      more init llava/ --no-anchors
      more init llava-hf/llava-1.5-7b-hf --fetch
      more init llava/ --recipe paper-llava --set rank=256
    """
    from more_cli.ops.init import initialise
    from more_cli.ops.preparing import Inputs

    refuse_empty("--anchors", anchors)
    refuse_swapped(model, [source] if source else (), f"more init {{}} --anchors {'auto ' * bool(anchors)}{{}}")
    target = locate(*fetched(output, model, state, hub))
    project = settings_for(target.model)
    named = None if anchors or source or no_anchors else anchors_named(project)
    anchors, place = (str(named.path), named.place) if named else (anchors, "")
    file, arriving = _anchors_file(model, anchors, source, none=no_anchors), not (anchors or no_anchors)
    inputs = Inputs(file, source, arriving=arriving, calibrate=calibrate, files=files, place=place)
    with output.progress() as progress:
        report = initialise(target, chosen.recipe or recipe_of(project), chosen.settings, inputs, machine, progress)
    _show_init(output, report, source)


def _anchors_file(model: Path, anchors: str | None, source: Path | None, *, none: bool) -> Path | None:
    """Return the file of anchors that is named; None if some are made from a source, or none are taken."""
    from more_cli.ops.auto_anchors import AUTO

    if none and anchors is not None:
        raise UsageError("`--anchors` and `--no-anchors` exclude each other", "leave one of them out")
    if anchors == AUTO and source is None:
        hint = f"name a file of edits or a folder of pictures: more init {quoted(model)} --anchors {AUTO} edits.jsonl"
        raise UsageError(f"`--anchors {AUTO}` makes anchors from edits or pictures, and none are named", hint)
    if anchors != AUTO and source is not None:
        raise UsageError(f"`{source}` is read with `--anchors {AUTO}` only", f"add --anchors {AUTO}, or leave it out")
    return Path(anchors) if anchors and source is None else None


def _show_init(output: Output, report: InitReport, source: Path | None) -> None:
    from more_cli.outputs.states import InitOutput

    plan = report.plan
    output.json(InitOutput.of_report(report))
    show_new(output, plan)
    state = f"wrote {report.target.sidecar}" if report.created else f"{report.target.sidecar} already exists, unchanged"
    lines = "no edits" if report.created else counted(report.state.edits, "ledger line")
    anchors = f", made with {counted(report.anchors, 'anchor')}" if report.anchors else ""
    anchors += ARRIVING if report.state.arriving else ""
    stored = "A, B and P" if plan.recipe.stores_basis else "B and P"
    output.line(
        f"{state}: recipe {plan.recipe.name}, {counted(len(plan.sites), 'site')}, "
        f"{report.parameters:,} parameters in {stored}, {lines}{anchors}"
    )
    if source is not None:
        about = f"{report.pictured:,} about pictures of {source}, " if report.pictured else ""
        output.line(f"{counted(report.anchors, 'anchor')}: {about}{report.anchors - report.pictured:,} text only")
    calibration = report.state.calibration
    if calibration is not None:
        output.table(
            ("setting", "mean score"),
            [(_setting(trial["setting"]), f"{trial['score']:.4f}") for trial in calibration["tried"]],
            numbers=("mean score",),
        )


def _setting(values: dict[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items()) or "as in the recipe"


def show_new(output: Output, plan: Plan) -> None:
    """Show what is unusual about the plan of a new state; a capped rank only to who set `rank`, or with -v."""
    if plan.capped and (plan.rank_set or output.verbose):
        output.note(f"note: {plan.capped}")
    show_notices(output, plan)


def show_notices(output: Output, plan: Plan) -> None:
    """Show what is unusual about a plan, and which modules it cannot edit."""
    for notice in plan.notices:
        output.note(f"note: {notice}")
    for refusal in plan.refusals:
        output.note(f"note: {refusal.module} is not edited: {refusal.reason}")
