"""`more help`: shows the help of a command, or a topic that belongs to no command."""

from __future__ import annotations

from typing import Annotated

import typer

from more_cli.cli import commands
from more_cli.cli.failures import EXIT_CODES
from more_cli.cli.output import Output
from more_cli.errors import UsageError
from more_cli.text import did_you_mean

TOPIC = "exit-codes"


def help_(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND|TOPIC]", help=f"A command, such as `edit` or `log show`, or {TOPIC}."),
    ] = None,
) -> None:
    """Show the help of a command, or the exit codes.

    \b
    Examples:
      more help edit
      more help exit-codes
    """
    from more_cli.cli.app import main

    if words == [TOPIC]:
        Output().fields({str(code): meaning for code, meaning in EXIT_CODES.items()})
        return
    known = commands.names()
    if words and words[0] not in known:
        hint = did_you_mean(words[0], [*known, TOPIC], closeness=0.5) or "`more --help` lists the commands"
        raise UsageError(f"no command and no topic `{words[0]}`", hint)
    raise typer.Exit(main([*(words or ()), "--help"]))
