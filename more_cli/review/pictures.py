"""Pictures that the page shows: those of the store and those uploaded in this session, named by their hash only."""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from pathlib import Path

from more_cli.inputs.images import ImageSource, ImageStore, decode_image
from more_cli.render.thumbnails import jpeg

SIDES = {"small": 192, "large": 1024}
"""Longest sides of the copies that the page shows, pixels."""
_DIGEST = re.compile("[0-9a-f]{64}")
_QUALITY = 85
_AT_ONCE = 2
"""Pictures that are decoded at the same time: a large one takes some hundred MB of memory."""


class Pictures:
    """The store of a state, and a folder of uploads that lie there until an edit stores them."""

    def __init__(self, store: Path, uploads: Path) -> None:
        self._stores: tuple[ImageStore, ...] = ImageStore(store), ImageStore(uploads)
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._uploading = threading.Lock()
        """Held while a picture is kept: a store has one writer at a time."""
        self._jpeg = lru_cache(512)(self._made)

    def find(self, digest: str) -> ImageSource | None:
        """Return the picture of this SHA-256, 64 hex digits; None if that is no digest, or there is no such picture."""
        if not _DIGEST.fullmatch(digest):
            return None
        return next((store.source(digest) for store in self._stores if digest in store), None)

    def jpeg(self, digest: str, side: int) -> bytes | None:
        """Return a copy of a picture as JPEG, bytes of its own, whatever was uploaded; None as `find`."""
        source = self.find(digest)  # not remembered where there is none: it may be uploaded later
        return self._jpeg(source, side) if source else None

    def show_also(self, store: Path) -> None:
        """Show the pictures of another state too; an edit about one of them would store it here."""
        if store not in [known.folder for known in self._stores]:
            self._stores = (*self._stores, ImageStore(store))

    def stored(self) -> list[str]:
        """Return the SHA-256 of every picture, those of uploads first."""
        return [
            path.name
            for store in reversed(self._stores)
            if store.folder.is_dir()
            for path in sorted(store.folder.iterdir())
            if _DIGEST.fullmatch(path.name)
        ]

    def add(self, data: bytes, name: str) -> str:
        """Keep an uploaded picture and return its SHA-256; `name` is for messages.

        Raises:
            DataError: it is not an image, damaged, or beyond the limits of edits.
        """
        with self._slots:
            decode_image(data, name)
        with self._uploading:
            return self._stores[1].put(data)

    def _made(self, source: ImageSource, side: int) -> bytes:
        with self._slots:
            return jpeg(source, side, _QUALITY)
