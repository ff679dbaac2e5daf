"""Exit codes, and which exceptions a user sees as one line instead of a traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from more_cli.cli.output import fail
from more_cli.cli.words import names_model
from more_cli.errors import UsageError
from more_cli.text import did_you_mean, quoted, shorten

if TYPE_CHECKING:
    from more_cli.ops.outcome import Outcome

EDITS_FAILED = 3
INTERRUPTED = 130
"""Exit codes of runs that raised no error but did not apply every edit."""
EXIT_CODES = {
    0: "done, and no edit failed",
    1: "a bug of `more`, with a traceback",
    2: "wrong usage: a command, option, value or recipe",
    EDITS_FAILED: "some edits failed (not learnt or refused), or a merge lost some, or `--require-all` found failed "
    "ones, or an edit failed that a revert applied again, or rows of a table were not measured, or parts of a "
    "sweep failed",
    4: "bad input: edit lines, images, probes or files of a suite, or states whose edits contradict each other",
    5: "the model or the state cannot be used, or `verify` found damage or something not signed",
    6: "a gate was missed",
    7: "out of memory or disk",
    INTERRUPTED: "interrupted, state saved; or the output pipe was closed",
}
"""What each exit code means, for `more help exit-codes` and the reference page."""
MISUSE: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]
"""Typer's exception for a wrong command line; it has no public name."""

_SECOND = {
    "more merge": "more merge {} -o {}",
    "more export": "more export {} -o {}",
    "more convert": "more convert {} -o {}",
    "more eval": "more eval {} --probes {}",
    "more log list": "more log show {} {}",
}
"""What a command that takes one word is probably meant to be where it gets a second one."""


def exit_as(report: Outcome) -> None:
    """End the command with the exit code of a run that was interrupted, or that left edits that do not stand."""
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.failed:
        raise typer.Exit(EDITS_FAILED)


def show_misuse(misuse: Any) -> int:
    """Print a wrong command line like every other error; `more` alone shows its help."""
    if type(misuse).__name__ == "NoArgsIsHelpError":
        misuse.show()
    else:
        fail(_explained(misuse))
    return UsageError.exit_code


def _explained(misuse: Any) -> UsageError:
    """Return what is wrong with a command line in our words, with what was probably meant."""
    command = misuse.ctx.command_path if misuse.ctx else "more"
    see = f"see `{command} --help`"
    if getattr(misuse, "option_name", "") and hasattr(misuse, "possibilities"):
        return _no_such_option(misuse, command, see)
    if getattr(misuse, "param", None) is not None and misuse.message:
        return UsageError(_plain(_wrong_value(misuse, misuse.param)), see)
    meant = _meant(misuse, command)
    return UsageError(_plain(misuse.format_message()), f"type: {meant}; {see}" if meant else see)


def _no_such_option(misuse: Any, command: str, see: str) -> UsageError:
    option = misuse.option_name
    if command == "more eval" and option in _options_of(misuse.ctx.parent, "run"):
        return UsageError(f"`{option}` is an option of `more run`", f"type: more run MODEL --suite NAME {option} ...")
    hint = did_you_mean(option, misuse.possibilities or (), closeness=0.75)
    if not hint and misuse.ctx and misuse.ctx.parent is None:
        hint = f"options come after the command: more COMMAND {option}; {see}"
    return UsageError(f"no such option `{option}`", hint or see)


def _meant(misuse: Any, command: str) -> str:
    """Return what to type instead, for an option without its value and for too few or too many words; else nothing."""
    option = getattr(misuse, "option_name", "")
    if option:
        values = [each.metavar for each in misuse.ctx.command.params if option in each.opts]
        return f"{option} {values[0]}" if values else ""
    if getattr(misuse, "param", None) is None and "unexpected" not in misuse.format_message():
        return ""
    return _second_word(command, getattr(misuse, "words", ())) or " ".join(misuse.ctx.get_usage().split()[1:])


def _plain(message: str) -> str:
    """Return a message of Typer's in our spelling."""
    message = re.sub(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"unexpected argument '\1'", message)
    message = re.sub(r"'([^']*)'", r"`\1`", message.rstrip("."))
    return message[:1].lower() + message[1:]


def _second_word(command: str, words: Sequence[str]) -> str:
    """Return what a command with its model and one word more is probably meant to be; else an empty text."""
    if command not in _SECOND or len(words) != 2 or any(word.startswith("-") for word in words):
        return ""
    model, other = sorted(words, key=names_model, reverse=True)
    if command == "more eval" and not os.path.isfile(other):
        return ""
    return _SECOND[command].format(quoted(model), quoted(other))


def _options_of(group: Any, name: str) -> set[str]:
    """Return the options of another command; empty where it is not installed."""
    found = group.command.commands.get(name) if group else None
    return {option for parameter in found.params for option in parameter.opts} if found else set()


def _wrong_value(misuse: Any, parameter: Any) -> str:
    """Return what is wrong with the value of an option or argument; Typer checks some of them with pydantic."""
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name.upper()
    if not hasattr(misuse.__cause__, "errors"):
        return f"`{name}`: {misuse.message}"
    from more_cli.recipe.settings import plain_problem

    problem = misuse.__cause__.errors()[0]
    text = plain_problem(problem)
    return (
        f"`{name}` {text}, not '{shorten(str(problem['input']))}'" if text.startswith("must ") else f"`{name}`: {text}"
    )
