"""The served pages: templates beside those of reports, and what they write; and the list of edits as one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from markupsafe import escape

from more_cli.errors import DataError, StateError
from more_cli.render.templates import environment
from more_cli.render.thumbnails import Thumbnails
from more_cli.review.edits import COLUMNS, Row
from more_cli.review.pictures import Pictures
from more_cli.review.tasks import edit_path
from more_cli.review.words import advised, worded
from more_cli.store.status import FAILED, RIGHT, Status
from more_cli.store.target import Target

STATIC = {"style.css": "text/css", "icon.svg": "image/svg+xml"}
"""Files that the page loads, with their types."""
PICTURED = 200
"""Edits of the one file that are shown with their pictures; the others are listed without."""


def page(template: str, **values: Any) -> str:
    """Return a page."""
    return _environment().get_template(template).render(**values)


def standalone(target: Target, rows: Sequence[Row], pictures: Pictures, status: str, text: str) -> str:
    """Return edits as one HTML file, with its style and small pictures inside.

    `status` and `text` say how the edits were chosen.
    """
    thumbnails, uris = Thumbnails(), {}
    for digest in dict.fromkeys(digest for row in rows[:PICTURED] for digest in row.images[:1]):
        source = pictures.find(digest)
        try:
            uris[digest] = thumbnails.uri(source) if source else None
        except (DataError, StateError):  # missing or damaged: the edits can be listed all the same
            uris[digest] = None
    return page("export.html", target=target, rows=rows, uris=uris, status=status, text=text)


@cache
def _environment() -> Environment:
    made = environment(Path(__file__).parent / "templates")
    # `exact` is for a field of a form, which must send back what it was given, line breaks included.
    made.filters |= {"exact": escape, "likely": _likely, "worded": worded, "advised": advised}
    made.globals |= {"address": _address, "edit_path": edit_path, "kind_of": _kind_of, "statuses": tuple(Status)}
    made.globals["columns"] = [(name, {"id": "edit"}.get(name, name)) for name in COLUMNS]
    return made


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
