"""Copies of a checkpoint in which some tensors are replaced and every other byte is the original's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from io import FileIO
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from more_cli.checkpoint import INDEX, PICKLES, Checkpoint
from more_cli.errors import ResourceError, StateError

# Other copies of the weights: a patched checkpoint would ship them stale, so they stay behind.
_OTHER_FORMATS = ("*.gguf", "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.bin.index.json")
_OTHER_WEIGHTS = (*PICKLES, *_OTHER_FORMATS, "*.safetensors", "*.safetensors.index.json")
_OTHER_WEIGHT_FOLDERS = ("original", "onnx")
_COPY_STEP = 16 << 20  # bytes
SIDE_BY_SIDE = 3
"""Files copied, and tensors patched, at a time."""

Patch = Callable[[Tensor, int], Tensor]
"""Takes rows (n, ...) of a tensor and the number of the first; returns new ones, same shape and dtype."""


def copy_patched(
    checkpoint: Checkpoint,
    out: Path,
    patches: Mapping[str, Patch],
    *,
    there: Collection[str] = (),
    on_bytes: Callable[[int, int], None] | None = None,
    chunk_bytes: int = 1 << 19,
) -> list[str]:
    """Copy a checkpoint into the scratch folder `out` with some tensors replaced; name what stayed behind.

    Dtype and shape of a tensor stay, so offsets stay and header bytes are kept verbatim: the kernel copies a
    shard whole (it may share blocks instead), then the patched ranges are overwritten. Every other byte is the
    base's. Not atomic: the caller renames `out`. Files named in `there` are in `out` already and not touched. The
    others are copied side by side, a tensor's rows are patched in order; `on_bytes` is told the bytes copied so far
    and in all, and of a patched tensor at most `chunk_bytes` (at least a row) are held at a time. Other weight
    copies, hidden and linked folders and dead links stay behind.

    Raises:
        StateError: An unknown tensor, a file already in `out`, a file that cannot be read or written.
        ResourceError: The disk is full.
    """
    if unknown := sorted(set(patches) - set(checkpoint.tensors)):
        raise StateError(f"{checkpoint.path}: no tensor {unknown[0]!r}", "pass the checkpoint that was edited")
    if out.resolve().is_relative_to(checkpoint.path.resolve()):
        raise StateError(f"{out}: inside the checkpoint it copies", "choose a folder outside it")
    with _writing(out):
        found, left = _sort_files(checkpoint)
        names = [name for name in found if name not in there]
        count = _Count(sum((checkpoint.path / name).stat().st_size for name in names), on_bytes)
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool, ThreadPoolExecutor(SIDE_BY_SIDE) as flushers:
            try:
                _wait(pool.submit(_copy_file, checkpoint.path / name, out / name, count) for name in names)
                # What was copied goes to the disk while tensors are patched; the caller's own sync writes the rest.
                flushed = [flushers.submit(_flush, out / name) for name in names]
                _wait(pool.submit(_overwrite, checkpoint, out, key, patches[key], chunk_bytes) for key in patches)
                _wait(flushed)
            except BaseException:
                count.stopped = True
                pool.shutdown(cancel_futures=True)
                raise
        if count.done != count.total:
            raise StateError(f"{checkpoint.path}: changed while it was copied", "copy it again")
    return left


def link_shards(checkpoint: Checkpoint, out: Path, patched: Collection[str]) -> tuple[list[str], str]:
    """Give the shards without a patched tensor a second name in `out`: no byte is copied, both names are one file.

    Returns the shards linked and, where one could not be, why: another file system, or one without hard links.
    """
    touched = {checkpoint.tensors[key].shard for key in patched}
    linked: list[str] = []
    for shard in checkpoint.shards:
        if shard in touched:
            continue
        (out / shard).parent.mkdir(parents=True, exist_ok=True)
        try:
            # The file itself: a snapshot of the hub holds links, and a second name of one may point nowhere.
            os.link(os.path.realpath(checkpoint.path / shard), out / shard)
        except OSError as error:
            return linked, str(error.strerror)
        linked.append(shard)
    return linked, ""


class _Count:
    """Bytes copied by all threads together."""

    def __init__(self, total: int, tell: Callable[[int, int], None] | None) -> None:
        self.done, self.total = 0, total
        self.stopped = False
        self._tell = tell
        self._lock = Lock()

    def add(self, copied: int) -> None:
        if self.stopped:  # another file failed, or the user pressed Ctrl-C: a copy of gigabytes must not go on
            raise CancelledError
        with self._lock:
            self.done += copied
            if self._tell is not None:
                self._tell(self.done, self.total)


def _wait(jobs: Iterable[Future[None]]) -> None:
    for job in list(jobs):
        job.result()


def _copy_file(source: Path, target: Path, count: _Count) -> None:
    with FileIO(source) as old, FileIO(target, "x+") as new:
        for copied in _copy_bytes(old, new):
            count.add(copied)


def _flush(file: Path) -> None:
    with FileIO(file, "r+") as written:
        os.fsync(written.fileno())


def _overwrite(checkpoint: Checkpoint, out: Path, key: str, patch: Patch, chunk_bytes: int) -> None:
    entry = checkpoint.tensors[key]
    step = max(1, chunk_bytes // max(1, entry.row_bytes))
    with FileIO(out / entry.shard, "r+") as target:
        for first in range(0, entry.shape[0], step):
            old = checkpoint.read_rows(entry, first, min(first + step, entry.shape[0]))
            new = patch(old, first)
            if new.shape != old.shape or new.dtype != old.dtype:
                raise TypeError(f"{key}: patched to {new.dtype} {new.shape}, was {old.dtype} {old.shape}")
            target.seek(entry.start + first * entry.row_bytes)
            _write_all(target, new.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _copy_bytes(source: FileIO, target: FileIO) -> Iterator[int]:
    """Copy to the end of the source, inside the kernel where it can; yield the length of every step."""
    # Fails across file systems, on old kernels and on macOS: the plain loop then goes on from where it stopped.
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
    """Names of the files to copy and of what stays behind (folders with a slash), relative to the checkpoint."""
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
            # Linked folders are not walked: they may lead back up.
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
