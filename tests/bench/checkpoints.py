"""LLaVA checkpoints of given shapes with random bfloat16 weights, one tensor in memory at a time.

The 7B shapes and the names on disk are those of llava-hf/llava-1.5-7b-hf; the tokenizer is a small byte-level one.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support.tiny import make_processor, old_hub_name

TEXT = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
LARGE_TEXT = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}
LARGE_TEXT |= {"num_key_value_heads": 40}
TINY_TEXT = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY_TEXT |= {"num_key_value_heads": 4}
TINY_VISION = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL_TEXT = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16}
SMALL_TEXT |= {"num_key_value_heads": 16}
SMALL_VISION = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8}
THIN_TEXT = {"hidden_size": 768, "intermediate_size": 2064, "num_attention_heads": 12, "num_key_value_heads": 12}
THIN_VISION = {"hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 3}
DEEP_TEXT = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 42, "num_attention_heads": 32}
DEEP_TEXT |= {"num_key_value_heads": 4}
MID_TEXT = DEEP_TEXT | {"num_hidden_layers": 14}
BLIND = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 4, "image_size": 28}


@dataclass(frozen=True)
class Shape:
    """Differences from the 7B shapes, and the layout on disk."""

    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    shard: int = 5_000_000_000
    """Most bytes of a shard."""
    repeated: bool = False
    """The weights are one block of noise, repeated: for models that never run."""


SHAPES = {
    "270M": Shape(SMALL_TEXT, SMALL_VISION | {"image_size": 168}),
    "270M-576": Shape(SMALL_TEXT, SMALL_VISION),  # 336 pixels, 576 image tokens
    "290M-576": Shape(THIN_TEXT, THIN_VISION),  # the proportions of 7B: 32 layers, 24 of vision, and their widths
    "7B": Shape(),
    "13B": Shape(LARGE_TEXT),  # never written to a disk: gpu.py
    "tiny": Shape(TINY_TEXT, TINY_VISION | {"image_size": 56}),
    "1.5GB": Shape(MID_TEXT, BLIND | {"projection_dim": 32}, repeated=True),
    "4GB": Shape(DEEP_TEXT, BLIND | {"projection_dim": 32}, shard=1_500_000_000, repeated=True),
}


def build(name: str, folder: Path, *, repeated: bool = False) -> Path:
    """Write one of SHAPES as a checkpoint; `repeated` weights are written fast, for models that never run."""
    config, shape = describe(name, folder), SHAPES[name]
    write_shards(folder, disk_shapes(config), replace(shape, repeated=shape.repeated or repeated))
    return folder


def describe(name: str, folder: Path) -> LlavaConfig:
    """Write what one of SHAPES has beside its weights, and return its configuration."""
    shape = SHAPES[name]
    text, vision = TEXT | shape.text, VISION | shape.vision
    folder.mkdir(parents=True)
    processor = make_processor()
    size = vision["image_size"]
    processor.image_processor.size = {"shortest_edge": size}
    processor.image_processor.crop_size = {"height": size, "width": size}
    processor.patch_size = vision["patch_size"]
    processor.save_pretrained(folder)
    tokenizer = processor.tokenizer
    special = {token: getattr(tokenizer, token) for token in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = LlavaConfig(
        text_config=text | special,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    config.architectures, config.dtype = ["LlavaForConditionalGeneration"], "bfloat16"
    config.save_pretrained(folder)
    return config


def disk_shapes(config: LlavaConfig) -> dict[str, torch.Size]:
    """Return the shape of every tensor by its name on disk."""
    with torch.device("meta"):
        parameters = LlavaForConditionalGeneration(config).named_parameters()
        return {old_hub_name(key): value.shape for key, value in parameters}


def write_shards(folder: Path, shapes: dict[str, torch.Size], shape: Shape) -> None:
    """Write the shards and their index."""
    shards: list[list[str]] = [[]]
    size = 0
    for key, dimensions in shapes.items():
        if size and size + 2 * dimensions.numel() > shape.shard:
            shards.append([])
            size = 0
        shards[-1].append(key)
        size += 2 * dimensions.numel()
    placed = {}
    generator = torch.Generator().manual_seed(0)
    block = values("block", torch.Size([2048, 2048]), generator) if shape.repeated else None
    for number, keys in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, offset = {}, 0
        for key in keys:
            placed[key], length = file, 2 * shapes[key].numel()
            header[key] = {"dtype": "BF16", "shape": list(shapes[key]), "data_offsets": [offset, offset + length]}
            offset += length
        raw = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(raw)) + raw)
            for key in keys:
                parts = [values(key, shapes[key], generator)] if block is None else pieces(shapes[key], block)
                for part in parts:
                    out.write(part.reshape(-1).view(torch.uint8).numpy().data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def pieces(shape: torch.Size, block: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor's values, taken from one block."""
    left = shape.numel()
    while left > 0:
        yield block.reshape(-1)[:left]
        left -= block.numel()


def values(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Return random numbers in bfloat16: unit gain through every matrix, norms at one, biases at zero."""
    if len(shape) == 1:
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        return (centre + 0.05 * torch.randn(shape, generator=generator)).bfloat16()
    fan_in = shape[1:].numel()
    return (torch.randn(shape, generator=generator) * fan_in**-0.5).bfloat16()
