"""Images as untrusted input: located, checked for size, decoded to RGB, and identified by the hash of their bytes.

Conversion to RGB: transparency (alpha, palette or key colour) is put on white, as a browser shows it; 16-bit grey keeps
its upper 8 bits; float grey is read as 0..1, or as 0..255 if a value exceeds 1; CMYK and similar modes are converted
without colour profiles; an animation gives its first frame; EXIF orientation is applied. The same bytes always give the
same pixels.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import os
import re
import stat
import warnings
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from PIL import Image, UnidentifiedImageError

from more_cli.clock import timed
from more_cli.errors import DataError, StateError
from more_cli.files import StrPath, disk_errors, sha256_bytes, sync_folder, write_new
from more_cli.inputs.records import not_found
from more_cli.text import reason_of, shorten

MAX_BYTES = 64 * 2**20
"""Largest image file, bytes."""
MAX_PIXELS = 36_000_000
"""Largest image, pixels."""
MAX_SIDE = 32_768
"""Longest side of an image, pixels."""
MAX_FRAMES = 5_000
"""Longest video, frames."""
MAX_PLAYED = 1_600_000_000
"""Pixels of a video's frames together: all that come before one are decoded too."""
MAX_TAKEN = 2 * MAX_PIXELS
"""Pixels of the frames that are taken of it: they are in memory together."""
NARROW = 50
"""Ratio of its sides from which on some model's processor may not take an image; Qwen-VL's limit is 200."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Raster formats that Pillow decodes itself, without starting another program."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_DATA_URI = re.compile(r"data:[^,;]*(?:;[^,;]*)*;base64,", re.IGNORECASE)
_ORIGINAL = "put the original back"
"""What to do about an image that is another now than when it was checked, or missing."""
_ORIENTATION = 0x0112  # EXIF 2.3, table 4
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class ImageSource:
    """Location of an image and the hash of its bytes when it was checked."""

    spelled: str
    """As written in the line; a `data:` URI is shortened."""
    path: Path | None
    """Absolute path, or None for a `data:` URI."""
    sha256: str
    """SHA-256 of the file's bytes, 64 hex digits."""
    data: bytes | None = field(default=None, repr=False, compare=False)
    """The bytes themselves for a `data:` URI."""
    narrow: bool = field(default=False, repr=False, compare=False)
    """Whether it was seen to be `NARROW` when it was checked."""

    def read(self) -> bytes:
        """Return the bytes that were checked.

        Raises:
            DataError: the file is missing or has other bytes now.
        """
        data = self.data
        if data is None:
            if self.path is None:
                raise DataError(f"image `{self.spelled}` was not kept", "give the original file again")
            try:
                data = _read_file(self.path, self.spelled)
            except DataError as error:
                raise DataError(error.message, error.hint or _ORIGINAL) from None
        if sha256_bytes(data) != self.sha256:
            raise DataError(f"image `{self.spelled}` has changed since it was checked", _ORIGINAL)
        return data

    @timed("decode")
    def open(self) -> Image.Image:
        """Return the decoded image, RGB.

        Raises:
            DataError: as `read`.
        """
        return decode_image(self.read(), self.spelled)


@dataclass(frozen=True)
class StoredImage(ImageSource):
    """An image of the store: damage is an error of the state, not of the input data."""

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            StateError: the stored file is missing or damaged.
        """
        try:
            return super().read()
        except DataError as error:
            hint = "restore the folder from a backup, or put the original image there under that name"
            raise StateError(f"stored image `{self.path}` is missing or damaged", hint) from error


class ImageStore:
    """A folder of images, each named by the SHA-256 of its bytes; one writer at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._new_names = False

    def path(self, sha256: str) -> Path:
        """Return the path for the image of that hash, whether it is stored or not."""
        return self.folder / sha256

    def put(self, data: bytes) -> str:
        """Store an image and return its hash; the file name survives a power cut only after `sync`.

        Raises:
            StateError, ResourceError: as `disk_errors`.
        """
        sha256 = sha256_bytes(data)
        path = self.path(sha256)
        with disk_errors(path):
            if not (path.is_file() and path.stat().st_size == len(data)):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_new(path, data)
                self._new_names = True
        return sha256

    def source(self, sha256: str) -> StoredImage:
        """Return the image of that hash as an `ImageSource`, without reading it."""
        return StoredImage(sha256, self.path(sha256), sha256)

    def __contains__(self, sha256: object) -> bool:
        return self.path(str(sha256)).is_file()

    def sync(self) -> None:
        """Wait until all images stored so far are on disk."""
        if self._new_names:
            with disk_errors(self.folder):
                sync_folder(self.folder)
                sync_folder(self.folder.parent)
            self._new_names = False


