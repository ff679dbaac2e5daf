"""Copies of a checkpoint with some tensors replaced; every other byte stays the same."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from io import FileIO
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, TypeVar

from more_cli.checkpoint.folder import INDEX, PICKLES
from more_cli.checkpoint.headers import TensorEntry
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import ResourceError, StateError

if TYPE_CHECKING:  # files are copied while torch is imported
    from torch import Tensor

T = TypeVar("T")

# Other copies of the weights: they would be out of date beside patched weights, so they are not copied.
_OTHER_FORMATS = ("*.gguf", "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.bin.index.json")
_OTHER_WEIGHTS = (*PICKLES, *_OTHER_FORMATS, "*.safetensors", "*.safetensors.index.json")
_OTHER_WEIGHT_FOLDERS = ("original", "onnx")
_COPY_STEP = 64 << 20  # bytes: large steps, so that threads rarely wait for the interpreter lock during an import
_PIECE, _COMPARED = 1 << 28, 1 << 20  # bytes that one job compares, and bytes compared at a time
_AGAIN = "check the disk, then merge again"
SIDE_BY_SIDE = 3
"""Threads for each kind of job: copy and patch, compare, flush."""

Patch = Callable[["Tensor", int], "Tensor"]
"""Takes rows (n, ...) of a tensor and the index of the first; returns new rows of the same shape and dtype."""


@dataclass(frozen=True)
class Copied:
    """Result of `copy_patched`."""

    left_out: list[str]
    """Files that were not copied."""
    sha256: dict[str, str]
    """SHA-256 of the new bytes of every patched tensor, by key."""
    linked: list[str]
    """Shards that are hard links to the base's files."""
    not_linked: str
    """Why shards were copied although links were requested; empty otherwise."""


def copy_patched(
    checkpoint: Checkpoint,
    out: Path,
    keys: Collection[str],
    patches: Callable[[], Mapping[str, Patch]],
    *,
    link: bool = False,
    on_bytes: Callable[[int, int], None] | None = None,
    chunk_bytes: int = 1 << 19,
) -> Copied:
    """Copy a checkpoint into the scratch folder `out` with some tensors replaced.

    Dtype and shape of a tensor stay, so offsets and header bytes stay: the kernel copies a whole shard (it may share
    blocks instead), then the patched ranges are overwritten. Every other byte is compared with the base's. The copy is
    not atomic: the caller renames `out`.

    `patches` is called on this thread while files are being copied, so preparing them takes little extra time. It
    returns a patch for all or some of the tensors `keys`. A tensor is overwritten as soon as its part of the shard is
    copied; comparing starts when no more writes to the shard are pending. Rows of a tensor are patched in order, with
    at most `chunk_bytes` (at least one row) in memory. `on_bytes` receives the bytes copied so far and the total. With
    `link`, a shard without any of the `keys` becomes a hard link in `out` where that is possible, and no byte is
    copied. Other copies of the weights, hidden and linked folders and dead links are not copied.

    Raises:
        StateError: An unknown tensor, a patch beyond the `keys`, a file already in `out`, one that cannot be read or
            written, or a byte of the copy that is not the base's.
        ResourceError: The disk is full.
    """
    if out.resolve().is_relative_to(checkpoint.path.resolve()):
        raise StateError(f"{out}: inside the checkpoint it copies", "choose a folder outside it")
    entries = _in_order(checkpoint, keys)
    touched = {entry.shard for entry in entries}
    with _writing(out):
        files, left = _sort_files(checkpoint)
        linked, not_linked = _link(checkpoint, out, touched) if link else ([], "")
        # Shards to patch take longest, so they come first.
        names = sorted((name for name in files if name not in linked), key=lambda name: name not in touched)
        progress = _CopyProgress({name: (checkpoint.path / name).stat().st_size for name in names}, on_bytes)
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        with _pool() as writers, _pool() as readers, _pool() as flushers:
            try:
                copies = [writers.submit(_copy_file, checkpoint, out, name, progress) for name in names]
                # Flushing starts now, so that the disk is busy meanwhile; the caller's sync waits for the rest.
                flushed = [flushers.submit(_flush, out, name, progress) for name in names]
                compared = [
                    readers.submit(_compare, checkpoint, out, name, piece, progress, [])
                    for name in names
                    if name in checkpoint.shards and name not in touched
                    for piece in _pieces([], progress.sizes[name])
                ]
                ready = patches()
                if ready.keys() - keys:
                    raise StateError(f"{checkpoint.path}: the state changed meanwhile", "run the same command again")
                patched = {
                    entry: writers.submit(_overwrite, checkpoint, out, entry, ready[entry.key], chunk_bytes, progress)
                    for entry in entries
                    if entry.key in ready
                }
                for name in (name for name in names if name in touched):
                    within = {entry: job for entry, job in patched.items() if entry.shard == name}
                    compared += [
                        readers.submit(_compare, checkpoint, out, name, piece, progress, within.values())
                        for piece in _pieces(within, progress.sizes[name])
                    ]
                _wait(copies)
                sha256 = {entry.key: job.result() for entry, job in patched.items()}
                _wait(compared)
                _wait(flushed)
                for name in names:
                    if (out / name).stat().st_size != progress.sizes[name]:
                        raise StateError(f"`{name}` of the copy is not as long as its base", _AGAIN)
            except BaseException:
                progress.stop()
                for pool in (writers, readers, flushers):
                    pool.shutdown(wait=False, cancel_futures=True)
                raise
    return Copied(left, sha256, linked, not_linked)


