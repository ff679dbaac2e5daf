"""The header of a safetensors file, read and written, and bytes of its tensors.

Headers are untrusted: they are checked completely before an offset is used, so that a truncated or hostile shard gives
one error that names it. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

from more_cli.errors import StateError
from more_cli.text import reason_of, unique_fields

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Dtypes that can be read and patched: name in the header to name in torch."""

# Bits per element of every dtype safetensors 0.8 accepts.
_BITS = {
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
# A header is in memory while it is checked, so its size is limited first. Large checkpoints have headers of about
# 100 kB per shard and an index of 10 MB; safetensors itself accepts 100 MB.
_HEADER_LIMIT = 32_000_000  # bytes
_TENSORS = 200_000  # in one file
_NAME = 500  # characters of a tensor's name
_DIMENSIONS = 16  # of a tensor, at most
SETTLED = 2.0
"""A file that changed within so many seconds is read again: the next change may leave its times as they are."""
AGAIN = "download or copy the checkpoint again"


@dataclass(frozen=True)
class TensorEntry:
    """Location of one tensor: bytes `start` to `stop` of a shard, row-major; dtype as named in the header."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    start: int
    stop: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * _BITS[self.dtype] // 8


def read_header(file: FileIO, name: str) -> tuple[Any, list[TensorEntry]]:
    """Return the unchecked metadata of an open safetensors file and its tensors' locations; no tensor is read.

    Checks the header like safetensors does: known dtypes, and data that fills the file without gap or overlap.

    Raises:
        OSError, ValueError, RecursionError: the header cannot be read, or contradicts the file.
    """
    raw, size = header_bytes(file), os.fstat(file.fileno()).st_size
    described = _parse_object(raw[8:])
    metadata = described.pop("__metadata__", None)
    if len(described) > _TENSORS:
        raise ValueError(f"{len(described):,} tensors, more than {_TENSORS:,}")
    entries = [_parse_entry(key, info, name, len(raw)) for key, info in described.items()]
    end = len(raw)
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            raise ValueError(f"the data of {entry.key!r} does not follow the tensor before it")
        end = entry.stop
    if end != size:
        raise ValueError(f"the header describes {end} bytes, the file has {size} (truncated?)")
    return metadata, entries


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file is.

    Raises:
        StateError: it cannot be read, is larger than a header may be, or is no JSON object.
    """
    with reading(path):
        if path.stat().st_size > _HEADER_LIMIT:
            raise ValueError(f"larger than {_HEADER_LIMIT // 1_000_000} MB")
        return _parse_object(path.read_bytes())


def _parse_object(raw: bytes) -> dict[str, Any]:
    parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_fields)
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


def header_bytes(file: FileIO) -> bytes:
    """Return the length field and the JSON of a shard's header, as on disk."""
    prefix = file.read(8)
    if prefix == b"version ":
        raise ValueError("a Git LFS pointer, not the weights: run git lfs pull in its repository")
    length = int.from_bytes(prefix, "little")
    if length > _HEADER_LIMIT:
        raise ValueError(f"no safetensors file: by its first bytes it has a header of {length:,} bytes")
    if len(prefix) < 8 or length > os.fstat(file.fileno()).st_size - 8:
        raise ValueError("shorter than its header says (truncated?)")
    return prefix + file.read(length)


def _parse_entry(key: str, info: Any, shard: str, base: int) -> TensorEntry:
    try:
        dtype, shape, (start, stop) = info["dtype"], info["shape"], info["data_offsets"]
        sane = all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, start, stop))
        sane = sane and isinstance(shape, list) and len(shape) <= _DIMENSIONS
        sane = sane and len(key) <= _NAME and key.isprintable()
        sane = sane and 8 * (stop - start) == math.prod(shape) * _BITS[dtype]
    except (TypeError, KeyError, ValueError):
        sane = False
    if not sane:
        raise ValueError(f"dtype, shape and offsets of {key[:80]!r} do not fit each other")
    return TensorEntry(key, dtype, tuple(shape), shard, base + start, base + stop)


def fill(view: memoryview, file: FileIO, start: int) -> None:
    """Fill a view with the bytes from a place of a file.

    Raises:
        OSError, ValueError: it cannot be read, or became shorter than that.
    """
    file.seek(start)
    while view:
        if not (count := file.readinto(view)):
            raise ValueError("became shorter while it was read")
        view = view[count:]


def range_sha256(path: Path, start: int, stop: int) -> str:
    """Return the SHA-256 of bytes `start` to `stop` of a file.

    While a file stays as it is, a process reads these bytes once: a weight of a large model has a hundred megabytes.

    Raises:
        StateError: it cannot be read, or became shorter than that.
    """
    with reading(path):
        now = path.stat()
    if time.time() - max(now.st_mtime, now.st_ctime) < SETTLED:
        return _hashed(path, start, stop)
    return _known(path, start, stop, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns))


@lru_cache(maxsize=4096)
def _known(path: Path, start: int, stop: int, unchanged: tuple[int, ...]) -> str:
    return _hashed(path, start, stop)


def _hashed(path: Path, start: int, stop: int) -> str:
    digest = hashlib.sha256()
    with reading(path), FileIO(path) as file:
        file.seek(start)
        while start < stop:
            block = file.read(min(1 << 20, stop - start))
            if not block:
                raise ValueError("became shorter while it was read")
            digest.update(block)
            start += len(block)
    return digest.hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error of a broken or unreadable file into a StateError that names it."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path}: {reason_of(error)}", AGAIN) from error


_BYTES = {"F64": 8, "F32": 4}
"""Bytes of a value of each dtype that is written."""


def in_order(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """Return the names of tensors, given by dtype and shape, in the order in which safetensors writes them.

    The widest dtype comes first, so that every tensor is aligned; then the order is by name.
    """
    return sorted(tensors, key=lambda name: (-_BYTES[tensors[name][0]], name))


def header(metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the bytes before the tensors, which follow `in_order`: the same bytes as safetensors writes.

    safetensors itself needs all tensors at once, and holds the whole file a second time.
    """
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name in in_order(tensors):
        dtype, shape = tensors[name]
        stop = start + _BYTES[dtype] * math.prod(shape)
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
