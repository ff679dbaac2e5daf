"""`more switch`: lists the states beside a checkpoint, and says which one commands use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.checkpoint.folder import require_checkpoint
from more_cli.cli import completion
from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.cli.project import was_typed
from more_cli.cli.records import command
from more_cli.cli.words import names_model
from more_cli.errors import UsageError
from more_cli.store.names import named_path
from more_cli.store.project import settings_for
from more_cli.store.target import locate, model_here
from more_cli.text import counted, quoted

if TYPE_CHECKING:
    from more_cli.ops.switch import SwitchReport

USAGE = "more switch MODEL NAME"


@command
def switch(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [NAME]",
            help="Checkpoint folder, and the name of one of its states: `main` is MODEL.more, `ann` is MODEL.ann.more.",
            autocompletion=completion.states,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", "-l", help="List the states; so does a call without NAME.")] = False,
    create: Annotated[
        bool, typer.Option("--create", "-c", help="Make the state NAME first, as a copy of the one in use.")
    ] = False,
    state: opt.StateFile = None,
    *,
    output: Output,
) -> None:
    """Choose which of a model's states commands use, make another one, or list them.

    It is what `git switch` is for branches. The choice is in the file MODEL.more.current and holds until the next one;
    --state, MORE_STATE and more.toml come before it. With --create, --state names another state to copy.

    \b
    Examples:
      more switch llava/ ann --create
      more switch llava/ main
      more switch llava/
    """
    from more_cli.ops.switch import create as make
    from more_cli.ops.switch import listed
    from more_cli.ops.switch import switch as run
    from more_cli.outputs.shared import SwitchOutput

    model, name = _model_and_name(words or [])
    if list_ and (create or name is not None):
        raise UsageError("`--list` goes with no name and no `--create`", f"type: more switch {quoted(model)} --list")
    if create and name is None:
        raise UsageError("`--create` needs the name of the new state", f"type: {USAGE} --create")
    if not create and was_typed(ctx, "state"):
        hint = f"leave it out, or make a copy of that state: {USAGE} --create --state {quoted(state)}"
        raise UsageError("`--state` goes with `--create`: it names the state to copy", hint)
    report = listed(model) if name is None else make(locate(model, state), name) if create else run(model, name)
    output.json(SwitchOutput.of_report(report))
    _show(output, report, name)
    named, says = os.environ.get("MORE_STATE"), "MORE_STATE"
    if not named and (found := settings_for(model).get("state")):
        named, says = str(found.value), found.place
    if named:
        output.note(f"note: as long as {says} names `{named}`, commands use that")


def _model_and_name(words: list[str]) -> tuple[Path, str | None]:
    """Return the checkpoint and the name of a state among the words; without a checkpoint it is the one here."""
    if len(words) > 2:
        raise UsageError(f"one name at a time, not {len(words) - 1}", f"type: {USAGE}")
    if len(words) == 2 or (words and names_model(words[0])):
        if not names_model(words[0]):
            require_checkpoint(Path(words[0]))  # says what it is instead
        return Path(words[0]), words[1] if len(words) == 2 else None
    return model_here(), words[0] if words else None


def _show(output: Output, report: SwitchReport, name: str | None) -> None:
    if name is None:
        rows = [
            ("*" * (each.name == report.current), each.name, each.edits, each.failed, each.problem or each.path.name)
            for each in report.states
        ]
        output.table(("", "state", "edits", "failed", "file"), rows, numbers=("edits", "failed"))
        if report.current not in {each.name for each in report.states}:
            output.line(f"in use: {report.current}, which has no state yet")
        return
    made = "made and in use" if report.created else "in use"
    found = next((each for each in report.states if each.name == name), None)
    holds = f", {found.problem or counted(found.edits or 0, 'edit')}" if found else ""
    output.line(f"state {name} is {made}: {named_path(report.model, name).name}{holds}")
