"""Colours of words: on a terminal, unless the environment says otherwise.

`NO_COLOR` switches them off, `FORCE_COLOR` or `CLICOLOR_FORCE` on, also where output is no terminal.
"""

from __future__ import annotations

import os
from typing import Final, TextIO

BOLD: Final = "1"
_GREEN, _YELLOW, _RED, _CYAN = "32", "33", "31", "36"
STYLES: Final = {
    **dict.fromkeys(("learnt", "already-right", "met", "ok"), _GREEN),
    **dict.fromkeys(("superseded", "reverted", "retried", "skipped"), _YELLOW),
    **dict.fromkeys(("not-learnt", "refused", "MISSED", "FAILED"), _RED),
    **{"base": _RED, "before": _RED, "edited": _GREEN, "merged": _GREEN, "after": _GREEN},
    **{"error:": _RED, "warning:": _YELLOW, "hint:": _CYAN},
}
"""How a word is shown where it is a whole cell of a table, or the first of a line."""


def styled(text: str, style: str | None, stream: TextIO) -> str:
    """Return a text in a style if the stream shows colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if style and _coloured(stream) else text


def _coloured(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
