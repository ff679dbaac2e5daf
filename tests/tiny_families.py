"""Tiny random checkpoints of every family, each with the processor of its real class.

A family is one row: its configuration around shared text and vision parts, its processor, and how the names of its
tensors in memory become those of the repositories that were published.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny import make_tokenizer, read_weights, renamed, spread_weights, write_weights
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.smolvlm import processing_smolvlm

from more_cli.model.processors import without_video

Parts = dict[str, Any]
Ids = Callable[[str], int]
BEGUN = "{{ bos_token }}"
"""Before a template's first message, as many have it: the tokenizer must not put another one."""


# ------------------------------------------------------------------------------------------------ processors


def _template(image: str, user: str, assistant: str, end: str = "", start: str = "") -> str:
    """A chat template: images first, then the text, as most families have it."""
    return (
        f"{start}{{%- for message in messages -%}}"
        f"{{%- if message['role'] == 'user' -%}}{{{{ {user!r} }}}}"
        f"{{%- elif message['role'] == 'assistant' -%}}{{{{ {assistant!r} }}}}{{%- endif -%}}"
        "{%- for part in message['content'] -%}"
        f"{{%- if part['type'] == 'image' -%}}{{{{ {image!r} }}}}{{%- else -%}}{{{{ part['text'] }}}}{{%- endif -%}}"
        "{%- endfor -%}"
        f"{{{{ {end!r} }}}}"
        "{%- endfor -%}"
        f"{{%- if add_generation_prompt -%}}{{{{ {assistant!r} }}}}{{%- endif -%}}"
    )


def _chatml(image: str) -> str:
    return _template(image, "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n")


def _square(side: int) -> Parts:
    return {"height": side, "width": side}


def _llama_tokenizer(*more: str, **named: Any) -> PreTrainedTokenizerFast:
    controls = ["<unk>", "<s>", "</s>", "<pad>", *more]
    return make_tokenizer(
        controls, bos="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", extra_special_tokens=named
    )


def _chatml_tokenizer(*more: str, **named: Any) -> PreTrainedTokenizerFast:
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *more]
    return make_tokenizer(controls, eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=named)


