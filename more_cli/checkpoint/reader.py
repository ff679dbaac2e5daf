"""A checkpoint folder as bytes: its tensors, read where they lie, and the hashes that an edit depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint.folder import CONFIG
from more_cli.checkpoint.headers import FLOATS, TensorEntry, fill, header_bytes, range_sha256, reading
from more_cli.checkpoint.packed import Packed

if TYPE_CHECKING:  # headers are read without torch, so that commands that need no weights start fast
    from torch import Tensor

_VOCABULARY_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json")
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
FINGERPRINT_FILES = (CONFIG, *_TOKENIZER_FILES, *_VOCABULARY_FILES, *_TEMPLATE_FILES, *_PROCESSOR_FILES)
"""Files that decide how prompts and images are encoded, and so part of what an edit depends on."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder of which only config and headers were read.

    Raises:
        StateError: On reading a tensor whose shard became shorter, or whose dtype is not one of `FLOATS`.
    """

    path: Path
    config: dict[str, Any]
    tensors: Mapping[str, TensorEntry]
    shards: tuple[str, ...]
    scheme: str | None = None
    """How its weights are quantised; None for plain weights."""
    packed: Mapping[str, Packed] = field(default_factory=dict)
    """Its quantised weights, by their keys."""

    @cached_property
    def weights(self) -> Mapping[str, TensorEntry]:
        """Its tensors as a model names them: a quantised weight with the shape of its matrix, without its scales."""
        parts = {entry.key for packed in self.packed.values() for entry in packed.parts.values()}
        plain = {key: entry for key, entry in self.tensors.items() if key not in parts}
        return plain | {key: packed.entry for key, packed in self.packed.items()}

    def read_tensor(self, entry: TensorEntry) -> Tensor:
        """Read one tensor, bit for bit."""
        return self._read(entry, entry.start, entry.stop).reshape(entry.shape)

    def read_rows(self, entry: TensorEntry, first: int, last: int) -> Tensor:
        """Read rows `first` to `last` (exclusive), shape (last - first, ...)."""
        start, stop = (entry.start + row * entry.row_bytes for row in (first, last))
        return self._read(entry, start, stop).reshape(last - first, *entry.shape[1:])

    def read_bytes(self, entry: TensorEntry) -> Tensor:
        """Read the bytes of a tensor of any dtype, (bytes,) uint8."""
        return self._read_bytes(entry, entry.start, entry.stop)

    def _read(self, entry: TensorEntry, start: int, stop: int) -> Tensor:
        import torch

        with reading(self.path / entry.shard):
            if entry.dtype not in FLOATS:
                raise ValueError(f"{entry.key} has dtype {entry.dtype}, not one of {', '.join(FLOATS)}")
        return self._read_bytes(entry, start, stop).view(getattr(torch, FLOATS[entry.dtype]))

    def _read_bytes(self, entry: TensorEntry, start: int, stop: int) -> Tensor:
        import torch

        with reading(self.path / entry.shard), FileIO(self.path / entry.shard) as file:
            flat = torch.empty(stop - start, dtype=torch.uint8)
            fill(flat.numpy().data, file, start)
            return flat


def fingerprint(checkpoint: Checkpoint, site_keys: Iterable[str]) -> dict[str, str]:
    """Hash what an edit depends on: name to SHA-256, without paths and times.

    The names are each of `FINGERPRINT_FILES` that exists, `headers` (of all shards together), and
    `tensor:KEY` for the base tensor of each site.

    Raises:
        StateError: A file cannot be read, or became shorter since it was opened.
    """
    files = [name for name in FINGERPRINT_FILES if (checkpoint.path / name).is_file()]
    found = {name: range_sha256(checkpoint.path / name, 0, (checkpoint.path / name).stat().st_size) for name in files}
    headers = hashlib.sha256()
    for shard in checkpoint.shards:
        with reading(checkpoint.path / shard), FileIO(checkpoint.path / shard) as file:
            headers.update(shard.encode() + b"\0" + header_bytes(file))
    found["headers"] = headers.hexdigest()
    # A quantised weight is more than its codes: its scales are hashed too.
    packed = {key: [entry.key for entry in checkpoint.packed[key].parts.values()] for key in checkpoint.packed}
    keys = sorted({part for key in site_keys for part in packed.get(key, [key])})
    entries = [checkpoint.tensors[key] for key in keys]
    with ThreadPoolExecutor() as pool:  # hashing takes the time and releases the interpreter lock
        hashes = pool.map(lambda entry: range_sha256(checkpoint.path / entry.shard, entry.start, entry.stop), entries)
        return found | {f"tensor:{key}": sha256 for key, sha256 in zip(keys, hashes, strict=True)}
