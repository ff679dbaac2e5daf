"""What bitsandbytes stores: int8, nf4 and fp4, and the matrices that they are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from io import FileIO
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint.packed import UNSHOWN, Bounded, Packed

if TYPE_CHECKING:
    from torch import Tensor

    from more_cli.checkpoint.headers import TensorEntry
    from more_cli.checkpoint.reader import Checkpoint

BITSANDBYTES = "bitsandbytes"
FOUR_BITS = ("nf4", "fp4")
SCHEMES = ("int8", *FOUR_BITS)
_STATE = ".quant_state.bitsandbytes__"
_SCALES = ".SCB"
_LARGEST_STATE = 1 << 16
"""Bytes of JSON beside one weight that are read, at most."""


def named(declared: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of a scheme that a config declares, and why it is none of `SCHEMES`; empty if it is one."""
    eight, four = bool(declared.get("load_in_8bit")), bool(declared.get("load_in_4bit"))
    if eight == four:
        return f"{BITSANDBYTES} without one of load_in_8bit and load_in_4bit", UNSHOWN
    if eight:
        kept = bool(declared.get("llm_int8_has_fp16_weight"))
        return (f"{BITSANDBYTES} int8 with llm_int8_has_fp16_weight", UNSHOWN) if kept else ("int8", "")
    kind, storage = str(declared.get("bnb_4bit_quant_type", "fp4")), declared.get("bnb_4bit_quant_storage", "uint8")
    if storage != "uint8":
        return f"{BITSANDBYTES} {kind} with bnb_4bit_quant_storage {storage}", UNSHOWN
    return (kind, "") if kind in FOUR_BITS else (f"{BITSANDBYTES} {kind}", UNSHOWN)


def packed_weights(checkpoint: Checkpoint) -> Iterator[Packed]:
    """Yield the quantised weights of a checkpoint whose parts fit each other."""
    for key in checkpoint.tensors:
        if checkpoint.scheme == "int8" and key.endswith(_SCALES):
            packed = _eight_bits(checkpoint, key.removesuffix(_SCALES))
        elif checkpoint.scheme in FOUR_BITS and key.partition(_STATE)[2] == checkpoint.scheme:
            packed = _four_bits(checkpoint, key)
        else:
            continue
        if packed is not None:
            yield packed


def _eight_bits(checkpoint: Checkpoint, module: str) -> Packed | None:
    parts = _parts(checkpoint, module)
    codes, scales = parts.get("weight"), parts["SCB"]
    if codes is None or codes.dtype != "I8" or len(codes.shape) != 2:
        return None
    if scales.dtype != "F32" or math.prod(scales.shape) != codes.shape[0]:
        return None
    return Packed(codes.key, "int8", (codes.shape[0], codes.shape[1]), parts, {})


def _four_bits(checkpoint: Checkpoint, state_key: str) -> Packed | None:
    key = state_key.partition(_STATE)[0]
    parts = _parts(checkpoint, key.removesuffix(".weight"))
    facts = _facts(checkpoint, checkpoint.tensors[state_key])
    shape, block = facts.get("shape"), facts.get("blocksize")
    codes = parts.get("weight")
    if codes is None or codes.dtype != "U8" or type(block) is not int or block < 1:
        return None
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        return None
    blocks = -(-math.prod(shape) // block)
    if math.prod(codes.shape) != -(-math.prod(shape) // 2) or not _holds(parts, "weight.quant_map", "F32", 16):
        return None
    if "weight.nested_absmax" in parts:
        nested = facts.get("nested_blocksize")
        offset = facts.get("nested_offset")
        if type(nested) is not int or nested < 1 or type(offset) is not float or not math.isfinite(offset):
            return None
        scales = _holds(parts, "weight.absmax", "U8", blocks) and _holds(parts, "weight.nested_quant_map", "F32", 256)
        fits = scales and _holds(parts, "weight.nested_absmax", "F32", -(-blocks // nested))
    else:
        fits = _holds(parts, "weight.absmax", "F32", blocks)
    return Packed(key, str(checkpoint.scheme), (shape[0], shape[1]), parts, facts) if fits else None


def _parts(checkpoint: Checkpoint, module: str) -> dict[str, TensorEntry]:
    """Return the tensors that make a module's weight; its bias is none of them."""
    below = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", *(f"{_STATE[1:]}{kind}" for kind in FOUR_BITS))
    names = ("weight", "SCB", "weight_format", *(f"weight.{part}" for part in below))
    found = {name: checkpoint.tensors.get(f"{module}.{name}") for name in names}
    return {name: entry for name, entry in found.items() if entry is not None}


def _holds(parts: Mapping[str, TensorEntry], name: str, dtype: str, count: int) -> bool:
    entry = parts.get(name)
    return entry is not None and entry.dtype == dtype and math.prod(entry.shape) == count


def _facts(checkpoint: Checkpoint, entry: TensorEntry) -> dict[str, Any]:
    """Return the JSON that bitsandbytes stores as a tensor of bytes; empty if it is none."""
    if entry.dtype != "U8" or entry.stop - entry.start > _LARGEST_STATE:
        return {}
    try:
        with FileIO(checkpoint.path / entry.shard) as file:  # without torch, so that commands start fast
            file.seek(entry.start)
            facts = json.loads(file.read(entry.stop - entry.start))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def bounded(checkpoint: Checkpoint, packed: Packed) -> Bounded:
    """Return the matrix of a weight and by how much another may differ from each of its entries.

    int8 rounds to multiples of a row's largest |w| / 127, off by half of that; nf4 and fp4 round to 16 codes times the
    largest |w| of a block, off by half the gap to the next code. Where those scales are quantised too, their own half
    gap comes on top.
    """
    import torch

    def read(name: str) -> Tensor:
        raw = checkpoint.read_bytes(packed.parts[name])
        return raw.view(torch.float32) if packed.parts[name].dtype == "F32" else raw

    if packed.scheme == "int8":
        step = read("SCB")[:, None] / 127
        codes = read("weight").view(torch.int8).reshape(packed.shape)
        half = (step / 2).expand(packed.shape)
        return Bounded(codes.float() * step, half, half)
    both = read("weight")
    places = torch.stack([both >> 4, both & 15], dim=1).flatten()[: math.prod(packed.shape)].long()
    code = read("weight.quant_map")
    scales, off = read("weight.absmax"), torch.zeros(())
    if "weight.nested_absmax" in packed.parts:
        of_scales = read("weight.nested_quant_map")
        outer = read("weight.nested_absmax").repeat_interleave(packed.facts["nested_blocksize"])[: len(scales)]
        off = _reach(of_scales)[scales.long()] * outer
        scales = of_scales[scales.long()] * outer + packed.facts["nested_offset"]
    block = packed.facts["blocksize"]
    allowed = torch.stack([scales, scales + off, off.expand_as(scales)])
    scale, largest, added = (row.repeat_interleave(block)[: len(places)] for row in allowed)
    bound = (_reach(code)[places] * largest + code[places].abs() * added).reshape(packed.shape)
    return Bounded((code[places] * scale).reshape(packed.shape), bound, bound)


def _reach(code: Tensor) -> Tensor:
    """Return for each value of a code the largest distance of a number that is rounded to it."""
    import torch

    values, order = code.sort()
    gaps = values.diff() / 2
    zero = gaps.new_zeros(1)
    reach = torch.empty_like(code)
    reach[order] = torch.maximum(torch.cat([zero, gaps]), torch.cat([gaps, zero]))
    return reach
