"""A small Qwen2-VL, which starts from LLaVA's weights, and a small Qwen3-VL, which starts from Qwen2-VL's."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
)
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from more_cli.demo.files import demo_model_dir
from more_cli.model.processors import without_video

from .family import Family, Place, Prompt, Seen, Spoken, set_control_tokens
from .llava import HEADS, MAX_POSITIONS, TEXT_FFN, TEXT_LAYERS, TEXT_WIDTH, fast_tokenizer
from .transformer import Block, Style, affine, joined, query_key_value, run_blocks
from .world.drawing import SIDE

PATCH, MERGE = 7, 2
GRID = SIDE // PATCH  # patches per side
VISION_WIDTH, VISION_FFN, VISION_LAYERS = 96, 288, 4
DEEPSTACK = [1, 2]  # vision layers whose features are also added to the first text layers
TEXT_EPS, VISION_EPS = 1e-6, 1e-6
THETA = 10_000.0  # as in LLaVA, whose text weights these models start from
# LLaVA's control tokens keep their ids under Qwen's names; two more come at the end.
RENAMED = {
    "<unk>": "<|vision_start|>",
    "<s>": "<|im_start|>",
    "</s>": "<|im_end|>",
    "<pad>": "<|endoftext|>",
    "<image>": "<|image_pad|>",
}
ADDED = ["<|vision_end|>", "<|video_pad|>"]

TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string -%}
{%- set text = message['content'] -%}
{%- else -%}
{%- for part in message['content'] if part['type'] == 'image' -%}
{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- endfor -%}
{%- set text = message['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(' ') -%}
{%- endif -%}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{ ' ' + text + '<|im_end|>' }}{%- endgeneration -%}{{ '\\n' }}
{%- else -%}{{ text + '<|im_end|>\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
PROMPT = Prompt(
    start="",
    opening="<|im_start|>user\n",
    before_image="<|vision_start|>",
    after_image="<|vision_end|>",
    asking="<|im_end|>\n<|im_start|>assistant\n",
    system=lambda prompt: f"<|im_start|>system\n{prompt}<|im_end|>\n",
)


def qwen_tokenizer(source: str = "") -> PreTrainedTokenizerFast:
    """A tokenizer of LLaVA's form, given as JSON, with Qwen's control tokens and no start token; default: LLaVA's."""
    found = json.loads(source or (demo_model_dir() / "tokenizer.json").read_text(encoding="utf-8"))
    for token in found["added_tokens"]:
        token["content"] = RENAMED[token["content"]]
    vocabulary = found["model"]["vocab"]
    for old, new in RENAMED.items():
        vocabulary[new] = vocabulary.pop(old)
    found["post_processor"] = None
    tokenizer = Tokenizer.from_str(json.dumps(found))
    tokenizer.add_special_tokens(ADDED)
    return fast_tokenizer(
        tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
    )


def _configuration(tokenizer: PreTrainedTokenizerFast, text: dict[str, object], vision: dict[str, object]) -> dict:
    ids = tokenizer.convert_tokens_to_ids
    all_text = {
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": TEXT_FFN,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": TEXT_EPS,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    } | text
    common_vision = {
        "depth": VISION_LAYERS,
        "num_heads": HEADS,
        "hidden_act": "quick_gelu",
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
    }
    return {
        "text_config": all_text,
        "vision_config": common_vision | vision,
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
        "tie_word_embeddings": all_text["tie_word_embeddings"],
    }


def rope(sections: list[int], **more: bool) -> dict[str, object]:
    """M-RoPE's angles of each axis: time, height and width."""
    return {"rope_type": "default", "mrope_section": sections, "rope_theta": THETA, **more}


