"""Copies of a checkpoint in which some tensors are replaced and every other byte is the original's."""

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

from more_cli.checkpoint.reader import INDEX, PICKLES, Checkpoint, TensorEntry
from more_cli.errors import ResourceError, StateError

if TYPE_CHECKING:  # files are copied while it is imported
    from torch import Tensor

T = TypeVar("T")

# Other copies of the weights: a patched checkpoint would ship them stale, so they stay behind.
_OTHER_FORMATS = ("*.gguf", "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.bin.index.json")
_OTHER_WEIGHTS = (*PICKLES, *_OTHER_FORMATS, "*.safetensors", "*.safetensors.index.json")
_OTHER_WEIGHT_FOLDERS = ("original", "onnx")
_COPY_STEP = 64 << 20  # bytes: few enough steps that no thread waits long for Python while another one imports
_PIECE, _COMPARED = 1 << 28, 1 << 20  # bytes: of what one job compares, and at a time
_AGAIN = "check the disk, then merge again"
SIDE_BY_SIDE = 3
"""Files copied or tensors patched, pieces compared, and files flushed, at a time."""

Patch = Callable[["Tensor", int], "Tensor"]
"""Takes rows (n, ...) of a tensor and the number of the first; returns new ones, same shape and dtype."""


@dataclass(frozen=True)
class Copied:
    """What `copy_patched` made."""

    left_out: list[str]
    """Files that stayed behind."""
    sha256: dict[str, str]
    """Of the new bytes of every tensor that was patched, by key."""
    linked: list[str]
    """Shards that are the base's own files under a second name."""
    not_linked: str
    """Why a shard that was to be linked was copied."""


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

    Dtype and shape of a tensor stay, so offsets stay and header bytes are kept verbatim: the kernel copies a
    shard whole (it may share blocks instead), then the patched ranges are overwritten. Every other byte is compared
    with the base's. Not atomic: the caller renames `out`.

    `patches` is called, on this thread, while files are being copied: whatever it takes to have them costs little time
    of its own. It has one for each of the tensors `keys`, or for some of them. Within a shard the copy goes ahead and
    tensors are overwritten behind it; what is compared is read once nothing is written to its shard any more. Rows of
    a tensor are patched in order; of it at most `chunk_bytes` (at least a row) are held at a time. `on_bytes` is told
    the bytes copied so far and in all. With `link` a shard without any of the `keys` gets a second name in `out`
    instead, where that is possible: no byte is copied, both are one file. Other weight copies, hidden and linked
    folders and dead links stay behind.

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
        found, left = _sort_files(checkpoint)
        linked, not_linked = _link(checkpoint, out, touched) if link else ([], "")
        # What is patched takes longest: it comes first.
        names = sorted((name for name in found if name not in linked), key=lambda name: name not in touched)
        tide = _Tide({name: (checkpoint.path / name).stat().st_size for name in names}, on_bytes)
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        with _pool() as writers, _pool() as readers, _pool() as flushers:
            try:
                copies = [writers.submit(_copy_file, checkpoint, out, name, tide) for name in names]
                # Begun here, so that the disk has work meanwhile; the caller's own sync waits for what is left.
                flushed = [flushers.submit(_flush, out, name, tide) for name in names]
                compared = [
                    readers.submit(_compare, checkpoint, out, name, piece, tide, [])
                    for name in names
                    if name in checkpoint.shards and name not in touched
                    for piece in _pieces([], tide.sizes[name])
                ]
                ready = patches()
                if ready.keys() - keys:
                    raise StateError(f"{checkpoint.path}: the state changed meanwhile", "run the same command again")
                patched = {
                    entry: writers.submit(_overwrite, checkpoint, out, entry, ready[entry.key], chunk_bytes, tide)
                    for entry in entries
                    if entry.key in ready
                }
                for name in (name for name in names if name in touched):
                    within = {entry: job for entry, job in patched.items() if entry.shard == name}
                    compared += [
                        readers.submit(_compare, checkpoint, out, name, piece, tide, within.values())
                        for piece in _pieces(within, tide.sizes[name])
                    ]
                _wait(copies)
                sha256 = {entry.key: job.result() for entry, job in patched.items()}
                _wait(compared)
                _wait(flushed)
                for name in names:
                    if (out / name).stat().st_size != tide.sizes[name]:
                        raise StateError(f"`{name}` of the copy is not as long as its base", _AGAIN)
            except BaseException:
                tide.stop()
                for pool in (writers, readers, flushers):
                    pool.shutdown(wait=False, cancel_futures=True)
                raise
    return Copied(left, sha256, linked, not_linked)


