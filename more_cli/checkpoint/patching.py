"""Copies of a checkpoint with some tensors replaced; every other byte stays the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from more_cli.checkpoint.copying import Copying, Patch
from more_cli.checkpoint.folder import INDEX, PICKLES
from more_cli.checkpoint.headers import TensorEntry
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError
from more_cli.text import reason_of

# Other copies of the weights: they would be out of date beside patched weights, so they are not copied.
_OTHER_FORMATS = ("*.gguf", "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.bin.index.json")
_OTHER_WEIGHTS = (*PICKLES, *_OTHER_FORMATS, "*.safetensors", "*.safetensors.index.json")
_OTHER_WEIGHT_FOLDERS = ("original", "onnx")


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
) -> Copied:
    """Copy a checkpoint into the scratch folder `out` with some tensors replaced.

    Dtype and shape of a tensor stay, so offsets and header bytes stay: the kernel copies a whole shard (it may share
    blocks instead), then the patched ranges are overwritten. Every other byte is compared with the base's. The copy is
    not atomic: the caller renames `out`.

    `patches` is called on this thread while files are being copied, so preparing them takes little extra time. It
    returns a patch for all or some of the tensors `keys`. A tensor is overwritten as soon as its part of the shard is
    copied; comparing starts when no more writes to the shard are pending. Rows of a tensor are patched in order, few at
    a time. `on_bytes` receives the bytes copied so far and the total. With `link`, a shard without any of the `keys`
    becomes a hard link in `out` where that is possible, and no byte is copied. Other copies of the weights,
    a training run's `checkpoint-N`, hidden and linked folders and dead links are not copied.

    Raises:
        StateError: An unknown tensor, a patch beyond the `keys`, or a byte of the copy that is not the base's.
        OSError: A file cannot be read or written, or is in `out` already.
    """
    if out.resolve().is_relative_to(checkpoint.path.resolve()):
        raise StateError(f"{out}: inside the checkpoint it copies", "choose a folder outside it")
    entries = _in_order(checkpoint, keys)
    touched = {entry.shard for entry in entries}
    files, left = _sort_files(checkpoint)
    linked, not_linked = _link(checkpoint, out, touched) if link else ([], "")
    # Shards to patch take longest, so they come first.
    names = sorted((name for name in files if name not in linked), key=lambda name: name not in touched)
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    with Copying(checkpoint, out, names, on_bytes) as copying:
        copying.start()
        for shard in (name for name in names if name in checkpoint.shards and name not in touched):
            copying.compare(shard)
        ready = patches()
        if ready.keys() - keys:
            raise StateError(f"{checkpoint.path}: the state changed meanwhile", "run the same command again")
        for entry in (entry for entry in entries if entry.key in ready):
            copying.overwrite(entry, ready[entry.key])
        for shard in (name for name in names if name in touched):
            copying.compare(shard)
        sha256 = copying.finish()
    return Copied(left, sha256, linked, not_linked)


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
            return linked, reason_of(error)
        linked.append(shard)
    return linked, ""


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
            # Linked folders are not entered: they may lead back up. A training run's checkpoint-500 is another model.
            elif file.name.startswith((".", "checkpoint-")) or file.name in _OTHER_WEIGHT_FOLDERS or file.is_symlink():
                left.append(f"{name}/")
            else:
                todo.append(file)
    return sorted(copied), sorted(left)