def qwen2_model(
    tokenizer: PreTrainedTokenizerFast, text: dict[str, object] | None = None, vision: dict[str, object] | None = None
) -> Qwen2VLForConditionalGeneration:
    """A small Qwen2-VL: patches merged two by two, M-RoPE, Qwen2; `text` and `vision` replace values of the embedded
    model's configuration."""
    tower = {"embed_dim": VISION_WIDTH, "hidden_size": TEXT_WIDTH, "mlp_ratio": VISION_FFN // VISION_WIDTH}
    speaker = {"rope_parameters": rope([1, 2, 13])}  # columns need fast angles: a grid has only 6 of them
    config = Qwen2VLConfig(**_configuration(tokenizer, speaker | (text or {}), tower | (vision or {})))
    model = Qwen2VLForConditionalGeneration(config)
    set_control_tokens(model, tokenizer)
    return model


def qwen3_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLForConditionalGeneration:
    """A small Qwen3-VL: Qwen2-VL's tower with learned positions and DeepStack, interleaved M-RoPE, Qwen3."""
    vision = {
        "hidden_size": VISION_WIDTH,
        "out_hidden_size": TEXT_WIDTH,
        "intermediate_size": VISION_FFN,
        "num_position_embeddings": GRID**2,
        "deepstack_visual_indexes": DEEPSTACK,
    }
    text = {"head_dim": TEXT_WIDTH // HEADS, "rope_parameters": rope([6, 5, 5], mrope_interleaved=True)}
    config = Qwen3VLConfig(**_configuration(tokenizer, text, vision))
    model = Qwen3VLForConditionalGeneration(config)
    set_control_tokens(model, tokenizer)
    return model


def _grid(model: PreTrainedModel, side: int) -> Tensor:
    """Time, height and width in patches of a picture, [1, 3]."""
    patches = side // model.config.vision_config.patch_size
    return torch.tensor([[1, patches, patches]])


def _patches(model: PreTrainedModel, pixels: Tensor) -> Tensor:
    """[B, 3, side, side] to [B, patches, 3 * patch^2]; patches of one merged token are next to each other."""
    vision, (b, _, side, _) = model.config.vision_config, pixels.shape
    patch, merge = vision.patch_size, vision.spatial_merge_size
    m = side // patch // merge
    cut = pixels.view(b, 3, m, merge, patch, m, merge, patch).permute(0, 2, 5, 3, 6, 1, 4, 7)
    return cut.reshape(b, (m * merge) ** 2, 3 * patch**2)


def qwen_inputs(model: PreTrainedModel, ids: Tensor, pixels: Tensor) -> dict[str, Tensor]:
    """Flattened patches, each twice in time, the grid of each picture, and which tokens belong to a picture."""
    area = model.config.vision_config.patch_size**2
    cut = _patches(model, pixels).view(-1, 3, 1, area).expand(-1, 3, 2, area)
    return {
        "pixel_values": cut.reshape(-1, 6 * area),
        "image_grid_thw": _grid(model, pixels.shape[-1]).repeat(len(pixels), 1).to(pixels.device),
        "mm_token_type_ids": (ids == model.config.image_token_id).long(),
    }


def qwen_see(model: PreTrainedModel, pixels: Tensor) -> Seen:
    """The tower on whole batches; the library's runs one picture at a time."""
    visual, vision = model.model.visual, model.config.vision_config
    b, merge, grid = len(pixels), vision.spatial_merge_size, _grid(model, pixels.shape[-1])
    kernel = affine(visual.patch_embed.proj)
    # Both frames of a picture are the same.
    embedded = torch.nn.functional.linear(_patches(model, pixels), kernel.weight.sum(2).flatten(1), kernel.bias)
    if hasattr(visual, "pos_embed"):
        indices, weights = get_vision_interpolation_indices_and_weights(
            grid, visual.num_grid_per_side, spatial_merge_size=merge, align_corners=True, mode="bilinear"
        )
        embedded = embedded + (visual.pos_embed(indices) * weights[:, :, None]).sum(1)
    cosine, sine = visual.rotary_pos_emb(embedded, get_vision_position_ids(grid, merge))
    blocks = [
        Block(
            affine(block.norm1),
            affine(block.attn.qkv),
            affine(block.attn.proj),
            affine(block.norm2),
            affine(getattr(block.mlp, "fc1", None) or block.mlp.linear_fc1),
            affine(getattr(block.mlp, "fc2", None) or block.mlp.linear_fc2),
        )
        for block in visual.blocks
    ]
    style = Style(vision.num_heads, VISION_EPS, vision.hidden_act)
    layers = run_blocks(embedded, None, (cosine[None, None], sine[None, None]), blocks, style, [])
    n = embedded.shape[1] // merge**2
    deep = [
        merger(layers[index]).view(b, n, -1)
        for index, merger in zip(DEEPSTACK, getattr(visual, "deepstack_merger_list", []), strict=False)
    ]
    tokens = visual.merger(layers[-1].flatten(0, 1)).view(b, n, -1)
    return Seen(tokens, deep, tokens)


def qwen_speak(
    model: PreTrainedModel, embeddings: Tensor, mask: Tensor, positions: Tensor, deep: list[Tensor]
) -> Spoken:
    """The text model with positions [3, B, L]."""
    text = model.model.language_model
    cosine, sine = text.rotary_emb(embeddings, positions)
    blocks = []
    for layer in text.layers:
        attention, ffn = layer.self_attn, layer.mlp
        query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        blocks.append(
            Block(
                affine(layer.input_layernorm),
                query_key_value(attention),
                affine(attention.o_proj),
                affine(layer.post_attention_layernorm),
                joined([ffn.gate_proj, ffn.up_proj]),
                affine(ffn.down_proj),
                None if query_norm is None else query_norm.weight,
                None if key_norm is None else key_norm.weight,
            )
        )
    style = Style(text.config.num_attention_heads, text.config.rms_norm_eps, "swiglu")
    layers = run_blocks(embeddings, mask, (cosine[:, None], sine[:, None]), blocks, style, deep)
    return Spoken(layers, text.norm(layers[-1]))


def qwen_places(model: PreTrainedModel, start: int, side: int = SIDE) -> tuple[list[Place], int]:
    """Time, height and width by the library's rule; text continues after the larger side of the grid."""
    grid, merge = _grid(model, side)[0], model.config.vision_config.spatial_merge_size
    found = model.model.get_vision_position_ids(start, grid, 1, merge)
    return [tuple(place) for place in found.T.tolist()], start + int(grid[1]) // merge


def copied(target: torch.nn.Module, source: torch.nn.Module) -> None:
    """Copies the parameters that both have; embeddings keep the rows that the source does not have."""
    own = dict(target.named_parameters())
    for name, value in source.named_parameters():
        if name in own:
            own[name].data[: len(value)] = value.data


@torch.no_grad()
def inherit_from_llava(model: PreTrainedModel, parent: PreTrainedModel) -> None:
    """Qwen2's text model is Llama's with biases for queries, keys and values, which start at zero."""
    copied(model.model.language_model, parent.model.language_model)
    copied(model.lm_head, parent.lm_head)
    for layer in model.model.language_model.layers:
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            if part.bias is not None:
                part.bias.zero_()


@torch.no_grad()
def inherit_from_qwen2(model: PreTrainedModel, parent: PreTrainedModel) -> None:
    """The same tower; DeepStack starts at zero, and the norms of queries and keys start near the usual size."""
    copied(model.model.language_model, parent.model.language_model)
    copied(model.lm_head, parent.lm_head)
    visual, older = model.model.visual, parent.model.visual
    copied(visual.patch_embed, older.patch_embed)
    visual.patch_embed.proj.bias.zero_()
    visual.pos_embed.weight.zero_()
    for block, old in zip(visual.blocks, older.blocks, strict=True):
        copied(block, old)
        copied(block.mlp.linear_fc1, old.mlp.fc1)
        copied(block.mlp.linear_fc2, old.mlp.fc2)
    for ours, theirs in ((visual.merger.norm, older.merger.ln_q), (visual.merger.linear_fc1, older.merger.mlp[0])):
        copied(ours, theirs)
    copied(visual.merger.linear_fc2, older.merger.mlp[2])
    for merger in visual.deepstack_merger_list:
        merger.linear_fc2.weight.zero_()
        merger.linear_fc2.bias.zero_()
    for layer in model.model.language_model.layers:
        attention = layer.self_attn
        for norm, part in ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj)):
            # The inputs are normalised, so their entries are about as large as the norm's weight.
            rows = (part.weight * layer.input_layernorm.weight).square().sum(1)
            norm.weight.fill_(rows.mean().sqrt().item())


