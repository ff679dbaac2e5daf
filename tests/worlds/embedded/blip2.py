"""A small BLIP-2 with OPT: tower and Q-Former start from LLaVA's tower, OPT's attention from Llama's."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, processors
from torch import Tensor
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessorPil,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from more_cli.demo.files import demo_model_dir

from .family import Family, Prompt, Seen, Spoken, set_control_tokens
from .llava import (
    HEADS,
    PATCH,
    PATCHES,
    TEXT_LAYERS,
    TEXT_WIDTH,
    VISION_FFN,
    VISION_WIDTH,
    fast_tokenizer,
    in_a_row,
    pixels_alone,
)
from .perception import pixels
from .transformer import Block, Style, affine, query_key_value, run_blocks
from .world.drawing import SIDE
from .world.pools import Pool
from .world.scenes import scene

TEXT_FFN = 512
MAX_POSITIONS = 512
VISION_LAYERS = 4
QFORMER_FFN, QFORMER_LAYERS = 256, 2
QUERIES = PATCHES**2
TEXT_EPS, VISION_EPS = 1e-5, 1e-6
FITTED_SCENES = 64  # for the initial weights of the Q-Former
SHARPNESS = 30.0  # initial logit of a query's own patch


def opt_tokenizer(source: str = "") -> PreTrainedTokenizerFast:
    """A tokenizer of LLaVA's form, given as JSON, with OPT's single control token, which both starts and ends a text;
    default: LLaVA's."""
    tokenizer = Tokenizer.from_str(source or (demo_model_dir() / "tokenizer.json").read_text(encoding="utf-8"))
    both = ("</s>", tokenizer.token_to_id("</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", pair="</s> $A </s> $B", special_tokens=[both]
    )
    # No image_token here: Blip2Processor adds its own and could not read this one.
    return fast_tokenizer(
        tokenizer,
        MAX_POSITIONS,
        unk_token="<unk>",
        bos_token="</s>",
        eos_token="</s>",
        pad_token="<pad>",
    )


def blip2_processor(tokenizer: PreTrainedTokenizerFast, side: int = SIDE, queries: int = QUERIES) -> Blip2Processor:
    """BLIP-2's processor; it has no chat template."""
    images = BlipImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5]
    )
    return Blip2Processor(images, tokenizer, num_query_tokens=queries)


