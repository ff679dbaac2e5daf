"""Copying of a checkpoint's files: threads copy, overwrite, compare and flush them at the same time."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Condition
from types import TracebackType
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint.headers import TensorEntry
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError
from more_cli.files import write_all

if TYPE_CHECKING:  # files are copied while torch is imported
    from torch import Tensor

_COPY_STEP = 64 << 20  # bytes: large steps, so that threads rarely wait for the interpreter lock during an import
_PIECE, _COMPARED = 1 << 28, 1 << 20  # bytes that one job compares, and bytes compared at a time
CHUNK = 1 << 19
"""Bytes of a tensor that are patched at a time, unless one row has more."""
_AGAIN = "check the disk, then merge again"
SIDE_BY_SIDE = 3
"""Threads for each kind of job: copy and patch, compare, flush."""

Patch = Callable[["Tensor", int], "Tensor"]
"""Takes rows (n, ...) of a tensor and the index of the first; returns new rows of the same shape and dtype."""


class Copying:
    """A copy of these files into the folder `out`; leaving the block on an error stops every job.

    A job waits until the bytes that it needs are copied. Each kind has threads of its own: with shared ones, waiting
    jobs could block those they wait for.
    """

    def __init__(
        self, checkpoint: Checkpoint, out: Path, names: Sequence[str], on_bytes: Callable[[int, int], None] | None
    ) -> None:
        self._checkpoint, self._out, self._names = checkpoint, out, names
        self._progress = CopyProgress({name: (checkpoint.path / name).stat().st_size for name in names}, on_bytes)
        self._writers, self._readers, self._flushers = (ThreadPoolExecutor(SIDE_BY_SIDE) for _ in range(3))
        self._copied: list[Future[None]] = []
        self._flushed: list[Future[None]] = []
        self._compared: list[Future[None]] = []
        self._patched: dict[TensorEntry, Future[str]] = {}

    def __enter__(self) -> Copying:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pools = self._writers, self._readers, self._flushers
        if kind is not None:
            self._progress.stop()
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)
        for pool in pools:
            pool.shutdown()

    def start(self) -> None:
        """Start to copy every file."""
        self._copied = [self._writers.submit(self._copy, name) for name in self._names]
        # Flushing starts now, so that the disk is busy meanwhile; the caller's sync waits for the rest.
        self._flushed = [self._flushers.submit(self._flush, name) for name in self._names]

    def overwrite(self, entry: TensorEntry, patch: Patch) -> None:
        """Start to write a tensor's new rows over the copy's."""
        self._patched[entry] = self._writers.submit(self._overwrite, entry, patch)

    def compare(self, shard: str) -> None:
        """Start to compare a shard with the base's, but for the tensors that are overwritten by now."""
        patched = {entry: job for entry, job in self._patched.items() if entry.shard == shard}
        for piece in _pieces(patched, self._progress.sizes[shard]):
            self._compared.append(self._readers.submit(self._compare, shard, piece, patched.values()))

    def finish(self) -> dict[str, str]:
        """Wait for every job, and return the SHA-256 of the new bytes of every patched tensor, by key.

        Raises:
            StateError: a file changed meanwhile, a byte of the copy is not the base's, or the copy has another length.
            OSError: a file cannot be read or written.
        """
        _wait(self._copied)
        sha256 = {entry.key: job.result() for entry, job in self._patched.items()}
        _wait(self._compared)
        _wait(self._flushed)
        for name, size in self._progress.sizes.items():
            if (self._out / name).stat().st_size != size:
                raise StateError(f"`{name}` of the copy is not as long as its base", _AGAIN)
        return sha256

    def _copy(self, name: str) -> None:
        with FileIO(self._checkpoint.path / name) as old, FileIO(self._out / name, "x+") as new:
            copied = 0
            for step in _copy_bytes(old, new):
                copied += step
                self._progress.add(name, step)
        if copied != self._progress.sizes[name]:
            raise StateError(f"{self._checkpoint.path}: `{name}` changed while it was copied", "copy it again")

    def _overwrite(self, entry: TensorEntry, patch: Patch) -> str:
        """Write a tensor's new rows over the copy's, and return the SHA-256 of their bytes."""
        import torch

        self._progress.wait_for(entry.shard, entry.stop)
        digest = hashlib.sha256()
        step = max(1, CHUNK // max(1, entry.row_bytes))
        with FileIO(self._out / entry.shard, "r+") as target:
            for first in range(0, entry.shape[0], step):
                old = self._checkpoint.read_rows(entry, first, min(first + step, entry.shape[0]))
                new = patch(old, first)
                if new.shape != old.shape or new.dtype != old.dtype:
                    raise TypeError(f"{entry.key}: patched to {new.dtype} {new.shape}, was {old.dtype} {old.shape}")
                target.seek(entry.start + first * entry.row_bytes)
                data = new.contiguous().reshape(-1).view(torch.uint8).numpy().data
                digest.update(data)
                write_all(target, data)
        return digest.hexdigest()

    def _flush(self, name: str) -> None:
        self._progress.wait_for(name, self._progress.sizes[name])
        with FileIO(self._out / name, "r+") as changed:
            os.fsync(changed.fileno())

    def _compare(self, shard: str, piece: tuple[int, int], writes: Iterable[Future[str]]) -> None:
        """Compare a piece of a shard with the base's, after waiting for the `writes` to that shard and for its copy."""
        start, stop = piece
        _wait(writes)
        self._progress.wait_for(shard, start + 1)
        old, new = bytearray(_COMPARED), bytearray(_COMPARED)  # reused: new buffers cost page faults
        with FileIO(self._checkpoint.path / shard) as ours, FileIO(self._out / shard) as theirs:
            ours.seek(start)
            theirs.seek(start)
            for first in range(start, stop, _COMPARED):
                length = min(_COMPARED, stop - first)
                self._progress.wait_for(shard, first + length)
                read = [file.readinto(memoryview(buffer)[:length]) for file, buffer in ((ours, old), (theirs, new))]
                # Whole buffers: after a short last block both still hold the rest of the block before, which was equal.
                if read != [length, length] or old != new:
                    raise StateError(f"`{shard}` of the copy differs from its base", _AGAIN)


class CopyProgress:
    """How far each file is copied, for the jobs that wait for it, and whether the jobs must stop."""

    def __init__(self, sizes: Mapping[str, int], on_bytes: Callable[[int, int], None] | None) -> None:
        self.sizes = sizes
        self._reached: Counter[str] = Counter()
        self._done, self._total = 0, sum(sizes.values())
        self._on_bytes = on_bytes
        self._stopped = False
        self._news = Condition()

    def check_stopped(self) -> None:
        """End this job if another one failed or the user pressed Ctrl-C: it may have gigabytes left to do.

        Raises:
            CancelledError: the jobs must stop.
        """
        if self._stopped:
            raise CancelledError

    def stop(self) -> None:
        """Stop all jobs."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def add(self, name: str, copied: int) -> None:
        """Count copied bytes of a file."""
        self.check_stopped()
        with self._news:
            self._reached[name] += copied
            self._done += copied
            self._news.notify_all()
            if self._on_bytes is not None:
                self._on_bytes(self._done, self._total)

    def wait_for(self, name: str, stop: int) -> None:
        """Wait until the first `stop` bytes of a file are copied, or the whole file if it is shorter."""
        stop = min(stop, self.sizes[name])
        with self._news:
            self._news.wait_for(lambda: self._stopped or self._reached[name] >= stop)
        self.check_stopped()


def _wait(jobs: Iterable[Future[Any]]) -> None:
    for job in list(jobs):
        job.result()


def _pieces(entries: Iterable[TensorEntry], size: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of a shard outside the tensors `entries`, each at most `_PIECE` long."""
    bounds = [0, *(bound for entry in entries for bound in (entry.start, entry.stop)), size]
    for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
        for first in range(start, stop, _PIECE):
            yield first, min(first + _PIECE, stop)


def _copy_bytes(source: FileIO, target: FileIO) -> Iterator[int]:
    """Copy to the end of the source, inside the kernel if possible; yield the length of every step."""
    # This fails across file systems, on old kernels and on macOS; the plain loop then continues from there.
    with suppress(OSError, AttributeError):
        while count := os.copy_file_range(source.fileno(), target.fileno(), _COPY_STEP):
            yield count
    while block := source.read(1 << 20):
        write_all(target, block)
        yield len(block)
