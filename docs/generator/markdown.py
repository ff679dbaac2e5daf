"""Small pieces of Markdown that several pages need."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_LINE = 100
"""Characters of a line of JSON."""
NOTICE = "<!-- Written by docs/generate.py from {source}: change that, then run `python docs/generate.py`. -->"


def cell(text: str) -> str:
    """Return text that stays within one table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; empty without rows."""
    lines = ["| " + " | ".join(map(cell, row)).rstrip() + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines])


def fence(language: str, text: str) -> str:
    """Return a code block."""
    return f"```{language}\n{text.rstrip()}\n```"


def json_fence(value: Any) -> str:
    """Return a JSON value as a code block; what fits into a line is on one."""
    return fence("json", _json(value, ""))


def _json(value: Any, indent: str) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= _LINE or not isinstance(value, Mapping | list):
        return line
    inner = f"{indent}  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _json(item, inner) for item in value) + f"\n{indent}]"
    items = (f"{inner}{json.dumps(key, ensure_ascii=False)}: {_json(item, inner)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def page(title: str, source: str, *parts: str) -> str:
    """Return a page: title, a notice that it is generated, and parts with blank lines between them."""
    head = (f"# {title}", NOTICE.format(source=source))
    return "\n\n".join(part.strip("\n") for part in (*head, *parts) if part) + "\n"
