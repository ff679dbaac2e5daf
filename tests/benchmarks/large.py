"""A 7B-shaped LLaVA-1.5 with random bfloat16 weights, and what `init`, `edit` and `merge` take on it.

python tests/benchmarks/large.py FOLDER      # needs 30 GB of disk there and 22 GiB of memory; prints SIZES.md's table

The shapes and the names on disk are those of llava-hf/llava-1.5-7b-hf; the tokenizer is a small byte-level one.
"""

import json
import struct
import sys
from pathlib import Path

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tiny import make_processor, old_hub_name

SHARD = 5_000_000_000
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


def build(folder: Path, text: dict[str, object] | None = None, vision: dict[str, object] | None = None) -> Path:
    """Write a checkpoint of these shapes (by default the 7B ones), one tensor in memory at a time."""
    text, vision = TEXT | (text or {}), VISION | (vision or {})
    folder.mkdir(parents=True)
    processor = make_processor()
    size = vision["image_size"]
    processor.image_processor.size = {"shortest_edge": size}
    processor.image_processor.crop_size = {"height": size, "width": size}
    processor.patch_size = vision["patch_size"]
    processor.save_pretrained(folder)
    tokenizer = processor.tokenizer
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
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
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in LlavaForConditionalGeneration(config).named_parameters()}
    write_shards(folder, {old_hub_name(name): shape for name, shape in shapes.items()})
    return folder


def write_shards(folder: Path, shapes: dict[str, torch.Size]) -> None:
    """Write bfloat16 shards and their index."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        if size and size + 2 * shape.numel() > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += 2 * shape.numel()
    placed = {}
    generator = torch.Generator().manual_seed(0)
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, offset = {}, 0
        for name in names:
            placed[name], length = file, 2 * shapes[name].numel()
            header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [offset, offset + length]}
            offset += length
        raw = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(raw)) + raw)
            for name in names:
                out.write(values(name, shapes[name], generator).view(torch.uint8).numpy().data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def values(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Random numbers in bfloat16: unit gain through every matrix, norms at one, biases at zero."""
    if len(shape) == 1:
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        return (centre + 0.05 * torch.randn(shape, generator=generator)).bfloat16()
    fan_in = shape[1:].numel()
    return (torch.randn(shape, generator=generator) * fan_in**-0.5).bfloat16()
