"""What compressed-tensors stores where weights alone are quantised, and the matrices that they are.

Codes are integers of 4 or 8 bits, packed into int32 or one per byte, or float8. An entry is (code - zero point) times
the scale of its part of the matrix: a group of columns in a row, a row, a block, or all of it.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from io import FileIO
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint.packed import UNSHOWN, Bounded, Packed, declared

if TYPE_CHECKING:
    from torch import Tensor

    from more_cli.checkpoint.headers import TensorEntry
    from more_cli.checkpoint.reader import Checkpoint

COMPRESSED = "compressed-tensors"
FLOAT8 = f"float8 ({COMPRESSED})"
SCHEMES = (f"int4 ({COMPRESSED})", f"int8 ({COMPRESSED})", FLOAT8)
_LOST = "whose activations are quantised too: no gradient comes back through its Linears, without an error"
_PACKED = "pack-quantized"
_ONE_EACH = ("int-quantized", "float-quantized", "naive-quantized")
"""Formats with a code per entry."""
_FLOATS = {"F32": ("float32", 24), "F16": ("float16", 11), "BF16": ("bfloat16", 8)}
"""Dtypes of scales: name in torch, and significant bits."""
_CODES, _SCALE, _ZERO, _SHAPE = "weight_packed", "weight_scale", "weight_zero_point", "weight_shape"


# -------------------------------------------------------------------------------------------------- which ones


def named(said: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of a scheme that a config declares, and why it is none of `SCHEMES`; empty if it is one."""
    form = said.get("format")
    name = f"{COMPRESSED} ({form})" if isinstance(form, str) else COMPRESSED
    groups = said.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    if not groups or not all(isinstance(group, Mapping) for group in groups):
        return name, UNSHOWN
    if any(group.get(f"{side}_activations") for group in groups for side in ("input", "output")):
        return name, _LOST
    if said.get("kv_cache_scheme"):
        return name, "whose keys and values are quantised too, which edits do not see"
    # transformers reads all Linears by one of the groups when it dequantises.
    if any(_of(group) != _of(groups[0]) for group in groups):
        return f"{name} with more than one scheme for weights", UNSHOWN
    changed = any(said.get(other) for other in ("transform_config", "sparsity_config"))
    if changed or said.get("quantization_status") != "compressed":
        return name, UNSHOWN
    weights, form = groups[0].get("weights"), groups[0].get("format") or form
    found = _kind(weights, form) if isinstance(weights, Mapping) else ""
    return (f"{found} ({COMPRESSED})", "") if found else (name, UNSHOWN)


def _of(group: Mapping[str, Any]) -> tuple[Any, Any]:
    return group.get("weights"), group.get("format")


def _kind(weights: Mapping[str, Any], form: Any) -> str:
    """Return `int4`, `int8` or `float8`; empty for what cannot be read."""
    bits, kind = weights.get("num_bits"), str(weights.get("type"))
    known = form == _PACKED or form in _ONE_EACH
    if not known or type(bits) is not int or weights.get("dynamic") or weights.get("scale_dtype"):
        return ""
    if weights.get("actorder") not in (None, False, "weight", "static"):
        return ""  # its columns are stored in another order
    if not _block(weights, (1, 1)):
        return ""
    if kind == "int" and bits in (4, 8):
        return f"int{bits}"
    return "float8" if kind == "float" and bits == 8 and form != _PACKED and weights.get("symmetric", True) else ""


def _block(weights: Mapping[str, Any], shape: tuple[int, int]) -> tuple[int, int] | None:
    """Return the rows and columns of a matrix that share a scale."""
    size, block = weights.get("group_size"), weights.get("block_structure")
    match weights.get("strategy"):
        case "tensor":
            return shape
        case "channel":
            return 1, shape[1]
        case "group" if type(size) is int and size > 0:
            return 1, size
        case "block" if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
            return block[0], block[1]
    return None


# ---------------------------------------------------------------------------------------------- packed weights


def packed_weights(checkpoint: Checkpoint) -> Iterator[Packed]:
    """Yield the quantised weights of a checkpoint whose parts fit each other."""
    said = declared(checkpoint.config)
    group = next(iter(said["config_groups"].values()))
    weights, form = group["weights"], group.get("format") or said.get("format")
    for module, parts in _quantised(checkpoint):
        if packed := _packed(checkpoint, module, parts, weights, form == _PACKED):
            yield packed


def not_read(checkpoint: Checkpoint) -> str:
    """Return the key of a tensor of a quantised Linear that is part of no weight; empty if there is none."""
    strange = (parts for module, parts in _quantised(checkpoint) if f"{module}.weight" not in checkpoint.packed)
    return next((next(iter(parts.values())).key for parts in strange), "")


def _quantised(checkpoint: Checkpoint) -> Iterator[tuple[str, dict[str, TensorEntry]]]:
    """Yield the path of each quantised module, and its tensors by their names; its bias is none of them."""
    modules: dict[str, dict[str, TensorEntry]] = defaultdict(dict)
    for key, entry in checkpoint.tensors.items():
        module, _, leaf = key.rpartition(".")
        if leaf != "bias":
            modules[module][leaf] = entry
    yield from ((module, parts) for module, parts in modules.items() if _SCALE in parts or _CODES in parts)


