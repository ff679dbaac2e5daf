"""Image paths of a line, respelled for a file in another folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Respell = Callable[[str], str]
_PROBES = ("locality", "portability")


def respelled(line: dict[str, Any], respell: Respell) -> dict[str, Any]:
    """Return an edit line or a probe with every path changed, in its own probes too; one image is spelled as a text."""
    paths = {name: line[name] for name in ("image", "video", "image_rephrases") if name in line}
    changed: dict[str, Any] = {
        name: respell(found) if isinstance(found, str) else [respell(path) for path in found]
        for name, found in paths.items()
    }
    if len(shown := changed.get("image", ())) == 1:
        (changed["image"],) = shown
    probes = {name: [respelled(probe, respell) for probe in line[name]] for name in _PROBES if name in line}
    told = {"messages": [_message(message, respell) for message in line["messages"]]} if "messages" in line else {}
    return line | changed | probes | told


def _message(message: dict[str, Any], respell: Respell) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = [part | {"image": respell(part["image"])} if part.get("image") else part for part in content]
    return message | {"content": parts}


def relative(root: Path, below: Path) -> Respell:
    """Return a function that rewrites image paths from `root` to be relative to `below`, without following links."""

    def respell(image: str) -> str:
        if image[:5].lower() == "data:":
            return image
        return os.path.relpath(os.path.abspath(root / image), os.path.abspath(below))

    return respell
