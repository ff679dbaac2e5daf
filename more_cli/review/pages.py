"""HTML from templates: everything from users, models and files is escaped, and stripped of control characters."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from more_cli.review.tasks import edit_path
from more_cli.store.entry import FAILED, Status
from more_cli.text import counted, plain

HERE = Path(__file__).parent
STATIC = {"review.css": "text/css", "icon.svg": "image/svg+xml"}
"""Files that the page loads, with their types."""
_GOOD = (Status.LEARNT, Status.ALREADY_RIGHT)


def page(template: str, **values: Any) -> str:
    """Return a page."""
    return _environment().get_template(template).render(**values)


@cache
def static(name: str) -> bytes:
    """Return one of the files of `STATIC`."""
    return (HERE / "static" / name).read_bytes()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {"exact": _exact, "likely": _likely, "nats": _nats, "drift": _drift, "minute": _minute}
    environment.globals |= {
        "address": _address,
        "counted": counted,
        "edit_path": edit_path,
        "kind_of": _kind_of,
        "css": lambda: Markup(static("review.css").decode()),
        "statuses": tuple(Status),
    }
    return environment


def _shown(value: object) -> object:
    """Return what stands for a value: text on one line, without control characters."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else plain(value)


def _exact(text: str) -> Markup:
    """Return a text for a field of a form, which must send back what it was given, line breaks included."""
    return escape(text)


def _address(path: str, **query: object) -> str:
    """Return an address with a query; what is empty is left out."""
    chosen = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(chosen, quote_via=quote)}" if chosen else path


def _kind_of(status: Status) -> str:
    """Return the class of a status: whether the edit stands, failed, or no longer counts."""
    return "good" if status in _GOOD else "bad" if status in FAILED else "gone"


def _likely(nll: float) -> str:
    """Return a mean NLL in nats per token as the likelihood per token, in percent."""
    percent = 100 * math.exp(-nll)
    return f"{percent:.0f} %" if percent >= 1 else "under 1 %"


def _nats(nll: float) -> str:
    return f"{nll:.3f}"


def _drift(drift: float | None) -> str:
    return "" if drift is None else f"{drift:.2g}"


def _minute(time: str) -> str:
    """Return the date and the minute of an ISO 8601 time."""
    return time[: len("2026-05-01T08:00")].replace("T", " ")
