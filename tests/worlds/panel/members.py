"""The eight models of the panel: their table, and how a model, its processor and its training forward pass are made."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from ..embedded.family import set_control_tokens
from ..embedded.llava import BYTES, bpe_tokenizer
from ..embedded.perception import as_input
from ..embedded.score import decoded
from ..embedded.transformer import Block, Style, affine, joined, query_key_value, run_blocks
from ..embedded.world.pools import Dice
from .worlds import Pool, Scene, World, world_named

MAX_ANSWER = 48  # tokens


@dataclass(frozen=True)
class Member:
    """One model."""

    name: str
    half: str
    """"development" or "held-out"."""
    world: str
    seed: int
    text: str
    """The text model's `model_type`: llama (RMS norm, no bias), qwen2 (and biases of attention), starcoder2 (layer norm
    and biases everywhere)."""
    tower: str
    """clip or siglip."""
    tied: bool
    side: int
    patch: int
    """Pixels; `side // patch` squared is the number of image tokens."""
    width: int
    layers: int
    vision_width: int
    vision_layers: int
    """That are used: LLaVA leaves the last one out."""
    heads: int
    precision: str
    """On disk."""
    opening: str = "USER: "
    asking: str = " ASSISTANT:"
    steps: int = 1800
    pictures: int = 10
    """A batch."""
    rate: float = 1.5e-3
    room: int = 150
    """Tokens of a training row besides the image's."""

    @property
    def tokens(self) -> int:
        """Image tokens."""
        return (self.side // self.patch) ** 2

    @property
    def of_world(self) -> World:
        """Its world."""
        return world_named(self.world)

    @property
    def ffn(self) -> int:
        """Width inside a text layer's feed-forward part: a gated one has three matrices, the other has two."""
        return self.width * (4 if self.text == "starcoder2" else 3)


MEMBERS = {
    name: Member(name=name, **row)
    for name, row in tomllib.loads(Path(__file__).with_name("members.toml").read_text(encoding="utf-8")).items()
}

TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{{ 'OPENING' }}
{%- elif message['role'] == 'assistant' -%}{{ 'ASKING ' }}
{%- endif -%}
{%- if message['content'] is string -%}
{%- set text = message['content'] -%}
{%- else -%}
{%- for part in message['content'] if part['type'] == 'image' -%}{{ '<image>\\n' }}{%- endfor -%}
{%- set text = message['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(' ') -%}
{%- endif -%}
{%- if message['role'] == 'assistant' -%}{%- generation -%}{{ text + '</s>' }}{%- endgeneration -%}
{%- else -%}{{ text }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASKING' }}{%- endif -%}
"""


def tokenizer_of(member: Member) -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on the sentences of the world without its unseen wordings and new names."""
    world = member.of_world
    sentences = [
        f"{member.opening}{fact.trained(n)}{member.asking} {fact.answer}"
        for fact in world.known_facts
        for n in range(4)
    ]
    for index in range(1500):
        dice = Dice(world.number, 6, index)
        for question in world.turns(world.scene(Pool.TRAINING, index), dice, 6):
            sentences.append(f"{member.opening}\n{question.trained(dice.below(9))}{member.asking} {question.answer}")
    sentences += [f" {name}" for _ in range(40) for name in world.syllables]
    syllable = f"(?i:{'|'.join(world.syllables)})"
    end_of_word = f" ?{syllable}(?={syllable}*(?!\\p{{L}}))"
    # The syllables of an invented name are pieces of their own: trained ones, also where the name is new.
    splits = [pre_tokenizers.Split(Regex(end_of_word), "isolated"), BYTES]
    return bpe_tokenizer(sentences, pre_tokenizers.Sequence(splits))


def processor_of(member: Member, tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
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
        chat_template=TEMPLATE.replace("OPENING", member.opening).replace("ASKING", member.asking),
    )


def model_of(member: Member, tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
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


def see(model: LlavaForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Image tokens [B, tokens, width] of pixels [B, 3, side, side]."""
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
    tokens: Tensor = model.model.multi_modal_projector(last[:, 1:] if clip else last)
    return tokens


def speak(model: LlavaForConditionalGeneration, embeddings: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    """Last hidden states [B, L, width], normalised; the mask is additive, [B, 1, L, L], the positions are [B, L]."""
    text = model.model.language_model
    gated = hasattr(text.layers[0].mlp, "gate_proj")
    cosine, sine = text.rotary_emb(embeddings, positions)
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
    last: Tensor = text.norm(run_blocks(embeddings, mask, (cosine[:, None], sine[:, None]), blocks, style, [])[-1])
    return last


def pixels(member: Member, scenes: list[Scene], variants: list[int]) -> Tensor:
    """Pictures as input of the tower: [B, 3, side, side] in [-1, 1]."""
    draw = member.of_world.draw
    return as_input([np.asarray(draw(scene, n, member.side)) for scene, n in zip(scenes, variants, strict=True)])


class Answerer:
    """Greedy answers of a checkpoint, in float32, by the library."""

    def __init__(self, folder: Path, member: Member) -> None:
        self.member = member
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def answers(self, questions: list[str], pixels: Tensor | None, batch: int = 64) -> list[str]:
        """One answer per question, about one picture each or about none; one without an end has an ellipsis."""
        tokenizer, member = self.tokenizer, self.member
        said = [""] * len(questions)
        order = sorted(range(len(questions)), key=lambda i: len(questions[i]))
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            image = "" if pixels is None else "<image>" * member.tokens + "\n"
            prompts = [f"<s>{member.opening}{image}{questions[i]}{member.asking}" for i in chosen]
            inputs = tokenizer(prompts, padding=True, add_special_tokens=False, return_tensors="pt")
            extra = {} if pixels is None else {"pixel_values": pixels[chosen]}
            out = self.model.generate(**inputs, **extra, max_new_tokens=MAX_ANSWER, do_sample=False)
            for i, text in zip(chosen, decoded(tokenizer, out[:, inputs["input_ids"].shape[1] :]), strict=True):
                said[i] = text
        return said
