"""Tiny random LLaVA checkpoints with a working processor, and broken variants of them.

Built from configs, offline, in well under a second, and kept as bytes for the rest of the test session.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessorPil,
    LlavaNextProcessor,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
IMAGE_SIZE, PATCH = 28, 14
PINPOINTS = [[28, 56], [56, 28], [56, 56]]
"""How a LLaVA-Next may cut an image into tiles."""
CORPUS = (
    "a photo of a red square",
    "a photo of a blue circle on a green table",
    "what is in the image ? what colour is it ?",
    "USER: ASSISTANT: a chat between a curious user and an assistant",
    "the quick brown fox jumps over the lazy dog 0123456789",
)
# The template of the llava-1.5-hf repositories: images first, a system message without a role name.
TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] != 'system' -%}{{ message['role'].upper() + ': ' }}{%- endif -%}
{%- for content in message['content'] | selectattr('type', 'equalto', 'image') -%}
{{ '<image>\n' }}
{%- endfor -%}
{%- for content in message['content'] | selectattr('type', 'equalto', 'text') -%}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{ content['text'] + ' ' }}{%- endgeneration -%}
{%- else -%}
{{ content['text'] + ' ' }}
{%- endif -%}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}
"""
_OLD_HUB = (
    (r"^lm_head", "language_model.lm_head"),
    (r"^model\.language_model\.", "language_model.model."),
    (r"^model\.vision_tower\.", "vision_tower.vision_model."),
    (r"^model\.", ""),
)


def tiny_llava(
    directory: Path,
    layout: str = "save_pretrained",
    shards: int = 1,
    dtype: str = "float32",
    text_layers: int = 4,
    seed: int = 0,
    family: str = "llava",
    wide: bool = False,
) -> Path:
    """Write a tiny LLaVA (or, by `family`, LLaVA-Next) checkpoint; `layout` says how its tensors are named.

    With `wide` every Linear has a multiple of 64 inputs, as the blocks of 4-bit weights are long.

    `save_pretrained`: as transformers saves a fresh model; `old_hub`: as in the -hf repositories; `native`: as
    in memory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in _files(layout, shards, dtype, text_layers, seed, family, wide).items():
        (directory / name).write_bytes(content)
    return directory


@cache
def _files(
    layout: str, shards: int, dtype: str, text_layers: int, seed: int, family: str, wide: bool
) -> dict[str, bytes]:
    processor = make_processor(family)
    model = make_model(processor.tokenizer, text_layers, seed, family, wide).to(getattr(torch, dtype))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model.save_pretrained(folder, save_original_format=layout == "save_pretrained")
        processor.save_pretrained(folder)
        tensors = read_weights(folder)
        if layout == "old_hub":
            tensors = {old_hub_name(name): tensor for name, tensor in tensors.items()}
        write_weights(folder, tensors, shards)
        return {file.name: file.read_bytes() for file in folder.iterdir()}


def make_tokenizer(
    controls: Sequence[str], *, bos: str | None = None, end: str | None = None, **named: object
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained here; `bos` is put before every text, or `end` behind it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(controls), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS * 20, trainer)
    if bos is not None:
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bpe.token_to_id(bos))]
        )
        named["bos_token"] = bos
    if end is not None:
        bpe.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, bpe.token_to_id(end))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **named,
    )


def make_processor(family: str = "llava") -> LlavaProcessor | LlavaNextProcessor:
    """LLaVA's processor with the PIL backend of CLIP's image processor."""
    tokenizer = make_tokenizer(
        ["<unk>", "<s>", "</s>", "<pad>", "<image>"],
        bos="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    square = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    shared = {
        "tokenizer": tokenizer,
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "chat_template": TEMPLATE,
    }
    if family == "llava_next":
        tiles = LlavaNextImageProcessorPil(
            size={"shortest_edge": IMAGE_SIZE}, crop_size=square, image_grid_pinpoints=PINPOINTS
        )
        return LlavaNextProcessor(image_processor=tiles, **shared)
    images = CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIZE}, crop_size=square)
    return LlavaProcessor(image_processor=images, **shared)


def make_model(
    tokenizer: PreTrainedTokenizerFast, text_layers: int, seed: int, family: str = "llava", wide: bool = False
) -> LlavaForConditionalGeneration | LlavaNextForConditionalGeneration:
    """A LLaVA with random weights large enough that its logits depend on the image."""
    text = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128 if wide else 96,
        "num_hidden_layers": text_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 512,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 64 if wide else 32,
        "intermediate_size": 64 if wide else 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH,
        "projection_dim": 32,
    }
    shared = {
        "text_config": text,
        "vision_config": vision,
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
    }
    if family == "llava_next":
        model = LlavaNextForConditionalGeneration(LlavaNextConfig(image_grid_pinpoints=PINPOINTS, **shared))
    else:
        model = LlavaForConditionalGeneration(LlavaConfig(**shared))
    spread_weights(model, seed)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def spread_weights(model: torch.nn.Module, seed: int) -> None:
    """Unit gain through every matrix; norms stay near one; every tensor is unlike any other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.05
            # One for the scales of norms, zero for the rest: some of these are drawn without a seed.
            centre = 0.0 if parameter.dim() > 1 else parameter.mean().round()
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))


