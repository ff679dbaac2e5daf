"""The bytes of a Hugging Face safetensors folder: headers, tensors and fingerprint.

Nothing here knows what a tensor means. Headers are untrusted input: they are checked completely before an offset is
used, so a truncated or hostile shard gives one error that names it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint.packed import Packed
from more_cli.checkpoint.quantised import packed_weights, refuse_float8, scheme_of
from more_cli.errors import StateError
from more_cli.text import shorten, unique_fields

if TYPE_CHECKING:  # headers are read without torch, so that commands that need no weights start fast
    from torch import Tensor

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

_VOCABULARY_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json")
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
FINGERPRINT_FILES = (CONFIG, *_TOKENIZER_FILES, *_VOCABULARY_FILES, *_TEMPLATE_FILES, *_PROCESSOR_FILES)
"""Files that decide how prompts and images are encoded, and so part of what an edit depends on."""

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Dtypes that can be read and patched: name in the header to name in torch."""

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")

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
_AGAIN = "download or copy the checkpoint again"

ADAPTER = "adapter_config.json"
_SAVED = "save the whole model once with transformers' save_pretrained"
_ORIGINAL_LLAVA = re.compile(r"Llava\w*ForCausalLM|llava_(llama|mistral|mixtral|mpt|qwen|gemma|phi)")
"""Classes and model types of LLaVA's own repository; those of transformers have other names."""


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

    @cached_property
    def scheme(self) -> str | None:
        """How its weights are quantised; None for plain weights."""
        return scheme_of(self.path, self.config)

    @cached_property
    def packed(self) -> Mapping[str, Packed]:
        """Its quantised weights, by their keys."""
        return packed_weights(self) if self.scheme else {}

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

        with _reading(self.path / entry.shard):
            if entry.dtype not in FLOATS:
                raise ValueError(f"{entry.key} has dtype {entry.dtype}, not one of {', '.join(FLOATS)}")
        return self._read_bytes(entry, start, stop).view(getattr(torch, FLOATS[entry.dtype]))

    def _read_bytes(self, entry: TensorEntry, start: int, stop: int) -> Tensor:
        import torch

        with _reading(self.path / entry.shard), FileIO(self.path / entry.shard) as file:
            flat = torch.empty(stop - start, dtype=torch.uint8)
            view = flat.numpy().data
            file.seek(start)
            while view:
                count = file.readinto(view)
                if not count:
                    raise ValueError("became shorter while it was read")
                view = view[count:]
            return flat


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the config and every shard header of a checkpoint folder; no weight is read.

    Raises:
        StateError: Not a safetensors checkpoint, or its index, headers and files contradict each other.
    """
    require_checkpoint(path)
    config = _read_object(path / CONFIG)
    _require_transformers(path, config)
    scheme_of(path, config)  # raises for those that cannot be edited
    if (named := config.get("transformers_weights")) not in (None, SINGLE, INDEX):
        raise StateError(f"{path}: config.json loads weights from {named!r}", "save it again with save_pretrained")
    placed, shards = _placement(path)
    tensors: dict[str, TensorEntry] = {}
    for shard in shards:
        with _reading(path / shard), FileIO(path / shard) as file:
            _, entries = _parse_entries(_header_bytes(file), shard, os.fstat(file.fileno()).st_size)
        for entry in entries:
            other = tensors.setdefault(entry.key, entry)
            if other is not entry:
                what = f"tensor {entry.key!r} is in both {other.shard} and {shard}"
                raise StateError(f"{path}: {what}", "save it again with save_pretrained")
    for key, shard in placed.items():
        if key not in tensors or tensors[key].shard != shard:
            raise StateError(f"{path}: {INDEX} says {key!r} is in {shard}, but it is not", _AGAIN)
    checkpoint = Checkpoint(path, config, tensors, shards)
    refuse_float8(checkpoint)
    return checkpoint


def read_header(file: FileIO, name: str) -> tuple[Any, list[TensorEntry]]:
    """Return the unchecked metadata of an open safetensors file and its tensors' locations; no tensor is read.

    Raises:
        OSError, ValueError, RecursionError: the header cannot be read, or contradicts the file.
    """
    return _parse_entries(_header_bytes(file), name, os.fstat(file.fileno()).st_size)


def fingerprint(checkpoint: Checkpoint, site_keys: Iterable[str]) -> dict[str, str]:
    """Hash what an edit depends on: name to SHA-256, without paths and times.

    The names are each of `FINGERPRINT_FILES` that exists, `headers` (of all shards together), and
    `tensor:KEY` for the base tensor of each site.

    Raises:
        StateError: A file cannot be read, or became shorter since it was opened.
    """
    files = [name for name in FINGERPRINT_FILES if (checkpoint.path / name).is_file()]
    found = {name: _sha256(checkpoint.path / name, 0, (checkpoint.path / name).stat().st_size) for name in files}
    headers = hashlib.sha256()
    for shard in checkpoint.shards:
        with _reading(checkpoint.path / shard), FileIO(checkpoint.path / shard) as file:
            headers.update(shard.encode() + b"\0" + _header_bytes(file))
    found["headers"] = headers.hexdigest()
    # A quantised weight is more than its codes: its scales are hashed too.
    packed = {key: [entry.key for entry in checkpoint.packed[key].parts.values()] for key in checkpoint.packed}
    keys = sorted({part for key in site_keys for part in packed.get(key, [key])})
    entries = [checkpoint.tensors[key] for key in keys]
    with ThreadPoolExecutor() as pool:  # hashing takes the time and releases the interpreter lock
        hashes = pool.map(lambda entry: _sha256(checkpoint.path / entry.shard, entry.start, entry.stop), entries)
        return found | {f"tensor:{key}": sha256 for key, sha256 in zip(keys, hashes, strict=True)}


def require_checkpoint(path: Path) -> None:
    """Check that a folder can be a checkpoint, without reading its weights.

    Raises:
        StateError: no such folder, or one that holds something else: says what, and what to do about it.
    """
    hint = "pass the folder that holds config.json and model*.safetensors"
    if not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        hint = f"it looks like a hub id and nothing is fetched: hf download {path} --local-dir {path.name}"
    if not path.exists():
        raise StateError(f"{path}: no such directory", hint)
    if not path.is_dir():
        raise _file_instead(path, hint)
    weights = any((path / name).is_file() for name in (SINGLE, INDEX))
    if not weights and (other := _other_format(path)):
        raise other
    if not (path / CONFIG).is_file():
        raise _no_config(path, hint)
    if (path / ADAPTER).exists():
        what = f"{ADAPTER} inside, so transformers would load an adapter on top of the base"
        raise StateError(f"{path}: {what}", "move the adapter elsewhere, or merge it with PEFT first")


def _file_instead(path: Path, hint: str) -> StateError:
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.suffix == ".more":
        return StateError(
            f"{path}: a state, not a checkpoint directory", "name it with --state; MODEL is the checkpoint"
        )
    if path.suffix == ".safetensors" or path.name in (CONFIG, INDEX):
        hint = f"pass the folder it lies in: {path.parent}"
    return StateError(f"{path}: a file, not a checkpoint directory", hint)


def _other_format(path: Path) -> StateError | None:
    """Return the error for a folder without safetensors weights that holds an adapter or a GGUF file."""
    if (path / ADAPTER).is_file():
        base = None
        with suppress(StateError):  # it need not be readable
            base = _read_object(path / ADAPTER).get("base_model_name_or_path")
        into = repr(shorten(base, 100)) if isinstance(base, str) else "its base"
        hint = f"merge it into {into} first, with peft's merge_and_unload and save_pretrained, and pass the result"
        return StateError(f"{path}: a PEFT adapter ({ADAPTER}), not a whole checkpoint", hint)
    return next((_gguf(file) for file in sorted(path.glob("*.gguf"))), None)


def _gguf(file: Path) -> StateError:
    hint = "pass the folder of the safetensors checkpoint that the GGUF file was made from"
    return StateError(f"{file}: a GGUF file, made for llama.cpp, which cannot be edited", hint)


def _no_config(path: Path, hint: str) -> StateError:
    if not any(path.iterdir()):
        return StateError(f"{path}: an empty directory", hint)
    if pickles := _pickles(path):
        return StateError(f"{path}: no {CONFIG}, and only pickled weights ({pickles[0]}), never loaded", _SAVED)
    # A run's folder of checkpoints, or the hub's cache.
    inside = [found.parent for where in ("*", "snapshots/*") for found in sorted(path.glob(f"{where}/{CONFIG}"))]
    return StateError(f"{path}: no {CONFIG}", f"did you mean `{inside[-1]}`?" if inside else hint)


def _pickles(path: Path) -> list[str]:
    return sorted(file.name for pattern in PICKLES for file in path.glob(pattern))


def _require_transformers(path: Path, config: Mapping[str, Any]) -> None:
    """Check that a config is not that of LLaVA's own repository, whose names and weights are others.

    Raises:
        StateError: it is.
    """
    architectures = config.get("architectures")
    names = [*architectures] if isinstance(architectures, list) else []
    names += [config.get("model_type")]
    named = next((name for name in names if isinstance(name, str) and _ORIGINAL_LLAVA.fullmatch(name)), None)
    if named or "mm_vision_tower" in config:
        what = f"a checkpoint of LLaVA's own code ({named or 'mm_vision_tower in config.json'}), not of transformers"
        hint = (
            "convert it with convert_llava_weights_to_hf.py of transformers' repository, or get the one named `...-hf`"
        )
        raise StateError(f"{path}: {what}", hint)


def _placement(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the shard of each tensor from the index (empty without an index), and the names of all shards."""
    index, single = path / INDEX, (path / SINGLE).is_file()
    if not index.is_file():
        if single:
            return {}, (SINGLE,)
        pickles = _pickles(path)
        what = f"only pickled weights ({pickles[0]}), never loaded" if pickles else f"no {SINGLE} or {INDEX}"
        raise StateError(f"{path}: {what}", _SAVED)
    placed = _read_object(index).get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise StateError(f"{index}: no weight_map of tensor names to shards", _AGAIN)
    shards = tuple(sorted(set(placed.values())))
    for shard in shards:
        # A plain file name, so that an index cannot point outside the folder.
        if not shard.isprintable() or set(shard) & set("/\\:") or not shard.endswith(".safetensors"):
            raise StateError(f"{index}: {shard!r} is not the name of a shard in this folder", _AGAIN)
        if not (path / shard).is_file():
            raise StateError(f"{index}: shard {shard} is missing", _AGAIN)
    if single and shards != (SINGLE,):
        hint = f"remove the stale set (transformers reads {SINGLE} and ignores the index)"
        raise StateError(f"{path}: two sets of weights, {SINGLE} and the shards of {INDEX}", hint)
    return placed, shards


