"""The words of a member: its tokenizer and its chat template."""

from __future__ import annotations

import re

from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..embedded.llava import BYTES, bpe_tokenizer
from ..embedded.world.pools import Dice
from .members import Member
from .worlds import Pool

CONTROL = re.compile(r"<\|\w+\|>")  # tokens of Qwen's chats, which are no text

TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{{ 'OPENING' }}
{%- elif message['role'] == 'assistant' -%}{{ 'ASKING ' }}
{%- endif -%}
{%- if message['content'] is string -%}
{%- set text = message['content'] -%}
{%- else -%}
{%- for part in message['content'] if part['type'] == 'image' -%}{{ 'IMAGE' }}{%- endfor -%}
{%- set text = message['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(' ') -%}
{%- endif -%}
{%- if message['role'] == 'assistant' -%}{%- generation -%}{{ text + 'END' }}{%- endgeneration -%}
{%- else -%}{{ text }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASKING' }}{%- endif -%}
"""


def template_of(member: Member, image: str, end: str) -> str:
    """The chat template, where `image` stands for a picture and `end` ends an answer."""
    parts = {"OPENING": member.opening, "ASKING": member.asking, "IMAGE": image, "END": end}
    return re.sub("|".join(parts), lambda found: parts[found[0]], TEMPLATE)


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
    return bpe_tokenizer([CONTROL.sub("", text) for text in sentences], pre_tokenizers.Sequence(splits))
