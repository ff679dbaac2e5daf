"""Tiny random checkpoints of every family, each with the processor of its real class.

A family is one row: its configuration around shared text and vision parts, its processor, and how the names of its
tensors in memory become those of the repositories that were published.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForImageTextToText

from support.tiny import PINPOINTS, make_processor, read_weights, renamed, spread_weights, write_weights
from support.tiny_processors import (
    Parts,
    blip2_processor,
    blip2_t5_processor,
    gemma3_processor,
    idefics3_processor,
    instructblip_processor,
    internvl_processor,
    mllama_processor,
    onevision_processor,
    paligemma_processor,
    qwen_processor,
    spells_numbers,
)

Ids = Callable[[str], int]


# ------------------------------------------------------------------------------------------------ configurations

_TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
_LLAMA = _TEXT | {"model_type": "llama", "num_key_value_heads": 2, "max_position_embeddings": 512}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
_VISION |= {"image_size": 28, "patch_size": 14}
_SIGLIP = _VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}
_QFORMER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_QFORMER |= {"encoder_hidden_size": 32, "cross_attention_frequency": 2}
_MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_HALF_MROPE = _MROPE | {"mrope_section": [1, 1, 0], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
_LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
_LINEAR |= {"linear_value_head_dim": 16, "layer_types": ["linear_attention", "linear_attention", "full_attention"]}


def _around(token: str, vision: Parts, text: Parts | None = None, **more: Any) -> Callable[[Ids], Parts]:
    return lambda ids: {
        "text_config": _LLAMA | (text or {}),
        "vision_config": vision,
        "image_token_id": ids(token),
        **more,
    }


def _qwen(text: Parts, vision: Parts) -> Callable[[Ids], Parts]:
    merged = {"depth": 3, "num_heads": 4, "spatial_merge_size": 2, "temporal_patch_size": 2} | vision
    return lambda ids: {
        "text_config": _LLAMA | {"head_dim": 16, "rope_parameters": _MROPE} | text,
        "vision_config": merged,
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
    }


def _blip(text: Parts) -> Callable[[Ids], Parts]:
    return lambda ids: {
        "vision_config": _VISION | {"initializer_range": 0.02},
        "qformer_config": _QFORMER | {"vocab_size": 500},
        "text_config": text,
        "num_query_tokens": 4,
        "image_token_index": ids("<image>"),
    }


_OPT = {"model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 96, "num_hidden_layers": 3}
_OPT |= {"num_attention_heads": 4, "max_position_embeddings": 512}
_T5 = {"model_type": "t5", "d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 3, "num_heads": 4}
_T5 |= {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}
_QWEN3 = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "patch_size": 16}
_QWEN3 |= {"num_position_embeddings": 64}


@dataclass(frozen=True)
class Tiny:
    """One family."""

    model_type: str
    processor: Callable[[], Any] | None
    """None where transformers has none that works without torchvision."""
    config: Callable[[Ids], Parts]
    """From the ids of control tokens; sizes of vocabularies and ids of pad and end are filled in."""
    old_names: tuple[tuple[str, str], ...] = ()
    """Pattern and replacement, in order: a name in memory becomes that of the published repositories."""


_OLD = (
    (r"^lm_head", "language_model.lm_head"),
    (r"^model\.language_model\.", "language_model.model."),
    (r"^model\.", ""),
)
_OLD_CLIP = ((r"^model\.vision_tower\.", "vision_tower.vision_model."), *_OLD)
_OLD_QWEN = ((r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual."))

FAMILIES: dict[str, Tiny] = {
    "llava_onevision": Tiny(
        "llava_onevision",
        onevision_processor,
        _around(
            "<image>",
            _SIGLIP,
            {"model_type": "qwen2"},
            image_grid_pinpoints=PINPOINTS,
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
        ),
        _OLD_CLIP,
    ),
    "blip-2": Tiny("blip-2", blip2_processor, _blip(_OPT)),
    "blip-2 t5": Tiny("blip-2", blip2_t5_processor, _blip(_T5)),
    "instructblip": Tiny("instructblip", instructblip_processor, _blip(_LLAMA)),
    "qwen2_vl": Tiny(
        "qwen2_vl",
        qwen_processor,
        _qwen({"model_type": "qwen2_vl_text"}, {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "patch_size": 14}),
        _OLD_QWEN,
    ),
    "qwen2_5_vl": Tiny(
        "qwen2_5_vl",
        lambda: qwen_processor(transformers.Qwen2_5_VLProcessor),
        _qwen(
            {"model_type": "qwen2_5_vl_text"},
            _QWEN3 | {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
        ),
        _OLD_QWEN,
    ),
    "qwen3_vl": Tiny(
        "qwen3_vl",
        lambda: qwen_processor(transformers.Qwen3VLProcessor),
        _qwen({"model_type": "qwen3_vl_text"}, _QWEN3 | {"deepstack_visual_indexes": [0, 1]}),
    ),
    "qwen3_5": Tiny(
        "qwen3_5",
        lambda: qwen_processor(transformers.Qwen3VLProcessor),
        _qwen({"model_type": "qwen3_5_text", "rope_parameters": _HALF_MROPE, **_LINEAR}, _QWEN3),
    ),
    "internvl": Tiny(
        "internvl",
        internvl_processor,
        _around(
            "<IMG_CONTEXT>",
            _VISION | {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
            {"model_type": "qwen2"},
        ),
        _OLD,
    ),
    "paligemma": Tiny(
        "paligemma",
        paligemma_processor,
        _around("<image>", _SIGLIP, {"model_type": "gemma", "head_dim": 16}, projection_dim=64),
        _OLD_CLIP,
    ),
    "gemma3": Tiny(
        "gemma3",
        gemma3_processor,
        _around(
            "<image_soft_token>",
            _SIGLIP | {"image_size": 56},
            {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 64},
            mm_tokens_per_image=4,
        ),
        _OLD_CLIP,
    ),
    "idefics3": Tiny(
        "idefics3",
        lambda: idefics3_processor(transformers.Idefics3Processor, transformers.Idefics3ImageProcessorPil),
        _around("<image>", _VISION | {"image_size": 56}, scale_factor=2),
    ),
    "smolvlm": Tiny(
        "smolvlm",
        lambda: idefics3_processor(transformers.SmolVLMProcessor, transformers.SmolVLMImageProcessorPil),
        _around("<image>", _VISION | {"image_size": 56, "model_type": "smolvlm_vision"}, scale_factor=2),
    ),
    "mistral3": Tiny(
        "mistral3",
        None,
        _around(
            "[IMG]",
            _VISION | {"model_type": "pixtral", "image_size": 56, "head_dim": 8},
            {"model_type": "mistral", "head_dim": 16},
            spatial_merge_size=2,
        ),
        _OLD,
    ),
    "mllama": Tiny(
        "mllama",
        mllama_processor,
        lambda ids: {
            "text_config": _LLAMA
            | {
                "model_type": "mllama_text_model",
                "cross_attention_layers": [1],
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "vision_config": {
                **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_global_layers": 2},
                **{"attention_heads": 4, "image_size": 28, "patch_size": 14, "vision_output_dim": 96},
                **{"intermediate_layers_indices": [0, 1], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]},
                **{"max_num_tiles": 2},
            },
            "image_token_index": ids("<|image|>"),
        },
        _OLD,
    ),
}
"""Families beside LLaVA-1.5 and LLaVA-Next, which `tiny` makes."""


# ------------------------------------------------------------------------------------------------ checkpoints


WIDE: dict[str, tuple[Parts, Parts]] = {"qwen2_vl": ({"intermediate_size": 128}, {"embed_dim": 64})}
"""What makes every Linear's inputs a multiple of 64: entries of the text's configuration and of the vision's."""


