"""Help in groups: commands by what one wants, options by what they belong to; and the command that a typo meant.

Typer has this only with Rich, which takes longer to load than most commands run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import typer.core

from more_cli.cli.failures import MISUSE
from more_cli.errors import UsageError
from more_cli.text import did_you_mean

MANY = 14
"""From so many options on, help shows them in groups."""


def placeholder(argument: Any) -> str:
    """Return how an argument is written in a usage line; a name with brackets already says it."""
    name: str = argument.metavar or argument.name.upper()
    if "[" in name:
        return name
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs == -1 else "")


class Command(typer.core.TyperCommand):
    """A command with options in groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        parameters: list[Any] = list(self.params)
        arguments = [placeholder(each) for each in parameters if each.param_type_name == "argument"]
        options = [each for each in parameters if each.param_type_name == "option" and each.required]
        return ["[OPTIONS]", *arguments, *(f"{min(each.opts, key=len)} {each.metavar}" for each in options)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from more_cli.cli import project  # not for `--help` of all commands

        words = list(args)
        try:
            rest = super().parse_args(ctx, args if ctx.resilient_parsing else project.with_model(self.params, args))
        except MISUSE as error:
            misuse: Any = error
            misuse.words = words
            misuse.ctx = misuse.ctx or ctx  # an option without its value does not know its command
            raise
        for each in self.params:
            value = ctx.params.get(each.name)
            if isinstance(value, float) and not math.isfinite(value):  # `1e999` is infinite
                raise UsageError(f"`{each.opts[0]}` must be a finite number", f"see `{ctx.command_path} --help`")
        if not ctx.resilient_parsing:
            project.fill(ctx)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self.get_params(ctx), formatter)


class Group(typer.core.TyperGroup):
    """A group of commands, shown in groups by their `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _write_parameters(self.get_params(ctx), formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        first = ((panel, name, text.partition("\n\n")[0]) for name, panel, text in self.summaries(ctx))
        _write_sections([(panel, (name, " ".join(text.split()))) for panel, name, text in first], formatter)

    def summaries(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """Yield name, heading and help of every command."""
        for name in self.list_commands(ctx):
            command: Any = self.commands[name]
            yield name, command.rich_help_panel or "Commands", command.help or ""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            self.refuse(ctx, args[0])
        return super().resolve_command(ctx, args)

    def refuse(self, ctx: Any, word: str) -> NoReturn:
        """Refuse a word that is no command.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"no such command `{word}`", self.hint(ctx, word))

    def hint(self, ctx: Any, word: str) -> str:
        """Return what to type instead of a word that is no command."""
        return did_you_mean(word, self.commands) or f"see `{ctx.command_path} --help`"


def _write_parameters(parameters: Iterable[Any], formatter: Any) -> None:
    shown = [each for each in parameters if not each.hidden]
    arguments = [("Arguments", _row(each)) for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    grouped = len(options) >= MANY
    rows = [((grouped and getattr(each, "rich_help_panel", None)) or "Options", _row(each)) for each in options]
    if rows and grouped:
        rows[-1] = (rows[-2][0], rows[-1][1])  # --help, which Typer adds, goes with the option before it
    _write_sections([*arguments, *sorted(rows, key=lambda row: row[0] != "Options")], formatter)


def _write_sections(rows: Iterable[tuple[str, tuple[str, str]]], formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for heading, row in rows:
        sections.setdefault(heading, []).append(row)
    for heading, entries in sections.items():
        with formatter.section(heading):
            formatter.write_dl(entries)


def _row(parameter: Any) -> tuple[str, str]:
    """Return names and value of an argument or option, and its meaning with its default."""
    name = parameter.metavar or parameter.name.upper()
    text = parameter.help or ""
    if parameter.param_type_name == "option":
        value = "" if _is_switch(parameter) else f" {name}"
        names = ", ".join(sorted(parameter.opts, key=len))
        name = " / ".join((names, *parameter.secondary_opts)) + value
    notes = []
    if default := _default(parameter):
        notes.append(f"[default: {default}]")
    if parameter.param_type_name == "option" and parameter.envvar:
        notes.append(f"[environment: {parameter.envvar}]")
    if parameter.param_type_name == "option" and parameter.required:
        notes.append("[required]")
    return name, " ".join((text, *notes))


def _is_switch(option: Any) -> bool:
    return bool(option.is_flag or option.count)


def _default(parameter: Any) -> str:
    """Return the default to show; empty where there is none, or where the help text says it itself."""
    value = parameter.default
    if value is None or callable(value) or value in ("", (), []) or "[default:" in (parameter.help or ""):
        return ""
    if parameter.param_type_name == "option" and _is_switch(parameter):
        names = parameter.opts if value else parameter.secondary_opts
        return names[0] if parameter.secondary_opts else ""
    return str(getattr(value, "value", value))
