"""Assembles the commands: one file each, registered here.

Nothing heavy is imported before a command runs, so `more --help` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from more_cli import __version__
from more_cli.cli import anchors, log, recipes, suites
from more_cli.cli.analyze import analyze
from more_cli.cli.ask import ask
from more_cli.cli.bench import bench
from more_cli.cli.compare import compare
from more_cli.cli.convert import convert
from more_cli.cli.demo import demo
from more_cli.cli.edit import edit
from more_cli.cli.evaluate import evaluate
from more_cli.cli.export import export
from more_cli.cli.failures import INTERRUPTED, MISUSE, as_user_error, show_misuse
from more_cli.cli.gc import gc
from more_cli.cli.help import Command, Group
from more_cli.cli.init import init
from more_cli.cli.merge import merge
from more_cli.cli.output import close_stdout, fail
from more_cli.cli.reproduce import reproduce
from more_cli.cli.revert import revert
from more_cli.cli.review import review
from more_cli.cli.status import status
from more_cli.cli.sweep import sweep
from more_cli.cli.verify import verify
from more_cli.errors import MoreError

EXIT_CODES = """Exit codes: 0 done, no edit failed; 1 bug; 2 usage or recipe; 3 some edits failed (not learnt or
refused), or a merge lost some, or --require-all found failed ones, or rows of a table were not measured, or parts of a
sweep failed; 4 bad input data; 5 model or state cannot be used; 6 a gate was missed; 7 out of memory or disk; 130
interrupted, state saved."""

COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Start": {"demo": demo, "ask": ask, "recipes": recipes.app},
    "Correct": {
        "convert": convert,
        "init": init,
        "edit": edit,
        "anchors": anchors.app,
        "revert": revert,
        "review": review,
    },
    "Measure": {
        "eval": evaluate,
        "compare": compare,
        "reproduce": reproduce,
        "sweep": sweep,
        "analyze": analyze,
        "bench": bench,
        "suites": suites.app,
    },
    "Ship": {"merge": merge, "export": export},
    "Audit": {"status": status, "log": log.app, "verify": verify, "gc": gc},
}
"""The commands, grouped by what one wants."""


class _Commands(Group):
    """The commands, with a message on Ctrl-C and on a closed output pipe, where Typer would exit silently."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in COMMANDS.values() for name in names]

    def hint(self, ctx: Any, word: str) -> str:
        hint = super().hint(ctx, word)
        if not os.path.isfile(word) or os.path.dirname(word):
            return hint
        return f"{hint}{'' if hint.endswith('?') else ';'} `more ./{word}` shows the file"

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                print(end="", flush=True)  # noqa: T201 (a failed flush at exit would print Python's own message)
        except BrokenPipeError:
            close_stdout()
            raise typer.Exit(INTERRUPTED) from None
        except KeyboardInterrupt:
            text = "interrupted; every edit in the ledger is safe; run the same command again to continue"
            print(text, file=sys.stderr)  # noqa: T201
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
    help="Correct a vision-language checkpoint from a stream of fixes.",
)
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, cls=Command, epilog=EXIT_CODES, rich_help_panel=_panel)(_command)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Bugs are not caught: they keep their traceback."""
    try:
        code: int | None = app(args=argv, prog_name="more", standalone_mode=False)
    except MISUSE as misuse:
        return show_misuse(misuse)
    except (MoreError, MemoryError, RuntimeError, OSError) as error:
        known = as_user_error(error)
        if known is None or os.environ.get("MORE_DEBUG") == "1":
            raise
        fail(known)
        return known.exit_code
    return code or 0


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"more {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