def grey_image() -> ImageSource:
    """Return a grey picture of 640 x 480 pixels, to try out a model's processor."""
    file = io.BytesIO()
    Image.new("RGB", (640, 480), "grey").save(file, "PNG")
    data = file.getvalue()
    return ImageSource("a grey picture", None, sha256_bytes(data), data)


class ImageCache:
    """Locates images below one root and decodes each file once, even if many lines name it.

    It keeps hashes, no pixels; a file that changed is decoded again. For `strict` and `decoded` see `locate_image`.
    """

    LIMIT = 10_000

    def __init__(self, root: Path, *, strict: bool = False, decoded: Container[str] = ()) -> None:
        self.root = root
        self.strict = strict
        self.decoded = decoded
        self._known: dict[tuple[object, ...], ImageSource | DataError] = {}

    def locate(self, spelled: str) -> ImageSource:
        """Return the image that a line names.

        Raises:
            DataError: as `locate_image`.
        """
        key = self._key(spelled)
        if key is None:
            return locate_image(spelled, self.root, strict=self.strict, decoded=self.decoded)
        if key not in self._known:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            try:
                self._known[key] = locate_image(spelled, self.root, strict=self.strict, decoded=self.decoded)
            except DataError as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, DataError):
            raise DataError(known.message, known.hint)
        return known

    def _key(self, spelled: str) -> tuple[object, ...] | None:
        try:
            status = os.stat(self.root / spelled)
        except (OSError, ValueError):  # missing, a `data:` URI or a URL
            return None
        return spelled, status.st_size, status.st_mtime_ns, status.st_ino


def locate_image(spelled: str, root: Path, *, strict: bool = False, decoded: Container[str] = ()) -> ImageSource:
    """Locate, read and decode the image that a line names: a path relative to ``root``, or a `data:` URI.

    If ``strict``, the file must be below ``root``, also after following symlinks. An image whose hash is among those
    ``decoded`` before is read only: the same bytes can be decoded.

    Raises:
        DataError: a URL, no such file, not an image, damaged, outside, or beyond the limits of this module.
    """
    if spelled[:5].lower() == "data:":
        data = _decode_uri(spelled)
        source = ImageSource(shorten(spelled, 40), None, sha256_bytes(data), data)
    else:
        path, data = _read_named(spelled, root, strict)
        source = ImageSource(spelled, path, sha256_bytes(data))
    if source.sha256 in decoded:
        return source
    size = decode_image(data, source.spelled).size
    return replace(source, narrow=max(size) >= NARROW * min(size))


def _read_named(spelled: str, root: Path, strict: bool) -> tuple[Path, bytes]:
    """Return the path of the file that a line names, and its bytes."""
    if scheme := _URL.match(spelled):
        hint = f"download it first and give its path: nothing is fetched from `{scheme[0]}`"
        if scheme[0].lower() == "file://":
            hint = f"give its path: `{shorten(unquote(spelled[len(scheme[0]) :]))}`"
        raise DataError(f"image `{shorten(spelled)}` is a URL", hint)
    if not spelled.strip():
        raise DataError("image path is empty", "leave the image out to ask without one")
    path = Path(os.path.abspath(root / spelled))
    if strict and (Path(spelled).is_absolute() or ".." in Path(spelled).parts):
        raise _outside(spelled, root)
    try:
        return path, _read_file(path, spelled, root if strict else None)
    except DataError as error:
        if error.hint:
            raise
        if Path(spelled).is_absolute():  # often of another machine
            hint = "`--image-root` changes no absolute path: make it relative, for example with `sed`"
            raise DataError(error.message, hint) from error
        start = f"`{root}`" if root.is_dir() else f"`{root}`, which is no folder"
        hint = f"image paths start at {start}; `--image-root DIR` names another folder"
        if os.path.isfile(root / spelled.replace("\\", "/")):  # a file of edits that was written on Windows
            hint = "write `/` in place of `\\`: it is understood on every system"
        elif not strict and os.path.isfile(root / unquote(spelled)):
            hint = f"write `{shorten(unquote(spelled))}`: a path has no `%20` and the like"
        raise DataError(error.message, hint) from error