def _pool() -> ThreadPoolExecutor:
    """Return threads for one kind of job; with shared threads, waiting jobs could block those they wait for."""
    return ThreadPoolExecutor(SIDE_BY_SIDE)


def _in_order(checkpoint: Checkpoint, keys: Iterable[str]) -> list[TensorEntry]:
    """Return tensors in the order of their place in the shards."""
    if unknown := sorted(set(keys) - set(checkpoint.tensors)):
        raise StateError(f"{checkpoint.path}: no tensor {unknown[0]!r}", "pass the checkpoint that was edited")
    return sorted((checkpoint.tensors[key] for key in keys), key=lambda entry: (entry.shard, entry.start))


def _link(checkpoint: Checkpoint, out: Path, touched: Collection[str]) -> tuple[list[str], str]:
    linked: list[str] = []
    for shard in checkpoint.shards:
        if shard in touched:
            continue
        (out / shard).parent.mkdir(parents=True, exist_ok=True)
        try:
            # The real file: a hub snapshot holds symbolic links, and a hard link to one may point nowhere.
            os.link(os.path.realpath(checkpoint.path / shard), out / shard)
        except OSError as error:
            return linked, str(error.strerror)
        linked.append(shard)
    return linked, ""


class _CopyProgress:
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


def _wait(jobs: Iterable[Future[T]]) -> list[T]:
    return [job.result() for job in list(jobs)]


def _copy_file(checkpoint: Checkpoint, out: Path, name: str, progress: _CopyProgress) -> None:
    with FileIO(checkpoint.path / name) as old, FileIO(out / name, "x+") as new:
        copied = 0
        for step in _copy_bytes(old, new):
            copied += step
            progress.add(name, step)
    if copied != progress.sizes[name]:
        raise StateError(f"{checkpoint.path}: `{name}` changed while it was copied", "copy it again")


def _overwrite(
    checkpoint: Checkpoint, out: Path, entry: TensorEntry, patch: Patch, chunk_bytes: int, progress: _CopyProgress
) -> str:
    """Write a tensor's new rows over the copy's, and return the SHA-256 of their bytes."""
    import torch

    progress.wait_for(entry.shard, entry.stop)
    digest = hashlib.sha256()
    step = max(1, chunk_bytes // max(1, entry.row_bytes))
    with FileIO(out / entry.shard, "r+") as target:
        for first in range(0, entry.shape[0], step):
            old = checkpoint.read_rows(entry, first, min(first + step, entry.shape[0]))
            new = patch(old, first)
            if new.shape != old.shape or new.dtype != old.dtype:
                raise TypeError(f"{entry.key}: patched to {new.dtype} {new.shape}, was {old.dtype} {old.shape}")
            target.seek(entry.start + first * entry.row_bytes)
            data = new.contiguous().reshape(-1).view(torch.uint8).numpy().data
            digest.update(data)
            _write_all(target, data)
    return digest.hexdigest()


def _flush(out: Path, name: str, progress: _CopyProgress) -> None:
    progress.wait_for(name, progress.sizes[name])
    with FileIO(out / name, "r+") as changed:
        os.fsync(changed.fileno())


def _compare(
    checkpoint: Checkpoint,
    out: Path,
    shard: str,
    piece: tuple[int, int],
    progress: _CopyProgress,
    writes: Iterable[Future[str]],
) -> None:
    """Compare a piece of a shard with the base's, after waiting for the `writes` to that shard and for its copy.

    Raises:
        StateError: a byte is not the base's.
    """
    start, stop = piece
    _wait(writes)
    progress.wait_for(shard, start + 1)
    old, new = bytearray(_COMPARED), bytearray(_COMPARED)  # reused: new buffers cost page faults
    with FileIO(checkpoint.path / shard) as ours, FileIO(out / shard) as theirs:
        ours.seek(start)
        theirs.seek(start)
        for first in range(start, stop, _COMPARED):
            length = min(_COMPARED, stop - first)
            progress.wait_for(shard, first + length)
            read = [file.readinto(memoryview(buffer)[:length]) for file, buffer in ((ours, old), (theirs, new))]
            # Whole buffers: after a short last block both still hold the rest of the block before, which was equal.
            if read != [length, length] or old != new:
                raise StateError(f"`{shard}` of the copy differs from its base", _AGAIN)


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
        _write_all(target, block)
        yield len(block)


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    while data:  # a raw write may be partial
        data = data[file.write(data) :]


def _sort_files(checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """Return the files to copy and those not to copy (folders with a slash), relative to the checkpoint."""
    copied: list[str] = []
    left: list[str] = []
    todo = [checkpoint.path]
    while todo:
        for file in todo.pop().iterdir():
            name = file.relative_to(checkpoint.path).as_posix()
            stale = any(fnmatch(file.name, pattern) for pattern in _OTHER_WEIGHTS)
            if not file.is_dir():
                ours = file.is_file() and (not stale or name in (INDEX, *checkpoint.shards))
                (copied if ours else left).append(name)
            # Linked folders are not entered: they may lead back up.
            elif file.name.startswith(".") or file.name in _OTHER_WEIGHT_FOLDERS or file.is_symlink():
                left.append(f"{name}/")
            else:
                todo.append(file)
    return sorted(copied), sorted(left)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ResourceError(f"{out}: {error.strerror}", "free some space or choose another disk") from error
        raise StateError(f"{out}: {error}", "check that both folders can be read and written") from error
