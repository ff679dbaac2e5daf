"""Exit codes, and which exceptions a user sees as one line instead of a traceback."""

from __future__ import annotations

import errno
from typing import Any

import typer

from more_cli.cli.output import fail
from more_cli.errors import MoreError, ResourceError, UsageError

EDITS_FAILED = 3
INTERRUPTED = 130
"""Exit codes of runs that raised no error but did not apply every edit."""
MISUSE: type[Exception] = typer.BadParameter.__base__  # type: ignore[assignment]
"""Typer's exception for a wrong command line; it has no public name."""


def show_misuse(misuse: Any) -> int:
    """Print a wrong command line like every other error; `more` alone shows its help."""
    if type(misuse).__name__ == "NoArgsIsHelpError":
        misuse.show()
    else:
        message = misuse.format_message().rstrip(".")
        command = misuse.ctx.command_path if misuse.ctx else "more"
        fail(UsageError(message[:1].lower() + message[1:], f"see `{command} --help`"))
    return UsageError.exit_code


def as_user_error(error: Exception) -> MoreError | None:
    """Return the error to show instead of an exception; None for a bug."""
    if isinstance(error, MoreError):
        return error
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ResourceError(
            "out of memory", "use --dtype bfloat16, --device-map auto or fewer sites; see `status --estimate`"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError(f"disk full: {error.filename or ''}", "free some space and run the same command again")
    return None
