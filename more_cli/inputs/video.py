"""Short videos as pictures: frames at equal distances, in order, for models that take several pictures."""

from __future__ import annotations

import io
from pathlib import Path

from more_cli.errors import DataError
from more_cli.files import sha256_bytes
from more_cli.inputs.images import ImageCache, ImageSource, decode_frames
from more_cli.text import quoted, shorten

FRAMES, MOST = 4, 32
"""Frames that are taken if a line names no number, and the largest number."""
_CONTAINERS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".m4v")


def frames_of(spelled: str, images: ImageCache, count: int = FRAMES) -> tuple[ImageSource, ...]:
    """Return frames of an animated file as pictures of their own, their bytes in memory.

    Raises:
        DataError: no such file, not an animated image, damaged, or beyond the limits of images.
    """
    try:
        source = images.locate(spelled)
    except DataError as error:
        if Path(spelled).suffix.lower() not in _CONTAINERS or "readable" not in error.message:
            raise
        hint = f"make one: ffmpeg -i {quoted(spelled)} -vf fps=2 clip.webp; or name its frames as `image`"
        raise DataError(f"video `{shorten(spelled, 200)}` is not an animated GIF, WebP or PNG", hint) from None
    found = []
    for number, frame in enumerate(decode_frames(source.read(), spelled, count), 1):
        file = io.BytesIO()
        frame.save(file, "PPM")  # plain pixels: what a compressor writes, and with it the hash, differs by version
        data = file.getvalue()
        found.append(ImageSource(f"{spelled}, frame {number}", None, sha256_bytes(data), data))
    return tuple(found)
