"""Quantised weights in a checkpoint: which schemes can be edited beside, and the matrices that the packed bytes are.

A scheme is known here if it was shown to work: `from_pretrained` loads it, the forward of its Linears can be hooked,
and a backward pass goes through them. Every other one is refused by its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from more_cli.errors import StateError
from more_cli.text import shorten

if TYPE_CHECKING:
    from torch import Tensor

    from more_cli.checkpoint.reader import Checkpoint, TensorEntry

DECLARED = ("quantization_config", "compression_config")
"""Entries of a config that name a scheme."""
BITSANDBYTES = "bitsandbytes"
FOUR_BITS = ("nf4", "fp4")
SCHEMES = ("int8", *FOUR_BITS)
"""Schemes that can be edited beside, all of bitsandbytes."""
_STATE = ".quant_state.bitsandbytes__"
_SCALES = ".SCB"
_LARGEST_STATE = 1 << 16
"""Bytes of JSON beside one weight that are read, at most."""
_SLACK = 1.001
"""Times the bound of a scheme: values near the middle of two codes are rounded in float32."""
_CASTS = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
_INSTEAD = "use the full-precision checkpoint it was made from, or quantise that with bitsandbytes to int8 or nf4"


@dataclass(frozen=True)
class Packed:
    """One weight that is stored quantised: tensors that together are a matrix."""

    key: str
    """Of the tensor with the codes."""
    scheme: str
    shape: tuple[int, int]
    """(d_out, d_in) of the matrix."""
    parts: Mapping[str, TensorEntry]
    """All its tensors, by what follows the module's path and a dot, such as `weight.absmax`."""
    facts: Mapping[str, Any]
    """What bitsandbytes wrote down beside it; empty for int8."""


