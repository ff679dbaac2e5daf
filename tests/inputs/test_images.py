"""`images`: untrusted bytes become RGB pixels or a `DataError`, and the same bytes the same pixels."""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from more_cli import files
from more_cli.errors import DataError, MoreError, ResourceError, StateError
from more_cli.inputs import images
from more_cli.inputs.images import ImageCache, ImageStore, decode_image, locate_image


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def corners(data: bytes) -> list[tuple[int, ...]]:
    image = decode_image(data, "x")
    assert image.mode == "RGB"
    right, bottom = image.width - 1, image.height - 1
    return [image.getpixel(at) for at in ((0, 0), (right, 0), (0, bottom), (right, bottom))]  # type: ignore[misc]


def quarters() -> Image.Image:
    """16 x 8: red, green above blue, white."""
    image = Image.new("RGB", (16, 8), "white")
    image.paste("red", (0, 0, 8, 4))
    image.paste("lime", (8, 0, 16, 4))
    image.paste("blue", (0, 4, 8, 8))
    return image


RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
PNG = encoded(quarters())


def png_header(width: int, height: int, body: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


# --- what becomes RGB ---


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_every_lossless_format_gives_the_same_pixels(format: str) -> None:
    data = encoded(quarters(), format, **({"lossless": True} if format == "WEBP" else {}))
    assert corners(data) == [RED, GREEN, BLUE, WHITE]
    assert decode_image(data, "x").tobytes() == decode_image(data, "x").tobytes() == quarters().tobytes()


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, [RED, GREEN, BLUE, WHITE]),
        (2, [GREEN, RED, WHITE, BLUE]),
        (3, [WHITE, BLUE, GREEN, RED]),
        (4, [BLUE, WHITE, RED, GREEN]),
        (5, [RED, BLUE, GREEN, WHITE]),
        (6, [BLUE, RED, WHITE, GREEN]),
        (7, [WHITE, GREEN, BLUE, RED]),
        (8, [GREEN, WHITE, RED, BLUE]),
    ],
)
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_once(format: str, orientation: int, expected: list[tuple[int, ...]]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WEBP" else {}
    assert corners(encoded(quarters(), format, exif=exif, **options)) == expected


def test_damaged_exif_does_not_cost_the_image() -> None:
    data = encoded(Image.new("RGB", (8, 8), "red"), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff rubbish")
    assert decode_image(data, "x").size == (8, 8)


def solid(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (4, 4), colour)  # type: ignore[arg-type]


def palette_with_transparency() -> bytes:
    image = solid("P", 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((0, 0), 1)
    return encoded(image, transparency=1)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(solid("RGBA", (255, 0, 0, 0))), WHITE),
        (encoded(solid("RGBA", (255, 0, 0, 255))), RED),
        (encoded(solid("RGBA", (0, 0, 0, 51))), (204, 204, 204)),
        (encoded(solid("LA", (0, 0))), WHITE),
        (encoded(solid("RGB", RED), transparency=RED), WHITE),
        (palette_with_transparency(), WHITE),
        (encoded(solid("1", 1)), WHITE),
        (encoded(solid("L", 7)), (7, 7, 7)),
        (encoded(solid("CMYK", (0, 255, 255, 0)), "TIFF"), RED),
        (encoded(Image.fromarray(np.full((4, 4), 0x80FF, np.uint16))), (128, 128, 128)),
        (encoded(Image.fromarray(np.full((4, 4), 0x80FF, np.uint16)), "TIFF"), (128, 128, 128)),
        (encoded(Image.fromarray(np.full((4, 4), 0x80FF, np.int32)), "TIFF"), (128, 128, 128)),
        (encoded(Image.fromarray(np.full((4, 4), -5, np.int32)), "TIFF"), (0, 0, 0)),
        (encoded(Image.fromarray(np.full((4, 4), 0.5, np.float32)), "TIFF"), (128, 128, 128)),
        (encoded(Image.fromarray(np.full((4, 4), 99.0, np.float32)), "TIFF"), (99, 99, 99)),
        (encoded(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF"), (0, 0, 0)),
        (b"P5 4 4 65535\n" + b"\x80\xff" * 16, (128, 128, 128)),
        (b"P6 4 4 65535\n" + b"\x80\xff" * 48, (128, 128, 128)),
    ],
)
def test_modes_become_rgb(data: bytes, expected: tuple[int, ...]) -> None:
    assert corners(data)[0] == expected


def test_cmyk_jpeg_is_close_to_its_colour() -> None:
    red, green, blue = corners(encoded(solid("CMYK", (0, 255, 255, 0)), "JPEG"))[0]
    assert red > 250
    assert green < 5
    assert blue < 5


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_taken(format: str) -> None:
    frames = [solid("RGB", colour) for colour in (RED, GREEN, BLUE)]
    data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
    red, green, blue = corners(data)[0]
    assert red > 250
    assert max(green, blue) < 5


# --- what is refused ---


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "TIFF", "PPM", "WEBP"])
def test_a_truncated_image_is_refused(format: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    data = encoded(noise, format)
    for part in (len(data) // 2, len(data) - 400):
        with pytest.raises(DataError, match=r"img/cat\.png"):
            decode_image(data[:part], "img/cat.png")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"hello", "not a readable image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a readable image"),
        (b"%PDF-1.4\n", "not a readable image"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not a readable image"),
        (png_header(100_000, 100_000), "100000 x 100000|megapixels"),
        (png_header(8_001, 8_000), "8001 x 8000"),
        (png_header(40_000, 10), "40000 x 10"),
        (png_header(0, 10), "not a readable image|no pixels"),
        (png_header(4, 4, b"\0"), "cannot be decoded"),
    ],
)
def test_what_is_no_image_is_refused_by_name(data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        decode_image(data, "img/cat.png")
    assert "img/cat.png" in caught.value.message


@pytest.mark.parametrize(
    ("data", "what", "instead"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", " but a pointer of Git LFS", "`git lfs pull`"),
        (b"\n<!DOCTYPE html><title>404</title>", " but a web page", "download the picture again"),
        (b"<html><body>Not found", " but a web page", "download the picture again"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "", "convert it to PNG or JPEG"),
    ],
)
def test_what_lies_in_the_place_of_a_picture(data: bytes, what: str, instead: str) -> None:
    with pytest.raises(DataError) as caught:
        decode_image(data, "cat.jpg")
    assert caught.value.message == f"`cat.jpg` is not a readable image{what}"
    assert instead in caught.value.hint


def test_size_is_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(DataError, match="16 x 8"):
        decode_image(PNG, "x")
    monkeypatch.setattr(images, "MAX_BYTES", 10)
    with pytest.raises(DataError, match="larger"):
        decode_image(PNG, "x")


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]), st.data())
def test_damaged_bytes_give_pixels_or_a_data_error(format: str, data: st.DataObject) -> None:
    whole = bytearray(encoded(quarters(), format))
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        image = decode_image(bytes(whole), "x")
        assert image.mode == "RGB"
        assert image.tobytes() == decode_image(bytes(whole), "x").tobytes()


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_random_bytes_give_a_data_error(data: bytes) -> None:
    for head in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"II*\0", b"RIFF....WEBP", b"P6 "):
        with contextlib.suppress(DataError):
            decode_image(head + data, "x")


