"""Copies of a checkpoint in which some tensors are replaced and every other byte is the original's."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from io import FileIO
from itertools import pairwise
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, TypeVar

from more_cli.cache import KnownHash
from more_cli.checkpoint import INDEX, PICKLES, Checkpoint, TensorEntry
from more_cli.errors import ResourceError, StateError

if TYPE_CHECKING:  # files are copied while it is imported
    from torch import Tensor

T = TypeVar("T")

# Other copies of the weights: a patched checkpoint would ship them stale, so they stay behind.
_OTHER_FORMATS = ("*.gguf", "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.bin.index.json")
_OTHER_WEIGHTS = (*PICKLES, *_OTHER_FORMATS, "*.safetensors", "*.safetensors.index.json")
_OTHER_WEIGHT_FOLDERS = ("original", "onnx")
_COPY_STEP = 64 << 20  # bytes: few enough steps that no thread waits long for Python while another one imports
_COMPARED = 1 << 20  # bytes at a time
SIDE_BY_SIDE = 3
"""Files copied, tensors patched and shards read, at a time."""

Patch = Callable[["Tensor", int], "Tensor"]
"""Takes rows (n, ...) of a tensor and the number of the first; returns new ones, same shape and dtype."""


@dataclass(frozen=True)
class Copied:
    """What `copy_patched` made."""

    left_out: list[str]
    """Files that stayed behind."""
    sha256: dict[str, str]
    """Of every shard that was written, by name."""
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
    """Copy a checkpoint into the scratch folder `out` with some tensors replaced, and read the copy once.

    Dtype and shape of a tensor stay, so offsets stay and header bytes are kept verbatim: the kernel copies a
    shard whole (it may share blocks instead), then the patched ranges are overwritten. Every other byte is compared
    with the base's. Not atomic: the caller renames `out`.

    `patches` is called, on this thread, while files are being copied: whatever it takes to have them costs little time
    of its own. It has one for each of the tensors `keys`, or for some of them. Within a shard the copy goes ahead,
    tensors are overwritten behind it and all is read behind them. Rows of a tensor are patched in order; of it at most
    `chunk_bytes` (at least a row) are held at a time. `on_bytes` is told the bytes copied so far and in all. With
    `link` a shard without any of the `keys` gets a second name in `out` instead, where that is possible: no byte is
    copied, both are one file. Other weight copies, hidden and linked folders and dead links stay behind.

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
        jobs: Future[Mapping[str, Future[None]]] = Future()
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        # A job waits for jobs that were submitted before it, and so never for one that it keeps from running.
        with ThreadPoolExecutor(SIDE_BY_SIDE) as writers, ThreadPoolExecutor(SIDE_BY_SIDE) as readers:
            try:
                copies = [writers.submit(_copy_file, checkpoint, out, name, tide) for name in names]
                shards = [name for name in names if name in checkpoint.shards]
                read = [readers.submit(_read_back, checkpoint, out, name, entries, jobs, tide) for name in shards]
                ready = patches()
                if ready.keys() - keys:
                    raise StateError(f"{checkpoint.path}: the state changed meanwhile", "run the same command again")
                patched = {
                    entry.key: writers.submit(_overwrite, checkpoint, out, entry, ready[entry.key], chunk_bytes, tide)
                    for entry in entries
                    if entry.key in ready
                }
                jobs.set_result(patched)
                # Begun here, so that the disk has work meanwhile; the caller's own sync waits for what is left.
                flushed = [writers.submit(_flush, out, name, tide) for name in names]
                _wait(copies)
                _wait(patched.values())
                sha256 = dict(zip(shards, _wait(read), strict=True))
                _wait(flushed)
            except BaseException:
                tide.stop()
                jobs.cancel()  # who waits for it is let go
                for pool in (writers, readers):
                    pool.shutdown(wait=False, cancel_futures=True)
                raise
    return Copied(left, sha256, linked, not_linked)


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
) -> None:
    import torch

    tide.wait_for(entry.shard, entry.stop)
    step = max(1, chunk_bytes // max(1, entry.row_bytes))
    with FileIO(out / entry.shard, "r+") as target:
        for first in range(0, entry.shape[0], step):
            old = checkpoint.read_rows(entry, first, min(first + step, entry.shape[0]))
            new = patch(old, first)
            if new.shape != old.shape or new.dtype != old.dtype:
                raise TypeError(f"{entry.key}: patched to {new.dtype} {new.shape}, was {old.dtype} {old.shape}")
            target.seek(entry.start + first * entry.row_bytes)
            _write_all(target, new.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _flush(out: Path, name: str, tide: _Tide) -> None:
    tide.wait_for(name, tide.sizes[name])
    with FileIO(out / name, "r+") as changed:
        os.fsync(changed.fileno())


def _read_back(
    checkpoint: Checkpoint,
    out: Path,
    shard: str,
    entries: Sequence[TensorEntry],
    jobs: Future[Mapping[str, Future[None]]],
    tide: _Tide,
) -> str:
    """Read a shard of the copy once: compare what was not patched with the base, and return its SHA-256.

    What is not copied or patched yet is waited for when its turn comes. A shard in which nothing can be patched
    hashes to what its base is known to hash to.

    Raises:
        StateError: a byte outside the patched ranges is not the base's.
    """
    base = KnownHash.of(checkpoint.path / shard)
    entries = [entry for entry in entries if entry.shard == shard]
    known = None if entries else base.sha256
    size, digest = tide.sizes[shard], hashlib.sha256()
    bounds = [0, *(bound for entry in entries for bound in (entry.start, entry.stop)), size]
    # Filled again and again: fresh buffers cost page faults.
    old, new, changed = bytearray(_COMPARED), bytearray(_COMPARED), bytearray(_COMPARED)
    tide.wait_for(shard, 1)
    with FileIO(checkpoint.path / shard) as ours, FileIO(out / shard) as theirs:
        same = os.fstat(ours.fileno()).st_size == size
        for place, (start, stop) in enumerate(pairwise(bounds)):
            patch = jobs.result().get(entries[place // 2].key) if place % 2 else None  # between entries there is none
            if patch is not None:
                patch.result()
            buffer = new if patch is None else changed
            ours.seek(start)
            for first in range(start, stop, _COMPARED):
                length = min(_COMPARED, stop - first)
                tide.wait_for(shard, first + length)
                same = same and theirs.readinto(memoryview(buffer)[:length]) == length
                # Whole buffers: behind a short last piece both still hold the piece before, which was equal.
                if patch is None and same:
                    same = ours.readinto(memoryview(old)[:length]) == length and old == new
                if not same:
                    raise StateError(f"`{shard}` of the copy differs from its base", "check the disk, then merge again")
                if known is None:
                    digest.update(memoryview(buffer)[:length])
        if theirs.read(1):
            raise StateError(f"`{shard}` of the copy is longer than its base", "check the disk, then merge again")
    if known is None and not entries:
        base.keep(digest.hexdigest())
    return known or digest.hexdigest()


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
