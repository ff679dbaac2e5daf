"""Which folder is a checkpoint of transformers, where its weights lie, and what another folder is instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from more_cli.checkpoint.headers import AGAIN, read_object
from more_cli.checkpoint.hub import is_hub_id
from more_cli.errors import StateError
from more_cli.text import is_utf8, shorten

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GENERATION = "generation_config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
ADAPTER = "adapter_config.json"
SAVED = "save the whole model once with transformers' save_pretrained"
_ORIGINAL_LLAVA = re.compile(r"Llava\w*ForCausalLM|llava_(llama|mistral|mixtral|mpt|qwen|gemma|phi)")
"""Classes and model types of LLaVA's own repository; those of transformers have other names."""


def require_checkpoint(path: Path) -> None:
    """Check that a folder can be a checkpoint, without reading its weights.

    Raises:
        StateError: no such folder, or one that holds something else: says what, and what to do about it.
    """
    hint = "pass the folder that holds config.json and model*.safetensors"
    if is_hub_id(path):
        id, name = path.as_posix(), path.name
        hint = f"it looks like a hub id and nothing is fetched: hf download {id} --local-dir {name}, or add --fetch to "
        hint += "init, edit, eval, status or ask"
    if not path.exists():
        raise StateError(f"{path}: no such directory", hint)
    if not is_utf8(path):
        raise StateError(f"{path}: its name is not UTF-8, so no library loads it", "rename it")
    if not path.is_dir():
        raise _file_instead(path, hint)
    if not _has_weights(path) and (other := _other_format(path)):
        raise other
    if not (path / CONFIG).is_file():
        raise _no_config(path, hint)
    if (path / ADAPTER).exists():
        what = f"{ADAPTER} inside, so transformers would load an adapter on top of the base"
        raise StateError(f"{path}: {what}", "move the adapter elsewhere, or merge it with PEFT first")


def _has_weights(path: Path) -> bool:
    return any((path / name).is_file() for name in (SINGLE, INDEX))


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
            base = read_object(path / ADAPTER).get("base_model_name_or_path")
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
        return StateError(f"{path}: no {CONFIG}, and only pickled weights ({pickles[0]}), never loaded", SAVED)
    # A run's folder of checkpoints, or the hub's cache.
    inside = [found.parent for where in ("*", "snapshots/*") for found in path.glob(f"{where}/{CONFIG}")]
    # Of `checkpoint-500` and `checkpoint-1000` the later one.
    last = max(filter(_has_weights, inside), key=lambda folder: (len(folder.name), folder.name), default=None)
    return StateError(f"{path}: no {CONFIG}", f"did you mean `{last}`?" if last else hint)


def _pickles(path: Path) -> list[str]:
    return sorted(file.name for pattern in PICKLES for file in path.glob(pattern))


def require_transformers(path: Path, config: Mapping[str, Any]) -> None:
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


def placement(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the shard of each tensor from the index (empty without an index), and the names of all shards."""
    index, single = path / INDEX, (path / SINGLE).is_file()
    if not index.is_file():
        if single:
            return {}, (SINGLE,)
        pickles = _pickles(path)
        what = f"only pickled weights ({pickles[0]}), never loaded" if pickles else f"no {SINGLE} or {INDEX}"
        raise StateError(f"{path}: {what}", SAVED)
    read = read_object(index)
    placed = read.get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise StateError(f"{index}: no weight_map of tensor names to shards", AGAIN)
    if not isinstance(read.get("metadata"), dict):
        raise StateError(f"{index}: no metadata, so transformers does not load it", 'add `"metadata": {}` to it')
    shards = tuple(sorted(set(placed.values())))
    for shard in shards:
        # A plain file name, so that an index cannot point outside the folder.
        if not shard.isprintable() or set(shard) & set("/\\:") or not shard.endswith(".safetensors"):
            raise StateError(f"{index}: {shard!r} is not the name of a shard in this folder", AGAIN)
        if not (path / shard).is_file():
            raise StateError(f"{index}: shard {shard} is missing", AGAIN)
    if single and shards != (SINGLE,):
        hint = f"remove the stale set (transformers reads {SINGLE} and ignores the index)"
        raise StateError(f"{path}: two sets of weights, {SINGLE} and the shards of {INDEX}", hint)
    return placed, shards
