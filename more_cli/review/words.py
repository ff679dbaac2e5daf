"""Messages of commands in the words of the page: what to press or fill in, not what to type in a shell."""

from __future__ import annotations

import re

_WORDS = (
    (r"`--retry` with (.+?) may help", r"“Retry” with \1 may help"),
    (r"`--set ([^`]+)`", r"\1"),
    (r"`more edit MODEL --retry` tries them again", "“Retry” tries them again"),
    (
        r"without --require-all they do not stop the merge",
        "to merge without them, leave “Only if every edit stands” out",
    ),
    (r"pass --force to replace it", "choose “Replace what an earlier merge wrote”"),
    (r"`more edit MODEL EDITS --reapply` applies reverted edits again", "draft it again to apply it again"),
    (r"`more log` lists the ids", "the list has every edit"),
    (r"; --reapply applies them again", ""),
    (
        r"--theirs lets the later one of each count, or take one back: .+",
        "let the later one count, or revert one of them",
    ),
    (r"name a new file with -o", "type another name"),
    (r"type one, in quotes", "type one"),
    (r"--([a-z][a-z-]*)", r"option \1"),
)
"""Pattern and what stands for it; the last one takes every other option."""
_SETTING = re.compile(r"`--set ([^`]+)`")


def worded(text: str) -> str:
    """Return a message without options of the command line."""
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


def advised(reason: str) -> str:
    """Return the settings that the reason of a failed edit advises, as the form of a retry takes them."""
    return " ".join(_SETTING.findall(reason))
