"""Tiny checkpoints that bitsandbytes itself quantised, beside the full-precision ones they were made from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from more_cli.model.keymap import quiet
from support.helpers import World

SETTINGS: dict[str, dict[str, Any]] = {
    "int8": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4 nested": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True},
}
"""What a user gives to `BitsAndBytesConfig`."""


def quantise(full: Path, out: Path, scheme: str, **options: Any) -> Path:
    """Load a checkpoint quantised and save it, with the processor of the original; needs bitsandbytes."""
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

    with quiet():
        config = BitsAndBytesConfig(**SETTINGS[scheme])
        model = AutoModelForImageTextToText.from_pretrained(
            full, quantization_config=config, device_map={"": "cpu"}, **{"dtype": "auto", **options}
        )
        model.save_pretrained(out)
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
