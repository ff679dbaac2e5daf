"""Tiny checkpoints that bitsandbytes or compressed-tensors quantised, beside the full-precision ones they came from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from more_cli.model.keymap import quiet
from support.helpers import World

SETTINGS: dict[str, dict[str, Any]] = {
    "int8": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4 nested": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True},
}
"""What a user gives to `BitsAndBytesConfig`."""

_FLOAT8 = {"num_bits": 8, "type": "float"}
_GROUPS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
_ROWS = {"num_bits": 8, "type": "int", "strategy": "channel"}
COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "W4A16": ("pack-quantized", _GROUPS),
    "W4A16 asymmetric": ("pack-quantized", _GROUPS | {"symmetric": False}),
    "W8A16": ("pack-quantized", _ROWS),
    "W8A16 asymmetric": ("pack-quantized", _ROWS | {"symmetric": False}),
    "W8A16 naive": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "tensor"}),
    "W8A16 naive asymmetric": ("naive-quantized", _GROUPS | {"num_bits": 8, "symmetric": False}),
    "float8": ("float-quantized", _FLOAT8 | {"strategy": "channel"}),
    "float8 blocks": (
        "naive-quantized",
        _FLOAT8 | {"strategy": "block", "block_structure": [24, 16]},
    ),
}
"""Formats of compressed-tensors, and what its weights are quantised by."""


def quantise(full: Path, out: Path, scheme: str, **options: Any) -> Path:
    """Load a checkpoint and save it quantised, with the processor of the original; skips without its library."""
    with quiet():
        if scheme in COMPRESSED:
            _compress(full, out, *COMPRESSED[scheme], **options)
        else:
            _bits_and_bytes(full, out, SETTINGS[scheme], **options)
    for file in full.iterdir():
        if file.is_file() and not (out / file.name).exists() and "safetensors" not in file.name:
            shutil.copy(file, out)
    return out


def quantised_world(root: Path, scheme: str, **kind: Any) -> World:
    """A world whose model is quantised; the one it was made from is in `full`."""
    world = World(root, wide=True, **kind)
    world.model.rename(root / "full")
    quantise(root / "full", world.model, scheme)
    return world


def require_compressed() -> None:
    """Skip a test without compressed-tensors."""
    os.environ.setdefault("COMPRESSED_TENSORS_LOG_DISABLED", "true")
    pytest.importorskip("compressed_tensors", reason="needs compressed-tensors")


def _bits_and_bytes(full: Path, out: Path, setting: dict[str, Any], **options: Any) -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    model = AutoModelForImageTextToText.from_pretrained(
        full, quantization_config=BitsAndBytesConfig(**setting), device_map={"": "cpu"}, **{"dtype": "auto", **options}
    )
    model.save_pretrained(out)


def _compress(full: Path, out: Path, form: str, weights: dict[str, Any], **options: Any) -> None:
    """Round to the nearest codes, with scales by the largest weights, as the library's own calibration does."""
    require_compressed()
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(full, **{"dtype": "auto", **options})
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["re:.*lm_head"]))
    for module in model.modules():
        if (scheme := getattr(module, "quantization_scheme", None)) is None:
            continue
        assert isinstance(module, nn.Linear)
        scale, zero = calculate_qparams(*_range(module.weight.data, weights), scheme.weights)
        module.weight_scale.data = scale.reshape(module.weight_scale.shape)
        module.weight_zero_point.data = zero.reshape(module.weight_scale.shape)
    compressor = ModelCompressor.from_pretrained_model(model, quantization_format=form)
    # It names the head as on disk, where transformers compares with names in memory, and takes another head.
    compressor.quantization_config.ignore = ["re:.*lm_head"]
    compressor.compress_model(model)
    model.save_pretrained(out)
    compressor.update_config(str(out))


def _range(weight: Tensor, weights: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest entry of each part of a matrix that has a scale."""
    match weights["strategy"]:
        case "tensor":
            parts = weight.reshape(1, -1)
        case "channel":
            parts = weight
        case "group":
            parts = weight.unflatten(1, (-1, weights["group_size"]))
        case _:
            height, width = weights["block_structure"]
            padded = nn.functional.pad(weight, (0, -weight.shape[1] % width, 0, -weight.shape[0] % height))
            parts = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height)).transpose(1, 2).flatten(2)
    return parts.amin(-1), parts.amax(-1)
