"""HTML from templates: everything from users, models and files is escaped, and stripped of control characters.

Every page extends `base.html` and has the same style: inside itself, or beside it where it is served.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from more_cli.inputs.images import ImageSource
from more_cli.text import counted, plain


class Quoted(str):
    """Text of a user, a model or a file, in a sentence of ours."""

    __slots__ = ()


class Advice(Quoted):
    """What a command says, also with names of its options."""

    __slots__ = ()


_HERE = Path(__file__).parent


def environment(*folders: Path) -> Environment:
    """Return what pages are made with: our templates, and those of other folders before them."""
    made = Environment(
        loader=FileSystemLoader([*folders, _HERE / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.tests |= {
        "quoted": lambda part: isinstance(part, Quoted),
        "advice": lambda part: isinstance(part, Advice),
        "picture": lambda part: isinstance(part, ImageSource),
    }
    made.globals |= {"counted": counted, "style": Markup(static("style.css").decode())}
    return made


@cache
def static(name: str) -> bytes:
    """Return a file that pages load."""
    return (_HERE / "static" / name).read_bytes()


def _shown(value: object) -> object:
    """Return what stands for a value: text on one line, without control characters."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else plain(value)
