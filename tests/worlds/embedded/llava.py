"""A small LLaVA-1.5: configuration, tokenizer, processor, prompt and forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from .family import Family, Place, Prompt, Seen, Spoken, set_control_tokens
from .transformer import Block, Style, affine, joined, query_key_value, run_blocks
from .world.drawing import SIDE
from .world.episodes import KINDS, episode
from .world.language import ask, kinds_for
from .world.pools import Dice, Pool, Purpose
from .world.scenes import scene

VOCABULARY = 1024  # 256 bytes, the control tokens and the most frequent pieces of the corpus
TEXT_WIDTH, TEXT_FFN, TEXT_LAYERS = 128, 384, 8
VISION_WIDTH, VISION_FFN = 128, 384
VISION_LAYERS = 5  # LLaVA uses the output of the last but one, so the last stays as initialised
HEADS = 4
PATCH = 14
PATCHES = SIDE // PATCH  # per side
MAX_POSITIONS = 1024
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SYSTEM_PROMPTS = (
    "A chat between a curious user and an artificial intelligence assistant.",
    "You are a helpful assistant.",
    "Answer with one word or a short phrase.",
)

LLAVA_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{{ 'USER: ' }}
{%- elif message['role'] == 'assistant' -%}{{ 'ASSISTANT: ' }}
{%- endif -%}
{%- if message['content'] is string -%}
{%- set text = message['content'] -%}
{%- else -%}
{%- for part in message['content'] if part['type'] == 'image' -%}{{ '<image>\\n' }}{%- endfor -%}
{%- set text = message['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(' ') -%}
{%- endif -%}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{ text + '</s>' }}{%- endgeneration -%}
{%- else -%}{{ text + ' ' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}
"""


def corpus() -> Iterator[str]:
    """Sentences to train a tokenizer on, without the unseen wordings and the new emblems."""
    for index in range(3000):
        about, dice = scene(Pool.TRAIN, index), Dice(Purpose.QUESTIONS, Pool.TRAIN, index)
        for kind in kinds_for(about):
            question = ask(about, kind, dice)
            if question is not None:
                yield f"USER: \n{question.wording(dice)} ASSISTANT: {question.answer}"
        yield episode(dice, Pool.TRAIN, dice.pick(KINDS)).prompt
    for prompt in SYSTEM_PROMPTS * 100:
        yield prompt + " Question: Short answer: USER:"


def llava_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the world's corpus."""
    return bpe_tokenizer(corpus(), BYTES)


def bpe_tokenizer(sentences: Iterable[str], splits: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    """Byte-level BPE with LLaVA's control tokens, which encodes any text; every control token is special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splits
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[bos]
    )
    return fast_tokenizer(
        tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
    )


def fast_tokenizer(
    tokenizer: Tokenizer, positions: int = MAX_POSITIONS, **named: str | dict[str, str]
) -> PreTrainedTokenizerFast:
    """The tokenizer in the library's form, padded on the left; `named` are its control tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        model_max_length=positions,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **named,
    )


def llava_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """LLaVA-1.5's processor with our image size; without its last three arguments the token count is wrong."""
    images = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )


def llava_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """A small LLaVA-1.5: CLIP tower, two-layer projector, Llama."""
    config = LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": VISION_WIDTH,
            "intermediate_size": VISION_FFN,
            "num_hidden_layers": VISION_LAYERS,
            "num_attention_heads": HEADS,
            "image_size": SIDE,
            "patch_size": PATCH,
            "projection_dim": VISION_WIDTH,
        },
        text_config={
            "model_type": "llama",
            "hidden_size": TEXT_WIDTH,
            "intermediate_size": TEXT_FFN,
            "num_hidden_layers": TEXT_LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": MAX_POSITIONS,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": False,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=PATCHES**2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    model = LlavaForConditionalGeneration(config)
    set_control_tokens(model, tokenizer)
    return model


def pixels_alone(model: PreTrainedModel, ids: Tensor, pixels: Tensor) -> dict[str, Tensor]:
    """Pixels unchanged."""
    return {"pixel_values": pixels}


def llava_see(model: LlavaForConditionalGeneration, pixels: Tensor) -> Seen:
    """The tower up to the last but one layer, without the class token, then the projector."""
    tower = model.model.vision_tower
    hidden = tower.pre_layrnorm(tower.embeddings(pixels))
    for layer in tower.encoder.layers[:-1]:
        hidden = layer(hidden, None)
    features = hidden[:, 1:]
    return Seen(model.model.multi_modal_projector(features), [], features)


def llava_speak(
    model: LlavaForConditionalGeneration, embeddings: Tensor, mask: Tensor, positions: Tensor, deep: list[Tensor]
) -> Spoken:
    """Llama with positions [1, B, L]."""
    text = model.model.language_model
    cosine, sine = text.rotary_emb(embeddings, positions[0])
    blocks = [
        Block(
            affine(layer.input_layernorm),
            query_key_value(layer.self_attn),
            affine(layer.self_attn.o_proj),
            affine(layer.post_attention_layernorm),
            joined([layer.mlp.gate_proj, layer.mlp.up_proj]),
            affine(layer.mlp.down_proj),
        )
        for layer in text.layers
    ]
    style = Style(HEADS, text.config.rms_norm_eps, "swiglu")
    layers = run_blocks(embeddings, mask, (cosine[:, None], sine[:, None]), blocks, style, deep)
    return Spoken(layers, text.norm(layers[-1]))


def in_a_row(model: PreTrainedModel, start: int, n: int = PATCHES**2) -> tuple[list[Place], int]:
    """Each of an image's `n` tokens takes one position."""
    after = start + n
    return [(place,) for place in range(start, after)], after


LLAVA = Family(
    model_type="llava",
    title="LLaVA",
    classes="a LLaVA-1.5 (CLIP tower, two-layer projector, Llama)",
    tokenizer=llava_tokenizer,
    processor=llava_processor,
    model=llava_model,
    see=llava_see,
    speak=llava_speak,
    image_places=in_a_row,
    inputs=pixels_alone,
    prompt=Prompt(
        start="<s>",
        opening="USER: ",
        asking=" ASSISTANT:",
        after_image="\n",
        system=lambda prompt: prompt + " ",
    ),
)