def _packed(
    checkpoint: Checkpoint, module: str, found: Mapping[str, TensorEntry], weights: Mapping[str, Any], words: bool
) -> Packed | None:
    """Return the weight that a module's tensors are, packed into int32 `words` or not; None if they do not fit."""
    symmetric = bool(weights.get("symmetric", True))
    names = [_CODES if words else "weight", _SCALE, *([] if symmetric else [_ZERO]), *([_SHAPE] if words else [])]
    if set(names) != set(found):
        return None
    parts = {name: found[name] for name in names}
    bits = weights["num_bits"]
    shape = _shape(checkpoint, parts[_SHAPE]) if words else parts["weight"].shape
    if len(shape) != 2 or min(shape) < 1:
        return None
    shape = shape[0], shape[1]
    block = _block(weights, shape)
    if block is None or (block[0] == 1 and shape[1] % block[1]):
        return None
    block = min(block[0], shape[0]), min(block[1], shape[1])  # a file may name any size, and memory is taken by it
    across = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    floating = weights.get("type") == "float"
    stored = ("I32", (shape[0], _words(shape[1], bits))) if words else ("F8_E4M3" if floating else "I8", shape)
    if not _is(parts[names[0]], *stored):
        return None
    if parts[_SCALE].dtype not in _FLOATS or math.prod(parts[_SCALE].shape) != math.prod(across):
        return None
    zeros = ("I32", _words(across[0], bits) * across[1]) if words else ("I8", math.prod(across))
    if not symmetric and (parts[_ZERO].dtype, math.prod(parts[_ZERO].shape)) != zeros:
        return None
    facts = {"bits": bits, "block": block, "across": across}
    return Packed(f"{module}.weight", str(checkpoint.scheme), shape, parts, facts)


def _words(count: int, bits: int) -> int:
    """Return the int32 that so many codes take."""
    return -(-count * bits // 32)


def _is(entry: TensorEntry, dtype: str, shape: tuple[int, ...]) -> bool:
    return entry.dtype == dtype and entry.shape == shape


def _shape(checkpoint: Checkpoint, entry: TensorEntry) -> tuple[int, ...]:
    """Return the two numbers that a tensor of int64 holds; empty if it holds something else."""
    if not _is(entry, "I64", (2,)):
        return ()
    try:
        with FileIO(checkpoint.path / entry.shard) as file:  # without torch, so that commands start fast
            file.seek(entry.start)
            return struct.unpack("<2q", file.read(16))
    except (OSError, struct.error):
        return ()


# ---------------------------------------------------------------------------------------------- their matrices


def bounded(checkpoint: Checkpoint, packed: Packed) -> Bounded:
    """Return the matrix of a weight and by how much another may differ from each of its entries.

    An integer is off by half a step, a float8 by half the gap to the next one. The library divides by the scale in the
    scale's dtype, which it also rounded: that comes on top. The outermost codes also stand for what lies beyond, up to
    as far again: some ways to choose a scale clip the largest weights.
    """
    import torch

    (height, width), (rows, columns) = packed.facts["block"], packed.shape
    name, digits = _FLOATS[packed.parts[_SCALE].dtype]

    def spread(values: Tensor) -> Tensor:
        """Give every entry the value of its part of the matrix."""
        tall = values.reshape(packed.facts["across"]).float().repeat_interleave(height, 0)[:rows]
        return tall.repeat_interleave(width, 1)[:, :columns]

    step = spread(checkpoint.read_bytes(packed.parts[_SCALE]).view(getattr(torch, name)))
    codes = _codes(checkpoint, packed)
    zeros = spread(_zero_points(checkpoint, packed)) if _ZERO in packed.parts else torch.zeros(())
    values = codes - zeros
    if packed.scheme == FLOAT8:
        outermost = torch.finfo(torch.float8_e4m3fn).max
        half, lowest = (values.abs() / 16).clamp_min(2.0**-10), -outermost
    else:
        outermost = float(2 ** (packed.facts["bits"] - 1) - 1)
        half, lowest = torch.full_like(values, 0.5), -outermost - 1
    rounded = half + 2.0 ** (1 - digits) * (values.abs() + zeros.abs() + 1)
    beyond = torch.maximum(rounded, values.abs())
    below, above = torch.where(codes == lowest, beyond, rounded), torch.where(codes == outermost, beyond, rounded)
    return Bounded(values * step, below * step, above * step)


def _codes(checkpoint: Checkpoint, packed: Packed) -> Tensor:
    """Return the codes of a weight, (d_out, d_in) float32."""
    import torch

    if _CODES in packed.parts:
        words = checkpoint.read_bytes(packed.parts[_CODES]).reshape(packed.shape[0], -1)
        return _unpacked(words, packed.facts["bits"])[:, : packed.shape[1]].float()
    dtype = torch.float8_e4m3fn if packed.scheme == FLOAT8 else torch.int8
    return checkpoint.read_bytes(packed.parts["weight"]).view(dtype).reshape(packed.shape).float()


def _zero_points(checkpoint: Checkpoint, packed: Packed) -> Tensor:
    """Return the zero points of a weight, one per scale."""
    import torch

    raw, (down, across) = checkpoint.read_bytes(packed.parts[_ZERO]), packed.facts["across"]
    if _CODES not in packed.parts:
        return raw.view(torch.int8)
    # They are packed down the columns.
    words = raw.view(torch.int32).reshape(-1, across).T.contiguous().view(torch.uint8)
    return _unpacked(words, packed.facts["bits"])[:, :down].T


def _unpacked(raw: Tensor, bits: int) -> Tensor:
    """Return the codes that rows of bytes (n, bytes) are, lowest bits first, each stored plus half its range."""
    import torch

    if bits == 8:
        return raw.to(torch.int16) - 128
    return torch.stack([raw & 15, raw >> 4], dim=-1).flatten(1).to(torch.int16) - 8