def qwen_processor(
    kind: type[ProcessorMixin],
    tokenizer: PreTrainedTokenizerFast,
    side: int = SIDE,
    patch: int = PATCH,
    template: str = TEMPLATE,
) -> ProcessorMixin:
    """The family's processor without its video part, which needs torchvision; pictures keep their size in pixels."""
    images = Qwen2VLImageProcessorPil(
        patch_size=patch,
        merge_size=MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": side**2, "longest_edge": side**2},  # areas
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return without_video(kind)(image_processor=images, tokenizer=tokenizer, chat_template=template)


QWEN2_VL = Family(
    model_type="qwen2_vl",
    title="Qwen2-VL",
    classes="a Qwen2-VL (tower over patches of 7 pixels merged two by two, Qwen2 with M-RoPE)",
    tokenizer=qwen_tokenizer,
    processor=partial(qwen_processor, Qwen2VLProcessor),
    model=qwen2_model,
    see=qwen_see,
    speak=qwen_speak,
    image_places=qwen_places,
    inputs=qwen_inputs,
    prompt=PROMPT,
    inherit=inherit_from_llava,
    parent="llava",
)
QWEN3_VL = replace(
    QWEN2_VL,
    model_type="qwen3_vl",
    title="Qwen3-VL",
    classes="a Qwen3-VL (tower over patches of 7 pixels merged two by two, DeepStack, Qwen3 with interleaved M-RoPE)",
    processor=partial(qwen_processor, Qwen3VLProcessor),
    model=qwen3_model,
    inherit=inherit_from_qwen2,
    parent="qwen2_vl",
)
