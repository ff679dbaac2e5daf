"""The processors of tiny checkpoints: tokenizers trained here, Pillow's image processors, short chat templates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import transformers
from transformers import PreTrainedTokenizerFast
from transformers.models.smolvlm import processing_smolvlm

from more_cli.model.processors import without_video
from support.tiny import PINPOINTS, make_tokenizer

Parts = dict[str, Any]
BEGUN = "{{ bos_token }}"
"""Before a template's first message, as many have it: the tokenizer must not put another one."""


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


def onevision_processor() -> Any:
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


def blip2_processor() -> Any:
    images = transformers.BlipImageProcessorPil(size=_square(28))
    return transformers.Blip2Processor(images, _opt_tokenizer(), num_query_tokens=4)


def blip2_t5_processor() -> Any:
    images = transformers.BlipImageProcessorPil(size=_square(28))
    controls = ["<pad>", "</s>", "<unk>", "<image>"]
    tokenizer = make_tokenizer(controls, end="</s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    return transformers.Blip2Processor(images, tokenizer, num_query_tokens=4)


def instructblip_processor() -> Any:
    images = transformers.BlipImageProcessorPil(size=_square(28))
    bert = make_tokenizer(["[PAD]", "[UNK]"], pad_token="[PAD]", unk_token="[UNK]")
    return transformers.InstructBlipProcessor(images, _llama_tokenizer("<image>"), bert, num_query_tokens=4)


def internvl_processor() -> Any:
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


def paligemma_processor() -> Any:
    images = transformers.SiglipImageProcessorPil(size=_square(28))
    images.image_seq_length = 4
    return transformers.PaliGemmaProcessor(images, _llama_tokenizer("<image>", image_token="<image>"))


def gemma3_processor() -> Any:
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = _llama_tokenizer("<start_of_turn>", "<end_of_turn>", *named.values(), **named)
    turn = "<start_of_turn>{}\n".format
    return transformers.Gemma3Processor(
        transformers.Gemma3ImageProcessorPil(size=_square(56)),
        tokenizer,
        image_seq_length=4,
        chat_template=_template(named["boi_token"], turn("user"), turn("model"), "<end_of_turn>\n", BEGUN),
    )


def idefics3_processor(kind: type[Any], images: type[Any]) -> Any:
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


def mllama_processor() -> Any:
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
