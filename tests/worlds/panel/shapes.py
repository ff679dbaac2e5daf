"""How the models of each architecture are made and trained, as a family of embedded models; LLaVA's are in llava.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from transformers import (
    Blip2ForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2VLForConditionalGeneration,
    Qwen2VLProcessor,
)

from ..embedded.blip2 import (
    BLIP2_OPT,
    attend_to_own_patch,
    blip2_model,
    blip2_processor,
    opt_tokenizer,
    patch_features,
)
from ..embedded.family import Family
from ..embedded.llava import in_a_row
from ..embedded.qwen import QWEN2_VL, qwen2_model, qwen_places, qwen_processor, qwen_tokenizer, rope
from .llava import llava_of
from .members import Member, pixels
from .words import template_of, tokenizer_of
from .worlds import Pool

VISION_HEADS = 4
FITTED_SCENES = 64  # for the initial weights of a Q-Former
PLACE = 0.3  # spread of a ViT's initial positions: with the usual ones a query does not find its patch


def family_of(member: Member) -> Family:
    """A member as a family of its own."""
    return SHAPES[member.tower](member)


def qwen2_vl_of(member: Member) -> Family:
    """The embedded Qwen2-VL in the member's sizes, vocabulary and chat."""
    template = template_of(member, "<|vision_start|><|image_pad|><|vision_end|>", "<|im_end|>")
    return replace(
        QWEN2_VL,
        tokenizer=lambda: qwen_tokenizer(written(tokenizer_of(member))),
        processor=partial(qwen_processor, Qwen2VLProcessor, side=member.side, patch=member.patch, template=template),
        model=partial(qwen2_vl_model, member),
        image_places=partial(qwen_places, side=member.side),
        prompt=replace(QWEN2_VL.prompt, opening=member.opening, asking=member.asking),
    )


def blip2_of(member: Member) -> Family:
    """The embedded BLIP-2 in the member's sizes and vocabulary; without a chat template its prompt is fixed."""
    return replace(
        BLIP2_OPT,
        tokenizer=lambda: opt_tokenizer(written(tokenizer_of(member))),
        processor=partial(blip2_processor, side=member.side, queries=member.tokens),
        model=partial(blip2_opt_model, member),
        image_places=partial(in_a_row, n=member.tokens),
    )


def written(tokenizer: PreTrainedTokenizerFast) -> str:
    """The tokenizer as JSON."""
    return str(tokenizer.backend_tokenizer.to_str())


def qwen2_vl_model(member: Member, tokenizer: PreTrainedTokenizerFast) -> Qwen2VLForConditionalGeneration:
    """The model with random weights."""
    torch.manual_seed(member.seed)
    text = {
        "hidden_size": member.width,
        "intermediate_size": member.ffn,
        "num_hidden_layers": member.layers,
        "num_attention_heads": member.heads,
        "num_key_value_heads": member.heads,
        "tie_word_embeddings": member.tied,
        "rope_parameters": rope([2, 3, member.width // member.heads // 2 - 5]),
    }
    vision = {
        "embed_dim": member.vision_width,
        "hidden_size": member.width,
        "depth": member.vision_layers,
        "num_heads": VISION_HEADS,
        "patch_size": member.patch,
    }
    return qwen2_model(tokenizer, text, vision)


def blip2_opt_model(member: Member, tokenizer: PreTrainedTokenizerFast) -> Blip2ForConditionalGeneration:
    """The model with random weights, but query i attends to patch i."""
    torch.manual_seed(member.seed)
    text = {
        "hidden_size": member.width,
        "word_embed_proj_dim": member.width,
        "ffn_dim": member.ffn,
        "num_hidden_layers": member.layers,
        "num_attention_heads": member.heads,
        "tie_word_embeddings": member.tied,
    }
    vision = {
        "hidden_size": member.vision_width,
        "intermediate_size": 3 * member.vision_width,
        "num_hidden_layers": member.vision_layers,
        "num_attention_heads": VISION_HEADS,
        "image_size": member.side,
        "patch_size": member.patch,
    }
    model = blip2_model(tokenizer, text, vision, member.tokens)
    model.vision_model.embeddings.position_embedding.data.normal_(std=PLACE)
    scenes = [member.of_world.scene(Pool.SEEING, index) for index in range(FITTED_SCENES)]
    with torch.no_grad():
        attend_to_own_patch(model, patch_features(model, pixels(member, scenes, [0] * FITTED_SCENES)))
    return model


SHAPES: dict[str, Callable[[Member], Family]] = {
    "clip": llava_of,
    "siglip": llava_of,
    "qwen2_vl": qwen2_vl_of,
    "qformer": blip2_of,
}
"""By tower."""
