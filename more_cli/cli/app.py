"""Assembles the commands. Each is imported only when it runs or is listed, so that `more status` loads one of them."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
import typer.main

from more_cli import __version__
from more_cli.cli import commands
from more_cli.cli.failures import INTERRUPTED, MISUSE, show_misuse
from more_cli.cli.help import Command, Group
from more_cli.cli.output import close_stdout, fail
from more_cli.errors import MoreError
from more_cli.files import Saves, as_user_error
from more_cli.ops.signals import ending, interrupt

ANY = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of a command that takes every word."""


class Commands(Mapping[str, Any]):
    """The commands by name, each built by Typer when it is first needed."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            try:
                self._built[name] = _built(name, commands.load(name))
            except MoreError as error:
                self._built[name] = _built(name, _refusing(error), context_settings=ANY)
            except Exception as error:
                if name in commands.own_commands():
                    raise
                self._built[name] = _built(name, _refusing(commands.unusable(name, error)), context_settings=ANY)
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        # Packages are searched only for what is no command of the tool.
        return name in commands.own_commands() or name in commands.names()

    def __iter__(self) -> Iterator[str]:
        return iter(commands.names())

    def __len__(self) -> int:
        return len(commands.names())


def _built(name: str, found: Any, **options: Any) -> Any:
    """Return a function or a Typer group as a command."""
    shell, panel = typer.Typer(rich_markup_mode=None), commands.panel_of(name)
    if isinstance(found, typer.Typer):
        shell.add_typer(found, name=name, rich_help_panel=panel)
    else:
        shell.command(name, cls=Command, rich_help_panel=panel, **options)(found)
    return typer.main.get_group(shell).commands[name]


def _refusing(error: MoreError) -> Callable[[], None]:
    """Return what stands for a command that cannot be loaded: help shows why, and all others go on working."""

    def refuse() -> None:
        raise error

    refuse.__doc__ = error.message
    return refuse


class _Commands(Group):
    """The commands; Ctrl-C, SIGTERM, SIGHUP and a closed output pipe have one exit code, where Typer has several."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands: Any = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def summaries(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        for name in self.list_commands(ctx):
            yield name, commands.panel_of(name), commands.help_of(name)

    def hint(self, ctx: Any, word: str) -> str:
        hint = super().hint(ctx, word)
        if not os.path.isfile(word) or os.path.dirname(word):
            return hint
        return f"{hint}{'' if hint.endswith('?') else ';'} `more ./{word}` shows the file"

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _ended_early():  # here `--help` is printed
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _ended_early():
            return super().invoke(ctx)


@contextmanager
def _ended_early() -> Iterator[None]:
    """End with one exit code at a closed output pipe, Ctrl-C, SIGTERM or SIGHUP, and say what is saved."""
    before = Saves.count
    try:
        try:
            with _as_ctrl_c():
                yield
        finally:
            print(end="", flush=True)  # noqa: T201 (a failed flush at exit would print Python's own message)
    except BrokenPipeError:
        close_stdout(saved=Saves.count > before)
        raise typer.Exit(INTERRUPTED) from None
    except (KeyboardInterrupt, RuntimeError) as error:
        # A signal within a lock of `threading` can end in "release unlocked lock" in place of the interrupt.
        hidden = type(error) is RuntimeError and isinstance(error.__context__, KeyboardInterrupt)
        if not (hidden or isinstance(error, KeyboardInterrupt)):
            raise
        text = "interrupted; what was saved so far is kept; run the same command again to continue"
        print(text, file=sys.stderr)  # noqa: T201
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _as_ctrl_c() -> Iterator[None]:
    """Clean up and say what is saved at SIGTERM too, by which pipelines cancel a job, and where a terminal closes."""
    try:
        before = {number: signal.signal(number, interrupt) for number in ending()}
    except ValueError:  # not the main thread: the caller's process handles signals its own way
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`more help exit-codes` says what each exit code means.",
    help="Correct a vision-language or language model from a stream of fixes.",
)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Bugs are not caught: they keep their traceback."""
    try:
        code: int | None = app(args=argv, prog_name="more", standalone_mode=False)
    except MISUSE as misuse:
        return show_misuse(misuse)
    except (MoreError, MemoryError, RuntimeError, OSError) as error:
        known = as_user_error(error)
        if known is None:
            raise
        if os.environ.get("MORE_DEBUG") == "1":
            traceback.print_exc()
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