def pictures(spelled: Sequence[StrPath | ImageSource]) -> tuple[ImageSource, ...]:
    """Locate and check the pictures of a question: paths relative to the current folder, or `data:` URIs.

    Those that were located before are returned as they are.

    Raises:
        DataError: as `locate_image`.
    """
    return tuple(one if isinstance(one, ImageSource) else _picture(os.fspath(one)) for one in spelled)


def _picture(spelled: str) -> ImageSource:
    if spelled[:5].lower() == "data:" or "://" in spelled:
        return locate_image(spelled, Path())
    if spelled and not os.path.lexists(spelled):
        raise not_found(Path(spelled))
    return locate_image(os.path.abspath(spelled) if spelled else spelled, Path())


def _decode_uri(uri: str) -> bytes:
    head = _DATA_URI.match(uri[:200])
    if head is None:
        raise DataError(f"image `{shorten(uri, 40)}` is not base64", "spell it `data:image/png;base64,...`")
    if len(uri) > 2 * MAX_BYTES:
        raise DataError(f"image `{shorten(uri, 40)}` is larger than {MAX_BYTES >> 20} MiB")
    payload = uri[head.end() :]
    try:
        return base64.b64decode(unquote(payload) if "%" in payload else payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"image `{shorten(uri, 40)}` is not base64: {str(error).lower()}") from None


def _is_below(path: Path, root: Path, status: os.stat_result) -> bool:
    """Return whether the path, symlinks followed, is below ``root`` and still leads to the file of this status.

    `status` is that of the open file: a file that replaced it after it was opened is not accepted.
    """
    real = os.path.realpath(path)
    return Path(real).is_relative_to(os.path.realpath(root)) and os.path.samestat(status, os.lstat(real))


def _outside(spelled: str, root: Path) -> DataError:
    hint = f"with --strict-paths every image must be below `{root}`, with a path relative to it"
    return DataError(f"image `{shorten(spelled, 200)}` leads out of the image root", hint)


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # otherwise opening a pipe would wait for ever


def _read_file(path: Path, name: str, root: Path | None = None) -> bytes:
    """Read a file of at most `MAX_BYTES`, which must be below ``root`` if that is given."""
    shown = shorten(name, 200)
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError
            if root is not None and not _is_below(path, root, status):
                raise _outside(name, root)
            if status.st_size > MAX_BYTES:
                raise DataError(
                    f"image `{shown}` has {status.st_size:,} bytes, more than {MAX_BYTES >> 20} MiB", "shrink it"
                )
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise DataError(f"image `{shown}` is not a file") from None
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"image not found: `{shown}`") from None
    except (OSError, ValueError) as error:  # ValueError: a name that the system does not allow
        raise DataError(f"image `{shown}` cannot be read: {reason_of(error)}") from None
    return data


def decode_image(data: bytes, name: str) -> Image.Image:
    """Decode the bytes of an image file to RGB, upright; ``name`` is for messages.

    Raises:
        DataError: not an image of `FORMATS`, damaged, or beyond the limits of this module.
    """
    with _decoding(data, shorten(name, 200)) as image:
        image.load()
        return _upright(_as_rgb(image), image)


