"""The header of a safetensors file whose tensors are written one after the other."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_BYTES = {"F64": 8, "F32": 4}
"""Bytes of a value of each dtype that is written."""


def in_order(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """Return the names of tensors, given by dtype and shape, in the order in which safetensors writes them.

    The widest dtype comes first, so that every tensor is aligned; then the order is by name.
    """
    return sorted(tensors, key=lambda name: (-_BYTES[tensors[name][0]], name))


def header(metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the bytes before the tensors, which follow `in_order`: the same bytes as safetensors writes.

    safetensors itself needs all tensors at once, and holds the whole file a second time.
    """
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name in in_order(tensors):
        dtype, shape = tensors[name]
        stop = start + _BYTES[dtype] * math.prod(shape)
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
