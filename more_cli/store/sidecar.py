"""The bytes of a sidecar: read and written one tensor at a time, with the checksum in its header.

A state can be as large as the weights that it edits, so no more of it is in memory than is being worked on.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from more_cli.checkpoint.headers import FLOATS, TensorEntry, fill, header, in_order, read_header
from more_cli.files import write_all

if TYPE_CHECKING:  # a sidecar's metadata is read without torch
    from torch import Tensor

ZEROS = "0" * 64
"""In the place of the checksum while it is computed."""
_CHECKSUM = rb"\"checksum\":\""
"""The bytes before the checksum: JSON inside a string of the header's JSON."""
_BLOCK = 1 << 20
"""Bytes that are read at a time."""


class Sidecar:
    """An open sidecar: what was checked is what is read.

    The file is opened once, and states are replaced by a rename: if another process saves a new one meanwhile, the old
    one is still read. Nobody should write into the file itself; if its size or its time of change moves, reading
    fails. It is not mapped: a map of a file that is cut short ends the process, its pages count as memory in use, and
    a product needs a tensor in aligned memory anyway.

    Raises:
        OSError, ValueError: it cannot be read, or is no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, fd)  # open as long as a tensor may be asked for
        self._file, self._lock = FileIO(fd, closefd=False), Lock()
        self._version = self._now()
        self.metadata, self.entries = read_header(self._file, path.name)

    def read(self, view: memoryview, start: int) -> None:
        """Fill a view with the bytes from a place of the file.

        Raises:
            OSError, ValueError: it cannot be read, or was changed since it was opened.
        """
        with self._lock:  # threads share the file's position
            fill(view, self._file, start)
        if self._now() != self._version:
            raise ValueError("changed while it was read")

    def blocks(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes between two places, in one buffer that is used again."""
        block = memoryview(bytearray(_BLOCK))
        for first in range(start, stop, _BLOCK):
            view = block[: min(_BLOCK, stop - first)]
            self.read(view, first)
            yield view

    def matches(self, checksum: str) -> bool:
        """Return whether this is the SHA-256 of the file with zeros in its place."""
        data = min((entry.start for entry in self.entries), default=self._version[0])
        first = bytearray(data)
        self.read(memoryview(first), 0)
        stored = _CHECKSUM + checksum.encode()
        if len(checksum) != len(ZEROS) or stored not in first:
            return False
        digest = hashlib.sha256(first.replace(stored, _CHECKSUM + ZEROS.encode(), 1))
        for block in self.blocks(data, self._version[0]):
            digest.update(block)
        return digest.hexdigest() == checksum

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


class Stored(Mapping[str, "Tensor"]):
    """Tensors of an open sidecar, by site; each is read when it is asked for, every time.

    `damage` turns the errors of reading into those of its owner.
    """

    def __init__(
        self, file: Sidecar, entries: Mapping[str, TensorEntry], damage: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._file, self._entries, self._damage = file, entries, damage

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, name: str) -> Tensor:
        import torch

        entry = self._entries[name]
        # Memory aligned by torch: at odd addresses, such as those in the file, a matrix product rounds differently, so
        # that an edit after a restart would give other bytes.
        tensor = torch.empty(entry.shape, dtype=getattr(torch, FLOATS[entry.dtype]))
        with self._damage():
            self._file.read(memory(tensor), entry.start)
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"`{entry.key}` has values that are not finite")
        return tensor

    def any(self, name: str) -> bool:
        """Return whether a tensor has a value that is not zero; what was written is not read to its end."""
        import torch

        entry = self._entries[name]
        dtype = getattr(torch, FLOATS[entry.dtype])
        with self._damage():
            return any(bool(torch.frombuffer(b, dtype=dtype).any()) for b in self._file.blocks(entry.start, entry.stop))


def encoded(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """Return a safetensors file in parts: its header, and the memory of each tensor.

    safetensors' own writer hides the system's error number, so a full disk could not be reported.
    """
    names = {str(name): short for short, name in FLOATS.items()}
    shapes = {key: (names[str(t.dtype).removeprefix("torch.")], tuple(t.shape)) for key, t in tensors.items()}
    return [header(metadata, shapes), *(memory(tensors[key]) for key in in_order(shapes))]


def memory(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, row by row; on the CPU they are not copied."""
    return tensor.detach().cpu().contiguous().reshape(-1).numpy().data.cast("B")


def with_checksum(first: bytes, checksum: str) -> bytes:
    """Return a header with a checksum in place of its zeros."""
    return first.replace(_CHECKSUM + ZEROS.encode(), _CHECKSUM + checksum.encode(), 1)


def write(path: Path, parts: list[bytes | memoryview]) -> None:
    """Write a file in parts, and its checksum into the first of them; the parts are hashed while they are written.

    Raises:
        OSError: the disk is full, or fails.
    """
    with FileIO(path, "r+") as file, ThreadPoolExecutor(1) as hashing:
        digest = hashing.submit(sha256_of, parts)
        for part in parts:
            write_all(file, part)
        file.seek(0)
        assert isinstance(parts[0], bytes)
        write_all(file, with_checksum(parts[0], digest.result()))


def sha256_of(parts: list[bytes | memoryview]) -> str:
    """Return the SHA-256 of parts one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
