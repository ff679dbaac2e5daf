"""The served pages: templates beside those of reports, and what they write."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from markupsafe import Markup, escape

from more_cli.render.templates import environment
from more_cli.review.edits import COLUMNS
from more_cli.review.tasks import edit_path
from more_cli.review.words import advised, worded
from more_cli.store.status import FAILED, RIGHT, Status

STATIC = {"style.css": "text/css", "icon.svg": "image/svg+xml"}
"""Files that the page loads, with their types."""


def page(template: str, **values: Any) -> str:
    """Return a page."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    made = environment(Path(__file__).parent / "templates")
    made.filters |= {"exact": _exact, "likely": _likely, "worded": worded, "advised": advised}
    made.globals |= {"address": _address, "edit_path": edit_path, "kind_of": _kind_of, "statuses": tuple(Status)}
    made.globals["columns"] = [(name, {"id": "edit"}.get(name, name)) for name in COLUMNS]
    return made


def _exact(text: str) -> Markup:
    """Return a text for a field of a form, which must send back what it was given, line breaks included."""
    return escape(text)


def _address(path: str, **query: object) -> str:
    """Return an address with a query; what is empty is left out."""
    chosen = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(chosen, quote_via=quote)}" if chosen else path


def _kind_of(status: Status) -> str:
    """Return the class of a status: whether the edit stands, failed, or no longer counts."""
    return "good" if status in RIGHT else "bad" if status in FAILED else "gone"


def _likely(nll: float) -> str:
    """Return a mean NLL in nats per token as the likelihood per token, in percent."""
    percent = 100 * math.exp(-nll)
    return f"{percent:.0f} %" if percent >= 1 else "under 1 %"