def make_family(family: str, *, tied: bool = False, wide: bool = False) -> tuple[Any, Any]:
    """The model of a family, with random weights that let its logits depend on the image, and its processor.

    With `tied`, words have one embedding for both ends, as most small models of a family do. With `wide` every Linear
    has a multiple of 64 inputs.
    """
    row = FAMILIES[family]
    with spells_numbers():
        processor = row.processor() if row.processor else None
    tokenizer = (processor or make_processor()).tokenizer
    parts = row.config(tokenizer.convert_tokens_to_ids if processor else lambda token: tokenizer.image_token_id)
    parts["text_config"] = parts["text_config"] | {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": tied,
    }
    parts["vision_config"] = dict(parts["vision_config"])
    if wide:
        parts |= {
            name: parts[name] | more for name, more in zip(("text_config", "vision_config"), WIDE[family], strict=True)
        }
    config = AutoConfig.for_model(row.model_type, tie_word_embeddings=tied, **parts)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    spread_weights(model, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_gate"):  # of cross-attention, shut in a fresh Mllama
                parameter.fill_(1.0)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), processor


def tiny_family(
    directory: Path,
    family: str,
    layout: str = "save_pretrained",
    dtype: str = "float32",
    shards: int = 1,
    tied: bool = False,
    wide: bool = False,
) -> Path:
    """Write a checkpoint; `layout` is `save_pretrained`, `old_hub` or `native`, as in memory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in _files(family, layout, dtype, shards, tied, wide).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


@cache
def _files(family: str, layout: str, dtype: str, shards: int, tied: bool, wide: bool) -> dict[str, bytes]:
    model, processor = make_family(family, tied=tied, wide=wide)
    model = model.to(getattr(torch, dtype))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model.save_pretrained(folder, save_original_format=layout == "save_pretrained")
        if processor:
            processor.save_pretrained(folder)
        tensors = read_weights(folder)
        if layout == "old_hub":
            tensors = {renamed(name, FAMILIES[family].old_names): value for name, value in tensors.items()}
        write_weights(folder, tensors, shards)
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
