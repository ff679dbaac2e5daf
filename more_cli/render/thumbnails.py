"""Small copies of images as `data:` URIs, so that a report is one file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

from more_cli.inputs.images import ImageSource

SIDE = 256
"""Longest side of a thumbnail, pixels."""
BUDGET = 4 << 20
"""Characters of all thumbnails of one report: enough for some hundred thumbnails."""
_QUALITY = 80


class Thumbnails:
    """Makes thumbnails until the budget of a report is spent."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.left = budget
        self._made: dict[str, str] = {}

    def uri(self, image: ImageSource) -> str | None:
        """Return a JPEG of the image as a `data:` URI, None once the budget is spent.

        Raises:
            DataError, StateError: the image has vanished or changed since it was scored.
        """
        if image.sha256 not in self._made:
            made = base64.b64encode(jpeg(image, SIDE, _QUALITY)).decode()
            self._made[image.sha256] = f"data:image/jpeg;base64,{made}"
        uri = self._made[image.sha256]
        if len(uri) > self.left:
            return None
        self.left -= len(uri)
        return uri

    def uris(self, images: Iterable[ImageSource]) -> list[str]:
        """Return those of some images while the budget lasts.

        Raises:
            DataError, StateError: as `uri` does.
        """
        return [uri for image in images if (uri := self.uri(image))]


def jpeg(image: ImageSource, side: int, quality: int) -> bytes:
    """Return a copy of an image as JPEG, at most `side` pixels wide and high.

    Raises:
        DataError, StateError: as `ImageSource.open`.
    """
    pixels = image.open()
    pixels.thumbnail((side, side))
    file = io.BytesIO()
    pixels.save(file, "JPEG", quality=quality)
    return file.getvalue()
