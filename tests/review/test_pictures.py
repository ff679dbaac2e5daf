"""The pictures of the page, without a server."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from more_cli.files import write_new
from more_cli.inputs import images
from more_cli.review.pictures import Pictures


def png(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(file, "PNG")
    return file.getvalue()


def test_a_picture_that_was_asked_for_too_early_is_shown_once_it_is_there(tmp_path: Path) -> None:
    data = png("red")
    pictures, other = Pictures(tmp_path / "store", tmp_path / "uploads"), Pictures(tmp_path / "x", tmp_path / "y")
    digest = other.add(data, "red.png")
    assert pictures.jpeg(digest, 32) is None
    assert pictures.add(data, "red.png") == digest
    assert (pictures.jpeg(digest, 32) or b"")[:2] == b"\xff\xd8"


def test_uploads_at_the_same_time_are_written_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, writing, most = Pictures(tmp_path / "store", tmp_path / "uploads"), list[int](), list[int]()

    def slowly(path: Path, data: bytes) -> None:
        writing.append(1)
        most.append(len(writing))
        time.sleep(0.1)
        write_new(path, data)
        writing.pop()

    monkeypatch.setattr(images, "write_new", slowly)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda colour: pictures.add(png(colour), colour), ("red", "green", "blue")))
    assert (len(pictures.stored()), max(most)) == (3, 1)
