"""A report as one HTML file: tables, plots and a gallery, without scripts or external resources."""

from __future__ import annotations

import json
from functools import cache

from jinja2 import Template

from more_cli.evaluation.per_edit import variants
from more_cli.render import plots
from more_cli.render.page import Page
from more_cli.render.templates import environment
from more_cli.render.thumbnails import Thumbnails

GALLERY = 200
"""Most edits shown; those that do not hold, or whose other answers moved, come first."""


def html(page: Page) -> str:
    """Return the report.

    Raises:
        DataError, StateError: an image of the gallery has vanished or changed since it was scored.
    """
    gallery = sorted(page.edits, key=lambda scores: (scores.good, not scores.moved))[:GALLERY]
    reproduce = json.dumps(page.reproduce, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
    return _template().render(page=page, gallery=gallery, reproduce=reproduce, thumbnails=Thumbnails()) + "\n"


@cache
def _template() -> Template:
    made = environment()
    made.globals |= {"plot": plots, "variants": variants}
    return made.get_template("report.html")