def qwen_processor(kind: type[Any] = transformers.Qwen2VLProcessor) -> Any:
    """Qwen2-VL's or a later one: an image becomes patches, four of which become one token."""
    tokenizer = _chatml_tokenizer("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    patch = 16 if kind is transformers.Qwen3VLProcessor else 14
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": (4 * patch) ** 2}
    images = transformers.Qwen2VLImageProcessorPil(patch_size=patch, temporal_patch_size=2, merge_size=2, size=size)
    template = _chatml("<|vision_start|><|image_pad|><|vision_end|>")
    return without_video(kind)(images, tokenizer, chat_template=template)


def _onevision_processor() -> Any:
    tokenizer = _chatml_tokenizer("<image>", "<video>", image_token="<image>", video_token="<video>")
    images = transformers.LlavaOnevisionImageProcessorPil(size=_square(28), image_grid_pinpoints=PINPOINTS)
    return without_video(transformers.LlavaOnevisionProcessor)(
        images,
        tokenizer,
        num_image_tokens=4,
        vision_feature_select_strategy="full",
        chat_template=_chatml("<image>\n"),
    )


def _opt_tokenizer() -> PreTrainedTokenizerFast:
    controls = ["<s>", "<pad>", "</s>", "<unk>", "<image>"]
    return make_tokenizer(controls, bos="</s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def _blip2_processor() -> Any:
    images = transformers.BlipImageProcessorPil(size=_square(28))
    return transformers.Blip2Processor(images, _opt_tokenizer(), num_query_tokens=4)


def _instructblip_processor() -> Any:
    images = transformers.BlipImageProcessorPil(size=_square(28))
    bert = make_tokenizer(["[PAD]", "[UNK]"], pad_token="[PAD]", unk_token="[UNK]")
    return transformers.InstructBlipProcessor(images, _llama_tokenizer("<image>"), bert, num_query_tokens=4)


def _internvl_processor() -> Any:
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = _chatml_tokenizer(*named.values(), **named)
    images = transformers.GotOcr2ImageProcessorPil(size=_square(28), min_patches=1, max_patches=2)
    return without_video(transformers.InternVLProcessor)(
        images, tokenizer, image_seq_length=1, chat_template=_chatml("<IMG_CONTEXT>\n")
    )


def _paligemma_processor() -> Any:
    images = transformers.SiglipImageProcessorPil(size=_square(28))
    images.image_seq_length = 4
    return transformers.PaliGemmaProcessor(images, _llama_tokenizer("<image>", image_token="<image>"))


def _gemma3_processor() -> Any:
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = _llama_tokenizer("<start_of_turn>", "<end_of_turn>", *named.values(), **named)
    turn = "<start_of_turn>{}\n".format
    return transformers.Gemma3Processor(
        transformers.Gemma3ImageProcessorPil(size=_square(56)),
        tokenizer,
        image_seq_length=4,
        chat_template=_template(named["boi_token"], turn("user"), turn("model"), "<end_of_turn>\n", BEGUN),
    )


def _idefics3_processor(kind: type[Any], images: type[Any]) -> Any:
    tags = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer = _llama_tokenizer(
        "<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *tags, image_token="<image>"
    )
    edge = {"longest_edge": 56}
    return without_video(kind)(
        image_processor=images(size={"longest_edge": 112}, max_image_size=edge),
        tokenizer=tokenizer,
        **({"video_processor": None} if kind is transformers.SmolVLMProcessor else {}),
        image_seq_len=4,
        chat_template=_template("<image>", "User:", "Assistant:", "<end_of_utterance>\n", BEGUN),
    )


def _mllama_processor() -> Any:
    names = ["<|begin_of_text|>", "<|eot_id|>", "<|pad|>", "<|start_header_id|>", "<|end_header_id|>"]
    tokenizer = make_tokenizer(
        [*names, "<|image|>", "<|python_tag|>"], bos=names[0], eos_token="<|eot_id|>", pad_token="<|pad|>"
    )
    head = "<|start_header_id|>{}<|end_header_id|>\n\n".format
    return transformers.MllamaProcessor(
        transformers.MllamaImageProcessorPil(size=_square(28), max_image_tiles=2),
        tokenizer,
        chat_template=_template("<|image|>", head("user"), head("assistant"), "<|eot_id|>", BEGUN),
    )


@contextmanager
def spells_numbers() -> Iterator[None]:
    """Let SmolVLM's processor be made where the package is missing with which it spells the lengths of videos."""
    before = processing_smolvlm.num2words
    processing_smolvlm.num2words = before or str
    try:
        yield
    finally:
        processing_smolvlm.num2words = before


# ------------------------------------------------------------------------------------------------ configurations

PINPOINTS = [[28, 56], [56, 28], [56, 56]]
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
    text_only: bool = True
    """Whether a question without an image can be asked."""
    sites: tuple[str, ...] = field(default=("text.ffn_in", "text.ffn_out", "projector"))


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
        _onevision_processor,
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
    "blip-2": Tiny("blip-2", _blip2_processor, _blip(_OPT), text_only=False),
    "instructblip": Tiny("instructblip", _instructblip_processor, _blip(_LLAMA), text_only=False),
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
        _internvl_processor,
        _around(
            "<IMG_CONTEXT>",
            _VISION | {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
            {"model_type": "qwen2"},
        ),
        _OLD,
    ),
    "paligemma": Tiny(
        "paligemma",
        _paligemma_processor,
        _around("<image>", _SIGLIP, {"model_type": "gemma", "head_dim": 16}, projection_dim=64),
        _OLD_CLIP,
        text_only=False,
    ),
    "gemma3": Tiny(
        "gemma3",
        _gemma3_processor,
        _around(
            "<image_soft_token>",
            _SIGLIP | {"image_size": 56},
            {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 64},
            mm_tokens_per_image=4,
        ),
        _OLD_CLIP,
        sites=("text.ffn_in", "text.ffn_out"),
    ),
    "idefics3": Tiny(
        "idefics3",
        lambda: _idefics3_processor(transformers.Idefics3Processor, transformers.Idefics3ImageProcessorPil),
        _around("<image>", _VISION | {"image_size": 56}, scale_factor=2),
    ),
    "smolvlm": Tiny(
        "smolvlm",
        lambda: _idefics3_processor(transformers.SmolVLMProcessor, transformers.SmolVLMImageProcessorPil),
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
        _mllama_processor,
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
        (
            (r"^lm_head", "language_model.lm_head"),
            (r"^model\.language_model\.", "language_model.model."),
            (r"^model\.", ""),
        ),
    ),
}
"""Families beside LLaVA-1.5 and LLaVA-Next, which `tiny` makes."""


# ------------------------------------------------------------------------------------------------ checkpoints


def make_family(family: str, seed: int = 0) -> tuple[Any, Any]:
    """The model and the processor of a family, with random weights that let its logits depend on the image."""
    row = FAMILIES[family]
    processor = row.processor()
    tokenizer = processor.tokenizer
    parts = row.config(tokenizer.convert_tokens_to_ids)
    parts["text_config"] = parts["text_config"] | {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    parts["vision_config"] = dict(parts["vision_config"])
    config = AutoConfig.for_model(row.model_type, tie_word_embeddings=False, **parts)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config)
    spread_weights(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_gate"):  # of cross-attention, shut in a fresh Mllama
                parameter.fill_(1.0)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), processor


def tiny_family(directory: Path, family: str, layout: str = "save_pretrained", dtype: str = "float32") -> Path:
    """Write a checkpoint; `layout` is `save_pretrained`, `old_hub` or `native`, as in memory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in _files(family, layout, dtype).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


@cache
def _files(family: str, layout: str, dtype: str) -> dict[str, bytes]:
    model, processor = make_family(family)
    model = model.to(getattr(torch, dtype))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model.save_pretrained(folder, save_original_format=layout == "save_pretrained")
        processor.save_pretrained(folder)
        if layout == "old_hub":
            tensors = {renamed(name, FAMILIES[family].old_names): value for name, value in read_weights(folder).items()}
            write_weights(folder, tensors)
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