# --- where images come from ---


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "cat.png").write_bytes(PNG)
    return tmp_path


def test_paths_are_relative_to_the_root_or_absolute(root: Path) -> None:
    relative = locate_image("img/cat.png", root)
    absolute = locate_image(str(root / "img" / "cat.png"), Path("/nowhere"))
    assert relative.sha256 == absolute.sha256 == files.sha256_bytes(PNG)
    assert relative.path == absolute.path == root / "img" / "cat.png"
    assert relative.read() == PNG
    assert relative.open().size == (16, 8)


def test_a_source_outlives_a_change_of_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    source = locate_image("img/cat.png", Path())
    monkeypatch.chdir("/")
    assert source.read() == PNG


def test_a_changed_or_vanished_image_is_refused(root: Path) -> None:
    source = locate_image("img/cat.png", root)
    (root / "img" / "cat.png").write_bytes(encoded(solid("RGB", RED)))
    with pytest.raises(DataError, match=r"`img/cat\.png` has changed"):
        source.open()
    (root / "img" / "cat.png").unlink()
    with pytest.raises(DataError, match=r"not found: `img/cat\.png`"):
        source.read()


def test_data_uris(root: Path) -> None:
    text = base64.b64encode(PNG).decode()
    for uri in (f"data:image/png;base64,{text}", f"DATA:;base64,{text.replace('+', '%2B')}"):
        source = locate_image(uri, root)
        assert (source.path, source.sha256) == (None, files.sha256_bytes(PNG))
        assert len(source.spelled) <= 40
        assert source.open().size == (16, 8)
    for wrong in ("data:image/png,abc", "data:image/png;base64,a*b", "data:", "data:;base64,", "data:;base64,aGk="):
        with pytest.raises(DataError):
            locate_image(wrong, root)