def blip2_model(
    tokenizer: PreTrainedTokenizerFast,
    text: dict[str, object] | None = None,
    vision: dict[str, object] | None = None,
    queries: int = QUERIES,
) -> Blip2ForConditionalGeneration:
    """A small BLIP-2: ViT, Q-Former as wide as it with one query a patch, OPT; `text` and `vision` replace values of
    the embedded model's configuration."""
    tower = {
        "hidden_size": VISION_WIDTH,
        "intermediate_size": VISION_FFN,
        "num_hidden_layers": VISION_LAYERS,
        "num_attention_heads": HEADS,
        "image_size": SIDE,
        "patch_size": PATCH,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": VISION_EPS,
        "initializer_range": 0.02,  # by default a random tower ignores its picture
    } | (vision or {})
    speaker = {
        "model_type": "opt",
        "hidden_size": TEXT_WIDTH,
        "word_embed_proj_dim": TEXT_WIDTH,
        "ffn_dim": TEXT_FFN,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": MAX_POSITIONS,
        "dropout": 0.0,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    } | (text or {})
    config = Blip2Config(
        vision_config=tower,
        qformer_config={
            "hidden_size": tower["hidden_size"],
            "intermediate_size": QFORMER_FFN,
            "num_hidden_layers": QFORMER_LAYERS,
            "num_attention_heads": HEADS,
            "cross_attention_frequency": 2,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
        },
        text_config=speaker,
        num_query_tokens=queries,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    model = Blip2ForConditionalGeneration(config)
    model.query_tokens.data.normal_()  # zero by default: all queries would stay the same
    for each in (model, model.language_model):
        set_control_tokens(each, tokenizer)
    return model


def patch_features(model: PreTrainedModel, pixels: Tensor) -> Tensor:
    """The tower's output [B, 1 + patches, width]."""
    vision = model.vision_model
    blocks = [
        Block(
            affine(layer.layer_norm1),
            affine(layer.self_attn.qkv),
            affine(layer.self_attn.projection),
            affine(layer.layer_norm2),
            affine(layer.mlp.fc1),
            affine(layer.mlp.fc2),
        )
        for layer in vision.encoder.layers
    ]
    style = Style(vision.config.num_attention_heads, vision.config.layer_norm_eps, vision.config.hidden_act)
    return vision.post_layernorm(run_blocks(vision.embeddings(pixels), None, None, blocks, style, [])[-1])


def blip2_see(model: PreTrainedModel, pixels: Tensor) -> Seen:
    """Tower, Q-Former and projection."""
    queries = model.query_tokens.expand(len(pixels), -1, -1)
    asked = model.qformer(query_embeds=queries, encoder_hidden_states=patch_features(model, pixels))
    tokens = model.language_projection(asked.last_hidden_state)
    return Seen(tokens, [], tokens)


def opt_speak(
    model: PreTrainedModel, embeddings: Tensor, mask: Tensor, positions: Tensor, deep: list[Tensor]
) -> Spoken:
    """OPT with learnt positions [1, B, L]."""
    text = model.language_model.model.decoder
    where = text.embed_positions.weight[positions[0] + text.embed_positions.offset]
    blocks = [
        Block(
            affine(layer.self_attn_layer_norm),
            query_key_value(layer.self_attn),
            affine(layer.self_attn.out_proj),
            affine(layer.final_layer_norm),
            affine(layer.fc1),
            affine(layer.fc2),
        )
        for layer in text.layers
    ]
    style = Style(text.config.num_attention_heads, TEXT_EPS, "relu")
    layers = run_blocks(embeddings + where, mask, None, blocks, style, deep)
    return Spoken(layers, text.final_layer_norm(layers[-1]))


@torch.no_grad()
def inherit_from_llava(model: PreTrainedModel, parent: PreTrainedModel) -> None:
    """LLaVA's tower, one query per patch that attends to it, and Llama's embeddings and attention."""
    drawn = pixels([scene(Pool.TRAIN, index) for index in range(FITTED_SCENES)], lambda _: 0)
    _inherit_tower(model, parent, drawn)
    attend_to_own_patch(model, patch_features(model, drawn))
    decoder, llama = model.language_model.model.decoder, parent.model.language_model
    decoder.embed_tokens.weight.copy_(llama.embed_tokens.weight)
    for layer, old in zip(decoder.layers, llama.layers, strict=True):
        layer.self_attn_layer_norm.weight.copy_(old.input_layernorm.weight)
        layer.final_layer_norm.weight.copy_(old.post_attention_layernorm.weight)
        for name, source in (("q_proj", "q_proj"), ("k_proj", "k_proj"), ("v_proj", "v_proj"), ("out_proj", "o_proj")):
            getattr(layer.self_attn, name).weight.copy_(getattr(old.self_attn, source).weight)
            getattr(layer.self_attn, name).bias.zero_()


def _inherit_tower(model: PreTrainedModel, parent: PreTrainedModel, drawn: Tensor) -> None:
    """All layers but the last, which LLaVA does not use. BLIP-2 has no counterpart of CLIP's first norm, so it becomes
    part of the embeddings: its division by each token's standard deviation becomes a division by their mean."""
    ours, theirs = model.vision_model, parent.model.vision_tower
    norm, embedded = theirs.pre_layrnorm, theirs.embeddings(drawn)
    scale = norm.weight / embedded.std(-1).mean()
    patch = theirs.embeddings.patch_embedding.weight
    place = theirs.embeddings.position_embedding.weight
    first = theirs.embeddings.class_embedding.view(1, 1, -1)
    ours.embeddings.patch_embedding.weight.copy_((patch - patch.mean(0)) * scale[:, None, None, None])
    ours.embeddings.patch_embedding.bias.zero_()
    ours.embeddings.class_embedding.copy_((first - first.mean()) * scale)
    ours.embeddings.position_embedding.copy_((place - place.mean(-1, keepdim=True)) * scale + norm.bias)
    for layer, old in zip(ours.encoder.layers, theirs.encoder.layers, strict=False):
        parts = query_key_value(old.self_attn)
        layer.self_attn.qkv.weight.copy_(parts.weight)
        layer.self_attn.qkv.bias.copy_(parts.bias)
        layer.self_attn.projection.load_state_dict(old.self_attn.out_proj.state_dict())
        for name in ("layer_norm1", "layer_norm2", "mlp"):
            getattr(layer, name).load_state_dict(getattr(old, name).state_dict())


@torch.no_grad()
def attend_to_own_patch(model: PreTrainedModel, features: Tensor) -> None:
    """Lets query i attend to patch i, found by a linear reader of a patch's place, and copy its features."""
    former, n = model.qformer, model.config.num_query_tokens
    width, heads = former.config.hidden_size, former.config.num_attention_heads
    head = width // heads
    model.query_tokens.copy_(torch.linalg.qr(torch.randn(width, width))[0][:n] * width**0.5)
    first = former.encoder.layer[0]
    first.attention.output.dense.weight.zero_()
    asking = first.attention.output.LayerNorm(former.layernorm(model.query_tokens[0]))
    wanted = torch.cat([torch.zeros(1, n), torch.eye(n)]).repeat(len(features), 1)
    flat = features.flatten(0, 1)
    reader = torch.linalg.lstsq(flat - flat.mean(0), wanted - wanted.mean(0)).solution.T  # [queries, width]
    left, size, right = torch.linalg.svd(reader, full_matrices=False)
    gain = (SHARPNESS * head**0.5 * size[:head]).sqrt()
    cross = first.crossattention
    queries = torch.linalg.pinv(asking) @ (left[:, :head] * gain)  # [width, head]
    cross.attention.query.weight.copy_(queries.T.repeat(heads, 1))
    cross.attention.key.weight.copy_((gain[:, None] * right[:head]).repeat(heads, 1))
    cross.attention.value.weight.copy_(3 * torch.eye(width))  # larger than the query itself
    cross.output.dense.weight.copy_(torch.eye(width))


BLIP2_OPT = Family(
    model_type="blip-2",
    title="BLIP-2",
    classes="a BLIP-2 (ViT, Q-Former with 36 queries, OPT)",
    tokenizer=opt_tokenizer,
    processor=blip2_processor,
    model=blip2_model,
    see=blip2_see,
    speak=opt_speak,
    image_places=in_a_row,
    inputs=pixels_alone,
    prompt=Prompt(
        start="</s>",
        opening="Question: ",
        asking=" Answer:",
        after_image="Question: ",
        image_first=True,
    ),
    alone=lambda model: model.language_model,
    inherit=inherit_from_llava,
    parent="llava",
)