def renamed(name: str, rules: Sequence[tuple[str, str]]) -> str:
    """A name after every rule in its order."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def old_hub_name(name: str) -> str:
    """The name in the -hf repositories of a parameter as it is named in memory."""
    return renamed(name, _OLD_HUB)


def raw(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes, as they lie in a shard."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def read_weights(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, read by safetensors itself."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(directory.glob("model*.safetensors")):
        tensors |= load_file(shard)
    return tensors


def write_weights(directory: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> None:
    """Replace the weights of a checkpoint by these, dealt out over so many shards."""
    for old in [*directory.glob("model*.safetensors"), *directory.glob(INDEX)]:
        old.unlink()
    if shards == 1:
        save_file(tensors, directory / SINGLE, metadata={"format": "pt"})
        return
    placed = {}
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name].clone() for name in list(tensors)[number::shards]}
        save_file(part, directory / shard, metadata={"format": "pt"})
        placed |= dict.fromkeys(part, shard)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def bin_only(directory: Path) -> Path:
    """Leave only pickled weights."""
    tensors = read_weights(directory)
    for old in [*directory.glob("model*.safetensors"), *directory.glob(INDEX)]:
        old.unlink()
    torch.save(tensors, directory / "pytorch_model.bin")
    return directory


def quantised(directory: Path, module: str) -> Path:
    """Store one Linear (named as on disk) the way bitsandbytes stores 4-bit weights, and declare it."""
    tensors = read_weights(directory)
    weight = tensors[f"{module}.weight"]
    tensors[f"{module}.weight"] = torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8)
    tensors[f"{module}.weight.absmax"] = torch.zeros(weight.numel() // 64)
    tensors[f"{module}.weight.quant_map"] = torch.zeros(16)
    tensors[f"{module}.weight.quant_state.bitsandbytes__nf4"] = torch.zeros(8, dtype=torch.uint8)
    write_weights(directory, tensors)
    set_config(directory, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    return directory


def with_adapter(directory: Path) -> Path:
    """Put a PEFT adapter's config inside the base."""
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    return directory


def truncated(directory: Path, missing: int = 100) -> Path:
    """Cut the last bytes of the last shard, as an interrupted download does."""
    shard = sorted(directory.glob("model*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-missing])
    return directory


def key_in_two_shards(directory: Path) -> Path:
    """Add the first tensor of the first shard to the second one as well; needs two shards."""
    first, second = sorted(directory.glob("model-*.safetensors"))[:2]
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor + 1}, second, metadata={"format": "pt"})
    return directory


def set_config(directory: Path, **values: object) -> None:
    """Change entries of config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
