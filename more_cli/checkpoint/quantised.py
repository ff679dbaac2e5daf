"""Quantised weights in a checkpoint: which schemes can be edited beside, and the matrices that the packed bytes are.

A scheme is known here if it was shown to work: `from_pretrained` loads it, the forward of its Linears can be hooked,
and a backward pass goes through them. Every other one is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint import bnb, compressed
from more_cli.checkpoint.packed import DECLARED, UNSHOWN, Bounded, Packed, declared
from more_cli.errors import StateError
from more_cli.text import shorten

if TYPE_CHECKING:
    from torch import Tensor

    from more_cli.checkpoint.reader import Checkpoint

SCHEMES = (*bnb.SCHEMES, *compressed.SCHEMES)
"""Schemes that can be edited beside."""
_SLACK = 1.001
"""Factor on the bound of a scheme, because values near the middle of two codes are rounded in float32."""
_CASTS = ("float32", "float16", "bfloat16")
_BY_GPTQMODEL = "which transformers reads through gptqmodel alone, a library that compiles code when it loads a model"
_INSTEAD = "use the full-precision checkpoint it was made from, or quantise that with bitsandbytes to int8 or nf4"


def scheme_of(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return the scheme that `from_pretrained` would load weights by, one of `SCHEMES`; None for plain weights.

    Raises:
        StateError: a scheme that was not shown to work, by its name.
    """
    said = declared(config)
    if said is None:
        return None
    name, why = _named(said)
    if why:
        raise StateError(f"{path}: quantised by {shorten(name)}, {why}", _INSTEAD)
    return name


def refuse_float8(checkpoint: Checkpoint) -> None:
    """Refuse float8 tensors that no supported scheme has: without their scales they would load as other weights.

    Raises:
        StateError: there is one.
    """
    found = [entry for entry in checkpoint.tensors.values() if entry.dtype.startswith("F8")]
    if stray := next((entry for entry in found if entry.key not in checkpoint.packed), None):
        what = f"{stray.key} has dtype {stray.dtype}, {UNSHOWN}"
        raise StateError(f"{checkpoint.path}: {what}", _INSTEAD)


def _named(said: Any) -> tuple[str, str]:
    """Return the name of a declared scheme, and why it is none of `SCHEMES`; empty if it is one."""
    if not isinstance(said, Mapping):
        return f"{said!r}", UNSHOWN
    bits = said.get("load_in_8bit") or said.get("load_in_4bit")
    method = str(said.get("quant_method") or (bnb.BITSANDBYTES if bits else "an unnamed method"))
    if method == compressed.COMPRESSED:
        return compressed.named(said)
    if method == bnb.BITSANDBYTES:
        return bnb.named(said)
    if method in ("gptq", "awq"):
        return method, _BY_GPTQMODEL
    form = said.get("format")
    return f"{method} ({form})" if isinstance(form, str) else method, UNSHOWN


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


def packed_weights(checkpoint: Checkpoint) -> dict[str, Packed]:
    """Return the quantised weights of a checkpoint, by their keys.

    A weight whose parts do not fit each other is left out: it is no matrix that can be read.
    """
    read = compressed if checkpoint.scheme in compressed.SCHEMES else bnb
    return {packed.key: packed for packed in read.packed_weights(checkpoint)}


def matrix(checkpoint: Checkpoint, packed: Packed) -> Tensor:
    """Return the matrix that packed bytes are, (d_out, d_in) float32."""
    return _bounded(checkpoint, packed).matrix


def misfit(checkpoint: Checkpoint, packed: Packed, weight: Tensor) -> float:
    """Return how far a weight (d_out, d_in) is from the packed one, in units of what its scheme may round off.

    1 or less where the packed weight can have been made from it by rounding to the nearest code.
    """
    import torch

    ours, below, above = _bounded(checkpoint, packed)
    # What was quantised: the weight in the dtype of the model, which bitsandbytes' int8 rounds to float16 first.
    named = str(packed.facts.get("dtype") or checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype"))
    given = weight.to(getattr(torch, named if named in _CASTS else "float32"))
    given = given.to(torch.float16) if packed.scheme == "int8" else given
    gap = given.float() - ours
    bound = torch.where(gap < 0, below, above).clamp_min(torch.finfo(torch.float32).tiny)
    return float(torch.where(gap == 0, gap, gap.abs() / bound).max()) / _SLACK


def _bounded(checkpoint: Checkpoint, packed: Packed) -> Bounded:
    if packed.scheme in compressed.SCHEMES:
        return compressed.bounded(checkpoint, packed)
    return bnb.bounded(checkpoint, packed)
