"""Tiny processors of the families beside LLaVA, each as its real class makes it."""

from __future__ import annotations

from typing import Any

from tiny import make_tokenizer
from transformers import Qwen2VLImageProcessorPil, Qwen2VLProcessor, Qwen3VLProcessor

from more_cli.model.processors import without_video

CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part['type'] == 'text' -%}{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def qwen_processor(kind: type[Any] = Qwen2VLProcessor) -> Any:
    """Qwen2-VL's or Qwen3-VL's: an image becomes patches, four of which become one token."""
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
    tokenizer = make_tokenizer(
        [*controls, "<|image_pad|>", "<|video_pad|>"], eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    patch = 16 if kind is Qwen3VLProcessor else 14
    size = {"shortest_edge": (2 * patch) ** 2, "longest_edge": (4 * patch) ** 2}
    images = Qwen2VLImageProcessorPil(patch_size=patch, temporal_patch_size=2, merge_size=2, size=size)
    return without_video(kind)(images, tokenizer, chat_template=CHATML)