@pytest.mark.parametrize("url", ["http://a/b.png", "HTTPS://a/b.png", "ftp://a/b", "s3://b/k"])
def test_urls_are_refused_with_a_hint(url: str, root: Path) -> None:
    with pytest.raises(DataError, match="is a URL") as caught:
        locate_image(url, root)
    assert "download it first" in caught.value.hint


def test_a_path_that_is_spelled_for_another_system_or_program(root: Path) -> None:
    (root / "my pic.png").write_bytes(PNG)
    for spelled, hint in [
        ("file:///a%20b.png", "give its path: `/a b.png`"),
        ("my%20pic.png", "write `my pic.png`"),
        ("/of/another/machine.png", "`--image-root` changes no absolute path"),
    ]:
        with pytest.raises(DataError) as caught:
            locate_image(spelled, root)
        assert hint in caught.value.hint


def test_files_that_are_no_images(root: Path) -> None:
    for spelled, reason in [
        ("", "empty"),
        ("img", "not a file"),
        ("img/cat.png/x", "not found"),
        ("nul\0l.png", "cannot be read"),
        ("x" * 300, "cannot be read"),
        ("\ud800.png", "cannot be read|not found"),
    ]:
        with pytest.raises(DataError, match=reason):
            locate_image(spelled, root)
    with pytest.raises(DataError, match="not found") as caught:
        locate_image("img/dog.png", root)
    assert "--image-root" in caught.value.hint
    if hasattr(os, "mkfifo"):
        os.mkfifo(root / "pipe.png")
        with pytest.raises(DataError, match="not a file"):
            locate_image("pipe.png", root)


def test_a_huge_file_is_not_read(root: Path) -> None:
    with open(root / "huge.png", "wb") as file:
        file.truncate(images.MAX_BYTES + 1)
    with pytest.raises(DataError, match="64 MiB"):
        locate_image("huge.png", root)


def test_the_cache_decodes_a_file_once_until_it_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    real = images.decode_image
    monkeypatch.setattr(images, "decode_image", lambda data, name: decoded.append(name) or real(data, name))
    (root / "bad.png").write_bytes(b"bad")
    cache = ImageCache(root)
    for _ in range(3):
        cache.locate("img/cat.png")
        with pytest.raises(DataError, match="bad"):
            cache.locate("bad.png")
    assert decoded == ["img/cat.png", "bad.png"]
    (root / "bad.png").write_bytes(PNG)
    assert cache.locate("bad.png").sha256 == files.sha256_bytes(PNG)


# --- the store ---


def test_the_store_keeps_bytes_under_their_hash(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "images")
    sha256 = store.put(PNG)
    store.sync()
    assert store.source(sha256).read() == PNG
    assert sha256 in store
    assert os.listdir(tmp_path / "images") == [sha256]
    assert store.source(sha256).open().size == (16, 8)


def test_the_store_writes_an_image_once_and_mends_a_short_one(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    path = store.path(store.put(PNG))
    before = path.stat().st_ino
    store.put(PNG)
    assert path.stat().st_ino == before
    path.write_bytes(PNG[:10])
    with pytest.raises(StateError, match="missing or damaged"):
        store.source(path.name).read()
    store.put(PNG)
    assert store.source(path.name).read() == PNG


def test_the_store_syncs_its_folder_once_for_many_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(images, "sync_folder", synced.append)
    store = ImageStore(tmp_path / "images")
    for value in range(5):
        store.put(bytes([value]))
    store.sync()
    store.sync()
    assert synced == [tmp_path / "images", tmp_path]


@pytest.mark.parametrize(
    ("name", "number", "kind"),
    [("_write", errno.ENOSPC, ResourceError), ("_fsync", errno.EIO, StateError), ("_rename", errno.EACCES, StateError)],
)
def test_a_failed_put_leaves_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int, kind: type[MoreError]
) -> None:
    store = ImageStore(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(files, name, fail)
        with pytest.raises(kind):
            store.put(PNG)
    assert files.sha256_bytes(PNG) not in store
    assert store.source(store.put(PNG)).read() == PNG
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.skipif(os.name == "nt", reason="there it is a path")
def test_a_path_written_on_windows_is_missing_and_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "img" / "a.png")
    with pytest.raises(DataError) as error:
        locate_image("img\\a.png", tmp_path)
    assert error.value.hint == "write `/` in place of `\\`: it is understood on every system"
    with pytest.raises(DataError) as error:
        locate_image("img\\b.png", tmp_path)
    assert "--image-root" in error.value.hint
