"""Opening a checkpoint folder: its config and every shard header are checked, and no weight is read."""

from __future__ import annotations

from dataclasses import replace
from io import FileIO
from pathlib import Path

from more_cli.checkpoint.folder import CONFIG, INDEX, SINGLE, placement, require_checkpoint, require_transformers
from more_cli.checkpoint.headers import AGAIN, TensorEntry, read_header, read_object, reading
from more_cli.checkpoint.quantised import packed_weights, refuse_float8, scheme_of
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the config and every shard header of a checkpoint folder; no weight is read.

    Raises:
        StateError: Not a safetensors checkpoint, or its index, headers and files contradict each other.
    """
    require_checkpoint(path)
    config = read_object(path / CONFIG)
    require_transformers(path, config)
    scheme = scheme_of(path, config)  # raises for those that cannot be edited
    if (named := config.get("transformers_weights")) not in (None, SINGLE, INDEX):
        raise StateError(f"{path}: config.json loads weights from {named!r}", "save it again with save_pretrained")
    placed, shards = placement(path)
    tensors: dict[str, TensorEntry] = {}
    for shard in shards:
        with reading(path / shard), FileIO(path / shard) as file:
            _, entries = read_header(file, shard)
        for entry in entries:
            other = tensors.setdefault(entry.key, entry)
            if other is not entry:
                what = f"tensor {entry.key!r} is in both {other.shard} and {shard}"
                raise StateError(f"{path}: {what}", "save it again with save_pretrained")
    for key, shard in placed.items():
        if key not in tensors or tensors[key].shard != shard:
            raise StateError(f"{path}: {INDEX} says {key!r} is in {shard}, but it is not", AGAIN)
    checkpoint = Checkpoint(path, config, tensors, shards, scheme)
    if scheme:
        checkpoint = replace(checkpoint, packed=packed_weights(checkpoint))
    refuse_float8(checkpoint)
    return checkpoint
