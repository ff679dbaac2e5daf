"""The list of edits as one HTML file, with its style and small pictures inside."""

from __future__ import annotations

from collections.abc import Sequence

from more_cli.errors import DataError, StateError
from more_cli.render.thumbnails import Thumbnails
from more_cli.review.edits import Row
from more_cli.review.pages import page
from more_cli.review.pictures import Pictures
from more_cli.store.target import Target

PICTURED = 200
"""Edits that are shown with their pictures; the others are listed without."""


def standalone(target: Target, rows: Sequence[Row], pictures: Pictures, status: str, text: str) -> str:
    """Return the chosen edits as one page; `status` and `text` say how they were chosen."""
    thumbnails, uris = Thumbnails(), {}
    for digest in dict.fromkeys(digest for row in rows[:PICTURED] for digest in row.images[:1]):
        source = pictures.find(digest)
        try:
            uris[digest] = thumbnails.uri(source) if source else None
        except (DataError, StateError):  # missing or damaged: the edits can be listed all the same
            uris[digest] = None
    return page("export.html", target=target, rows=rows, uris=uris, status=status, text=text)