def scheme_of(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return the scheme that `from_pretrained` would load weights by, one of `SCHEMES`; None for plain weights.

    Raises:
        StateError: a scheme that was not shown to work, by its name.
    """
    declared = next((config[name] for name in DECLARED if config.get(name) is not None), None)
    if declared is None:
        return None
    name, known = _named(declared)
    if not known:
        what = f"quantised by {shorten(name)}, beside which edits were not shown to work"
        raise StateError(f"{path}: {what}", _INSTEAD)
    return name


def refuse_float8(path: Path, tensors: Iterable[TensorEntry]) -> None:
    """Refuse float8 tensors, which no supported scheme has: without their scales they would load as other weights.

    Raises:
        StateError: there is one.
    """
    if found := next((entry for entry in tensors if entry.dtype.startswith("F8")), None):
        what = f"{found.key} has dtype {found.dtype}, beside which edits were not shown to work"
        raise StateError(f"{path}: {what}", _INSTEAD)


def _named(declared: Any) -> tuple[str, bool]:
    """Return the name of a declared scheme, and whether it is one of `SCHEMES`."""
    if not isinstance(declared, Mapping):
        return f"{declared!r}", False
    eight, four = bool(declared.get("load_in_8bit")), bool(declared.get("load_in_4bit"))
    method = str(declared.get("quant_method") or (BITSANDBYTES if eight or four else "an unnamed method"))
    if method != BITSANDBYTES:
        form = declared.get("format")
        return f"{method} ({form})" if isinstance(form, str) else method, False
    if eight == four:
        return f"{BITSANDBYTES} without one of load_in_8bit and load_in_4bit", False
    if eight:
        kept = bool(declared.get("llm_int8_has_fp16_weight"))
        return (f"{BITSANDBYTES} int8 with llm_int8_has_fp16_weight", False) if kept else ("int8", True)
    kind, storage = str(declared.get("bnb_4bit_quant_type", "fp4")), declared.get("bnb_4bit_quant_storage", "uint8")
    if storage != "uint8":
        return f"{BITSANDBYTES} {kind} with bnb_4bit_quant_storage {storage}", False
    return (kind, True) if kind in FOUR_BITS else (f"{BITSANDBYTES} {kind}", False)


def quantisation(config: Mapping[str, Any]) -> dict[str, str]:
    """Return where a config declares quantised weights, at the root or nested: dotted path to method."""
    methods: dict[str, str] = {}
    todo: list[tuple[str, Mapping[str, Any]]] = [("", config)]
    while todo:
        prefix, node = todo.pop()
        for name, value in node.items():
            if name in DECLARED and isinstance(value, dict):
                bits = value.get("load_in_4bit") or value.get("load_in_8bit")
                methods[prefix + name] = str(value.get("quant_method") or ("bitsandbytes" if bits else "unknown"))
            elif isinstance(value, dict):
                todo.append((f"{prefix}{name}.", value))
    return dict(sorted(methods.items()))


# ------------------------------------------------------------------------------------------- packed weights


def packed_weights(checkpoint: Checkpoint) -> dict[str, Packed]:
    """Return the quantised weights of a checkpoint, by the key of their codes.

    A weight whose parts do not fit each other is left out: it is no matrix that can be read.
    """
    found = {}
    for key in checkpoint.tensors:
        if checkpoint.scheme == "int8" and key.endswith(_SCALES):
            packed = _eight_bits(checkpoint, key.removesuffix(_SCALES))
        elif checkpoint.scheme in FOUR_BITS and key.partition(_STATE)[2] == checkpoint.scheme:
            packed = _four_bits(checkpoint, key)
        else:
            continue
        if packed is not None:
            found[packed.key] = packed
    return found


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
    return {name: checkpoint.tensors[f"{module}.{name}"] for name in _part_names(checkpoint, module)}


def _part_names(checkpoint: Checkpoint, module: str) -> Iterator[str]:
    single = ("weight", "SCB", "weight_format")
    below = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", *(f"{_STATE[1:]}{kind}" for kind in FOUR_BITS))
    for name in (*single, *(f"weight.{part}" for part in below)):
        if f"{module}.{name}" in checkpoint.tensors:
            yield name


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


# ------------------------------------------------------------------------------------------- their matrices


def matrix(checkpoint: Checkpoint, packed: Packed) -> Tensor:
    """Return the matrix that packed bytes are, (d_out, d_in) float32."""
    return _matrix_and_bound(checkpoint, packed)[0]


def misfit(checkpoint: Checkpoint, packed: Packed, weight: Tensor) -> float:
    """Return how far a weight (d_out, d_in) is from the packed one, in units of what its scheme may round off.

    1 or less where the packed weight can have been made from it: int8 rounds to multiples of a row's largest |w| / 127,
    off by half of that; nf4 and fp4 round to 16 codes times the largest |w| of a block, off by half the gap to the next
    code. Where those scales are quantised too, their own half gap comes on top.
    """
    import torch

    ours, bound = _matrix_and_bound(checkpoint, packed)
    # What bitsandbytes was given: the weight in the dtype of the model, which int8 rounds to float16 first.
    named = str(packed.facts.get("dtype") or checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype"))
    given = weight.to(getattr(torch, _CASTS.get(named, "float32")))
    given = given.to(torch.float16) if packed.scheme == "int8" else given
    gap = (given.float() - ours).abs()
    within = torch.where(gap == 0, gap, gap / bound.clamp_min(torch.finfo(torch.float32).tiny))
    return float(within.max()) / _SLACK


def _matrix_and_bound(checkpoint: Checkpoint, packed: Packed) -> tuple[Tensor, Tensor]:
    """Return the matrix, and by how much a weight may differ from each of its entries."""
    import torch

    def read(name: str) -> Tensor:
        raw = checkpoint.read_bytes(packed.parts[name])
        return raw.view(torch.float32) if packed.parts[name].dtype == "F32" else raw

    if packed.scheme == "int8":
        step = read("SCB")[:, None] / 127
        codes = read("weight").view(torch.int8).reshape(packed.shape)
        return codes.float() * step, (step / 2).expand(packed.shape)
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
    bound = _reach(code)[places] * largest + code[places].abs() * added
    return (code[places] * scale).reshape(packed.shape), bound.reshape(packed.shape)


def _reach(code: Tensor) -> Tensor:
    """Return for each value of a code how far from it a number can lie that is rounded to it."""
    import torch

    values, order = code.sort()
    gaps = values.diff() / 2
    zero = gaps.new_zeros(1)
    reach = torch.empty_like(code)
    reach[order] = torch.maximum(torch.cat([zero, gaps]), torch.cat([gaps, zero]))
    return reach
