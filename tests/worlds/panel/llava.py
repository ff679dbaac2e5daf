"""The panel's LLaVAs: CLIP or SigLIP tower, two-layer projector, and Llama, Qwen2 or Starcoder2."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from ..embedded.family import Family, Prompt, Seen, Spoken, set_control_tokens
from ..embedded.llava import in_a_row, pixels_alone
from ..embedded.transformer import Block, Style, affine, joined, query_key_value, run_blocks
from .members import Member
from .words import template_of, tokenizer_of


def llava_of(member: Member) -> Family:
    """A member as a family of its own."""
    return Family(
        model_type="llava",
        title="LLaVA",
        classes=f"{member.tower}, {member.text}",
        tokenizer=partial(tokenizer_of, member),
        processor=partial(llava_processor, member),
        model=partial(llava_model, member),
        see=llava_see,
        speak=llava_speak,
        image_places=partial(in_a_row, n=member.tokens),
        inputs=pixels_alone,
        prompt=Prompt(start="<s>", opening=member.opening, asking=member.asking, after_image="\n"),
    )


def llava_processor(member: Member, tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """LLaVA's processor for this size of picture."""
    images = CLIPImageProcessorPil(
        size={"shortest_edge": member.side},
        crop_size={"height": member.side, "width": member.side},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=member.patch,
        vision_feature_select_strategy="default" if member.tower == "clip" else "full",
        num_additional_image_tokens=1 if member.tower == "clip" else 0,
        chat_template=template_of(member, "<image>\\n", "</s>"),
    )


def llava_model(member: Member, tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """The model with random weights."""
    text: dict[str, Any] = {
        "model_type": member.text,
        "hidden_size": member.width,
        "intermediate_size": member.ffn,
        "num_hidden_layers": member.layers,
        "num_attention_heads": member.heads,
        "num_key_value_heads": member.heads,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": member.tied,
    }
    if member.text == "starcoder2":
        text |= {"residual_dropout": 0.0, "embedding_dropout": 0.0}
    vision: dict[str, Any] = {
        "model_type": f"{member.tower}_vision_model",
        "hidden_size": member.vision_width,
        "intermediate_size": 3 * member.vision_width,
        "num_hidden_layers": member.vision_layers + 1,
        "num_attention_heads": 4,
        "image_size": member.side,
        "patch_size": member.patch,
    }
    if member.tower == "siglip":
        vision |= {"vision_use_head": False}
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=member.tokens,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default" if member.tower == "clip" else "full",
        tie_word_embeddings=member.tied,
    )
    torch.manual_seed(member.seed)
    model = LlavaForConditionalGeneration(config)
    set_control_tokens(model, tokenizer)
    return model


def llava_see(model: LlavaForConditionalGeneration, pixels: Tensor) -> Seen:
    """The tower up to the last but one layer, without a class token, then the projector."""
    tower = model.model.vision_tower
    clip = hasattr(tower, "pre_layrnorm")
    hidden = tower.embeddings(pixels)
    hidden = tower.pre_layrnorm(hidden) if clip else hidden
    blocks = [
        Block(
            affine(layer.layer_norm1),
            query_key_value(layer.self_attn),
            affine(layer.self_attn.out_proj),
            affine(layer.layer_norm2),
            affine(layer.mlp.fc1),
            affine(layer.mlp.fc2),
        )
        for layer in tower.encoder.layers[:-1]
    ]
    vision = tower.config
    style = Style(vision.num_attention_heads, vision.layer_norm_eps, vision.hidden_act)
    last = run_blocks(hidden, None, None, blocks, style, [])[-1]
    features = last[:, 1:] if clip else last
    return Seen(model.model.multi_modal_projector(features), [], features)


def llava_speak(
    model: LlavaForConditionalGeneration, embeddings: Tensor, mask: Tensor, positions: Tensor, deep: list[Tensor]
) -> Spoken:
    """The text model with positions [1, B, L]."""
    text = model.model.language_model
    gated = hasattr(text.layers[0].mlp, "gate_proj")
    cosine, sine = text.rotary_emb(embeddings, positions[0])
    blocks = [
        Block(
            affine(layer.input_layernorm),
            query_key_value(layer.self_attn),
            affine(layer.self_attn.o_proj),
            affine(layer.post_attention_layernorm),
            joined([layer.mlp.gate_proj, layer.mlp.up_proj]) if gated else affine(layer.mlp.c_fc),
            affine(layer.mlp.down_proj if gated else layer.mlp.c_proj),
        )
        for layer in text.layers
    ]
    config = text.config
    eps = config.rms_norm_eps if gated else config.norm_epsilon
    style = Style(config.num_attention_heads, eps, "swiglu" if gated else "gelu_pytorch_tanh")
    layers = run_blocks(embeddings, mask, (cosine[:, None], sine[:, None]), blocks, style, deep)
    return Spoken(layers, text.norm(layers[-1]))
