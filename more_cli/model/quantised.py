"""Quantised models: what loading one needs, and how its Linears are made fit for edits beside them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from typing import Any

from more_cli.checkpoint import bnb, compressed
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError, install_hint
from more_cli.model.machine import Machine

_FAST = "support_avx512bf16_for_cpu"
_INSTEAD = "use the full-precision checkpoint it was made from"


def import_library(checkpoint: Checkpoint) -> None:
    """Import what loads a checkpoint's quantised weights.

    Raises:
        StateError: it is not installed.
    """
    if checkpoint.scheme is None:
        return
    library = "bitsandbytes" if checkpoint.scheme in bnb.SCHEMES else "compressed_tensors"
    for needed in (library, "accelerate"):
        if find_spec(needed) is None:
            what = f"{checkpoint.path}: quantised to {checkpoint.scheme}, which needs {needed.replace('_', '-')}"
            raise StateError(what, install_hint("quantised"))
    if library == "bitsandbytes":
        import_bitsandbytes()
    else:
        # Some releases log to standard output, where commands print JSON.
        os.environ.setdefault("COMPRESSED_TENSORS_LOG_DISABLED", "true")


def import_bitsandbytes() -> None:
    """Import bitsandbytes if it is installed, without what it would fetch from the hub; PEFT imports it as well."""
    if find_spec("bitsandbytes") is None:
        return
    # It warns when it is imported, and at every Linear of every pass that float32 inputs become float16.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    with _without("kernels"):
        import bitsandbytes  # noqa: F401


def require_right(checkpoint: Checkpoint, machine: Machine) -> None:
    """Check that the weights of a checkpoint will be read as they were written.

    On a CPU bitsandbytes 0.50.2 gives wrong numbers for 4 bits, without an error, where a block of weights goes on in
    the next row. compressed-tensors leaves out what it does not know, such as a changed order of columns.

    Raises:
        StateError: one of them would not.
    """
    if checkpoint.scheme in compressed.SCHEMES:
        if strange := compressed.not_read(checkpoint):
            raise StateError(f"{checkpoint.path}: `{strange}` does not fit its scheme, {checkpoint.scheme}", _INSTEAD)
        return
    for packed in checkpoint.packed.values() if machine.device == "cpu" and not machine.device_map else ():
        block, entries = packed.facts.get("blocksize", 1), packed.shape[1]
        if entries % block:
            what = f"rows of {entries} entries are no multiple of its blocks of {block}"
            wrong = f"bitsandbytes computes {packed.scheme} wrongly there on a CPU"
            raise StateError(f"{checkpoint.path}: `{packed.key}`: {what}: {wrong}", "use --device cuda, or int8")


def placed(checkpoint: Checkpoint, machine: Machine, reserve: int) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that place a model; a quantised one cannot be moved afterwards."""
    if checkpoint.scheme is None or machine.device_map:
        return machine.placement(reserve)
    return {"device_map": {"": machine.device}}


def unpacked(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that unpack the weights of compressed-tensors while they are loaded.

    Else they are unpacked when the whole model first runs, which comes after its parts ran alone.

    Raises:
        StateError: this transformers cannot do so.
    """
    if checkpoint.scheme not in compressed.SCHEMES:
        return {}
    from transformers import CompressedTensorsConfig, __version__

    if "dequantize" not in signature(CompressedTensorsConfig).parameters:
        what = f"quantised to {checkpoint.scheme}, which transformers {__version__} does not unpack as it loads"
        raise StateError(f"{checkpoint.path}: {what}", "pip install --upgrade transformers")
    return {"quantization_config": CompressedTensorsConfig(dequantize=True)}


def keep_differentiable(model: Any) -> None:
    """Keep bitsandbytes from repacking 4-bit weights on processors with AVX512-BF16.

    There the first pass without gradients rounds the scales of nf4 and fp4 to bfloat16 in place. From then on a Linear
    with a bias fails when gradients are recorded, and one without gives its input none, without an error. The result
    would also depend on the processor.
    """
    for module in model.modules():
        if hasattr(module, _FAST):
            setattr(module, _FAST, False)


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Let imports of a package fail: with it, bitsandbytes fetches and runs a kernel from the hub when imported."""
    before = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            del sys.modules[package]
        else:
            sys.modules[package] = before
