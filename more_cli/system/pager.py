"""`more` is also the Unix pager: if the user wants the pager, run the next `more` on PATH.

A virtual environment puts this program first on PATH, so `more notes.txt` and `PAGER=more man ls` start it instead.
"""

from __future__ import annotations

import difflib
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

OURS = ("-h", "--help", "--version", "--install-completion", "--show-completion")
COMPLETING = "_MORE_COMPLETE"
"""Environment variable that is set while the shell asks what to offer for a word."""
GUARD = "MORE_CLI_HANDED_OVER"
"""Environment variable that is set for the pager, so that two installations of this program never call each other."""
_WITH_VALUE = ("-n", "--lines")
"""Options of the pager that take the next word."""
_CLOSENESS = 0.75
"""From this share of equal letters on (0 to 1), a word is a typo of a command."""


def wants_pager(arguments: Sequence[str], piped: bool, commands: Callable[[], Sequence[str]]) -> bool:
    """Return whether the user wants the pager: a file to show, or only options while input is piped in.

    `commands` returns the names of our commands; it is asked only where a word is also a file.
    """
    if any(word in OURS for word in arguments):
        return False
    before = (None, *arguments)
    words = [
        word
        for word, option in zip(arguments, before, strict=False)
        if not word.startswith(("-", "+")) and option not in _WITH_VALUE
    ]
    return _is_file(words[0], commands) if words else piped


def _is_file(word: str, commands: Callable[[], Sequence[str]]) -> bool:
    """Return whether a word names a file; a bare word that is a command, or nearly one, does not."""
    if not os.path.isfile(word):
        return False
    bare = not os.path.splitext(word)[1] and not os.path.dirname(word)
    return not (bare and difflib.get_close_matches(word, commands(), 1, _CLOSENESS))


def is_piped() -> bool:
    """Return whether standard input is a pipe or a file, not a terminal and not closed."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def next_pager(path: str, own: Path) -> Path | None:
    """Return the first `more` in the folders of `path` that is not this program."""
    for folder in path.split(os.pathsep):
        candidate = Path(folder or ".") / "more"
        if candidate.is_file() and os.access(candidate, os.X_OK) and not _is_ours(candidate, own):
            return candidate
    return None


def _is_ours(candidate: Path, own: Path) -> bool:
    try:
        with open(candidate, "rb") as file:
            return candidate.resolve() == own.resolve() or b"more_cli" in file.read(1024)
    except OSError:
        return True


def hand_over(arguments: Sequence[str], commands: Callable[[], Sequence[str]]) -> None:
    """Replace this process by the pager; return if the user does not want it, or if there is no other `more`."""
    if GUARD in os.environ or COMPLETING in os.environ or not wants_pager(arguments, is_piped(), commands):
        return
    pager = next_pager(os.environ.get("PATH", ""), Path(sys.argv[0]))
    if pager is not None:
        os.execve(pager, ["more", *arguments], os.environ | {GUARD: "1"})