def decode_frames(data: bytes, name: str, count: int) -> list[Image.Image]:
    """Decode frames of an animated GIF, WebP or PNG, or pages of a TIFF, to RGB: the middles of `count` equal parts.

    A shorter file gives all its frames.

    Raises:
        DataError: as `decode_image`, or it has only one frame.
    """
    shown = shorten(name, 200)
    with _decoding(data, shown) as image:
        total = int(getattr(image, "n_frames", 1))
        if total < 2:
            raise DataError(f"video `{shown}` has only one frame", "name a picture as `image`")
        if total > MAX_FRAMES:
            raise DataError(f"video `{shown}` has {total:,} frames, more than {MAX_FRAMES:,}", "cut it")
        count, frames, taken = min(count, total), [], 0
        if total * math.prod(image.size) > MAX_PLAYED:
            what = f"{total:,} frames of {image.width} x {image.height}, more than {MAX_PLAYED // 10**6:,} megapixels"
            raise DataError(f"video `{shown}` has {what}", "cut or shrink it")
        for part in range(count):
            image.seek((2 * part + 1) * total // (2 * count))
            _check_size(image, shown)  # pages of a TIFF have sizes of their own
            taken += math.prod(image.size)
            if taken > MAX_TAKEN:
                what = f"{count} frames of video `{shown}` have more than {MAX_TAKEN // 10**6} megapixels"
                raise DataError(what, "shrink it, or take fewer `frames`")
            frames.append(_as_rgb(image))
        return frames


@contextmanager
def _decoding(data: bytes, shown: str) -> Iterator[Image.Image]:
    """Open an image of a size that is allowed; whatever its decoder does wrong becomes a `DataError`."""
    if not data:
        raise DataError(f"image `{shown}` is empty", "write the picture there again")
    if len(data) > MAX_BYTES:
        raise DataError(f"image `{shown}` is larger than {MAX_BYTES >> 20} MiB", "shrink it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and about sizes that the next lines check
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(image, shown)  # from the header: nothing is decoded yet
                yield image
    except DataError:
        raise
    except UnidentifiedImageError:
        what, hint = _instead(data)
        raise DataError(f"`{shown}` is not a readable image{what}", hint) from None
    except Image.DecompressionBombError:
        raise DataError(f"image `{shown}` has more than {MAX_PIXELS // 10**6} megapixels", "shrink it") from None
    except Exception as error:  # any exception of a decoder means a bad file
        reason = shorten(str(error) or type(error).__name__, 80)
        hint = "the file is damaged or cut short: copy or convert it again"
        raise DataError(f"image `{shown}` cannot be decoded: {reason}", hint) from None


def _instead(data: bytes) -> tuple[str, str]:
    """Return what bytes that are no image are, where that is easy to see, and what to do."""
    head = data[:256].lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return " but a pointer of Git LFS", "`git lfs pull` fetches the picture itself"
    if head.startswith((b"<!doctype html", b"<html")):
        return " but a web page", "perhaps an error message: download the picture again"
    return "", f"convert it to PNG or JPEG; readable are {', '.join(FORMATS)}"


def _check_size(image: Image.Image, shown: str) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise DataError(f"image `{shown}` has no pixels: {width} x {height}")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        limit = f"{MAX_PIXELS // 10**6} megapixels" if width * height > MAX_PIXELS else f"{MAX_SIDE:,} on one side"
        raise DataError(f"image `{shown}` is {width} x {height}, more than {limit}", "shrink it")


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _eight_bits(image).convert("RGB")
    if image.mode == "La":  # Pillow has no direct conversion
        image = image.convert("LA")
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    # Pillow clips these modes to 0..255 instead of scaling them.
    import numpy as np

    values = np.asarray(image)
    if image.mode == "F":
        values = np.nan_to_num(values)
        values = np.rint(np.clip(values * (255 if values.max() <= 1 else 1), 0, 255))
    else:
        values = np.clip(values, 0, 65_535) >> 8
    return Image.fromarray(values.astype(np.uint8))


def _upright(pixels: Image.Image, image: Image.Image) -> Image.Image:
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # unreadable EXIF: the pixels are still good
        turn = None
    return pixels if turn is None else pixels.transpose(turn)
