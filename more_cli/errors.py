"""Errors that a user can cause or meet, each with the exit code of the command.

A message is one line that names the file, the line and the bad value; the hint says what to type. Any other exception
is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

DISTRIBUTION: Final = "more-vlm"
"""What pip installs; `more-cli` on the package index is another project."""


def install_hint(extra: str) -> str:
    """Return what to type where a package of one of our extras is missing."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


class MoreError(Exception):
    """One line that says what went wrong; `hint` says what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(MoreError):
    """A command, option value or recipe that cannot be used as given."""

    exit_code = 2


class FailedEditsError(MoreError):
    """Edits that were asked for do not stand or did not survive a merge, or rows of a table could not be measured."""

    exit_code = 3


class DataError(MoreError):
    """Bad input data: edit lines, images, probes or suite files."""

    exit_code = 4


class StreamErrors(DataError):
    """Several problems in one input file; the message lists the first 20."""

    SHOWN: ClassVar[int] = 20

    def __init__(self, problems: Sequence[str], hint: str = "") -> None:
        shown = list(problems[: self.SHOWN])
        if len(problems) > self.SHOWN:
            shown.append(f"and {len(problems) - self.SHOWN} more")
        super().__init__("\nerror: ".join(shown), hint)
        self.problems = list(problems)


class StateError(MoreError):
    """A model or state that cannot be used: no checkpoint, unsupported sites, another base, a lock, a newer schema."""

    exit_code = 5


class HubError(StateError):
    """The hub has no such model, refuses it, or cannot be reached."""


class GateError(MoreError):
    """A gate failed."""

    exit_code = 6


class ResourceError(MoreError):
    """Out of memory or disk."""

    exit_code = 7