def _pool() -> ThreadPoolExecutor:
    """Each kind of job has threads of its own: one that waits for another then never keeps it from running."""
    return ThreadPoolExecutor(SIDE_BY_SIDE)


def _in_order(checkpoint: Checkpoint, keys: Iterable[str]) -> list[TensorEntry]:
    """Return tensors as they lie in the shards."""
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
            # The file itself: a snapshot of the hub holds links, and a second name of one may point nowhere.
            os.link(os.path.realpath(checkpoint.path / shard), out / shard)
        except OSError as error:
            return linked, str(error.strerror)
        linked.append(shard)
    return linked, ""


class _Tide:
    """How far all files have been copied, for those that follow behind, and whether to go on at all."""

    def __init__(self, sizes: Mapping[str, int], tell: Callable[[int, int], None] | None) -> None:
        self.sizes = sizes
        self._reached: Counter[str] = Counter()
        self._done, self._total = 0, sum(sizes.values())
        self._tell = tell
        self._stopped = False
        self._news = Condition()

    def go_on(self) -> None:
        """End a job here once another one failed, or the user pressed Ctrl-C: it may have gigabytes before it."""
        if self._stopped:
            raise CancelledError

    def stop(self) -> None:
        """Let no job go on."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def add(self, name: str, copied: int) -> None:
        """Count bytes of a file that were copied."""
        self.go_on()
        with self._news:
            self._reached[name] += copied
            self._done += copied
            self._news.notify_all()
            if self._tell is not None:
                self._tell(self._done, self._total)

    def wait_for(self, name: str, stop: int) -> None:
        """Return once the first `stop` bytes of a file are in the copy, or all that it has."""
        stop = min(stop, self.sizes[name])
        with self._news:
            self._news.wait_for(lambda: self._stopped or self._reached[name] >= stop)
        self.go_on()


def _wait(jobs: Iterable[Future[T]]) -> list[T]:
    return [job.result() for job in list(jobs)]


def _copy_file(checkpoint: Checkpoint, out: Path, name: str, tide: _Tide) -> None:
    with FileIO(checkpoint.path / name) as old, FileIO(out / name, "x+") as new:
        copied = 0
        for step in _copy_bytes(old, new):
            copied += step
            tide.add(name, step)
    if copied != tide.sizes[name]:
        raise StateError(f"{checkpoint.path}: `{name}` changed while it was copied", "copy it again")


def _overwrite(
    checkpoint: Checkpoint, out: Path, entry: TensorEntry, patch: Patch, chunk_bytes: int, tide: _Tide
) -> str:
    """Write a tensor's new rows over the copy's, and return the SHA-256 of their bytes."""
    import torch

    tide.wait_for(entry.shard, entry.stop)
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


def _flush(out: Path, name: str, tide: _Tide) -> None:
    tide.wait_for(name, tide.sizes[name])
    with FileIO(out / name, "r+") as changed:
        os.fsync(changed.fileno())


def _compare(
    checkpoint: Checkpoint, out: Path, shard: str, piece: tuple[int, int], tide: _Tide, writes: Iterable[Future[str]]
) -> None:
    """Compare a piece of a shard with the base's once the `writes` to that shard are done.

    What is not copied yet is waited for.

    Raises:
        StateError: a byte is not the base's.
    """
    start, stop = piece
    _wait(writes)
    tide.wait_for(shard, start + 1)
    old, new = bytearray(_COMPARED), bytearray(_COMPARED)  # filled again and again: fresh buffers cost page faults
    with FileIO(checkpoint.path / shard) as ours, FileIO(out / shard) as theirs:
        ours.seek(start)
        theirs.seek(start)
        for first in range(start, stop, _COMPARED):
            length = min(_COMPARED, stop - first)
            tide.wait_for(shard, first + length)
            read = [file.readinto(memoryview(buffer)[:length]) for file, buffer in ((ours, old), (theirs, new))]
            # Whole buffers: behind a short last block both still hold the block before, which was equal.
            if read != [length, length] or old != new:
                raise StateError(f"`{shard}` of the copy differs from its base", _AGAIN)


def _pieces(entries: Iterable[TensorEntry], size: int) -> Iterator[tuple[int, int]]:
    """Return where in a shard the bytes lie that belong to none of the tensors `entries`, at most `_PIECE` together."""
    bounds = [0, *(bound for entry in entries for bound in (entry.start, entry.stop)), size]
    for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
        for first in range(start, stop, _PIECE):
            yield first, min(first + _PIECE, stop)


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