def _read_object(path: Path) -> dict[str, Any]:
    with _reading(path):
        if path.stat().st_size > _HEADER_LIMIT:
            raise ValueError(f"larger than {_HEADER_LIMIT // 1_000_000} MB")
        return _parse_object(path.read_bytes())


def _parse_object(raw: bytes) -> dict[str, Any]:
    parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_fields)
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


def _header_bytes(file: FileIO) -> bytes:
    """Return the length field and the JSON of a shard's header, as on disk."""
    prefix = file.read(8)
    if prefix == b"version ":
        raise ValueError("a Git LFS pointer, not the weights: run git lfs pull in its repository")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > os.fstat(file.fileno()).st_size - 8:
        raise ValueError("shorter than its header says (truncated?)")
    if length > _HEADER_LIMIT:
        raise ValueError(f"a header of {length} bytes")
    return prefix + file.read(length)


def _parse_entries(header: bytes, shard: str, size: int) -> tuple[Any, list[TensorEntry]]:
    """Check a header like safetensors does: known dtypes, and data that fills the file without gap or overlap."""
    described = _parse_object(header[8:])
    metadata = described.pop("__metadata__", None)
    if len(described) > _TENSORS:
        raise ValueError(f"{len(described):,} tensors, more than {_TENSORS:,}")
    entries = [_parse_entry(key, info, shard, len(header)) for key, info in described.items()]
    end = len(header)
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            raise ValueError(f"the data of {entry.key!r} does not follow the tensor before it")
        end = entry.stop
    if end != size:
        raise ValueError(f"the header describes {end} bytes, the file has {size} (truncated?)")
    return metadata, entries


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


def _sha256(path: Path, start: int, stop: int) -> str:
    digest = hashlib.sha256()
    with _reading(path), FileIO(path) as file:
        file.seek(start)
        while start < stop:
            block = file.read(min(1 << 20, stop - start))
            if not block:
                raise ValueError("became shorter while it was read")
            digest.update(block)
            start += len(block)
    return digest.hexdigest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn any error of a broken or unreadable file into a StateError that names it."""
    try:
        yield
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path}: {getattr(error, 'strerror', None) or error}", _AGAIN) from error
