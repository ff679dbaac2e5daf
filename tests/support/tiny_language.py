"""Tiny random checkpoints of plain language models: a tokenizer, no image processor."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from more_cli.model.families import LANGUAGE_MODELS
from support.tiny import make_tokenizer, spread_weights

Parts = dict[str, Any]
CHAT = (
    "{%- for message in messages -%}"
    "{{ message['role'] + ': ' + message['content'] | trim }}"
    "{{ eos_token if message['role'] == 'assistant' else '\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"
)
"""Contents are text, as in the templates of language models: they fail on a list of parts."""
_SIZES: Parts = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
_SIZES |= {"max_position_embeddings": 512}
_GEMMA: Parts = _SIZES | {"head_dim": 16, "num_key_value_heads": 2}
CONFIGS: dict[str, Parts] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3"), _SIZES | {"num_key_value_heads": 2}),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _GEMMA),
    **dict.fromkeys(("gpt_neox", "phi"), _SIZES),
    "opt": {"hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 96, "num_hidden_layers": 3}
    | {"num_attention_heads": 4, "max_position_embeddings": 512},
}
assert {*CONFIGS} == {*LANGUAGE_MODELS}


def tiny_language_model(directory: Path, family: str = "llama", dtype: str = "float32", chat: bool = False) -> Path:
    """Write a checkpoint with random weights; `chat` gives it a chat template, as instruction-tuned ones have."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in _files(family, dtype, chat).items():
        (directory / name).write_bytes(content)
    return directory


@cache
def _files(family: str, dtype: str, chat: bool) -> dict[str, bytes]:
    controls = ["<unk>", "<s>", "</s>", "<pad>"]
    tokenizer = make_tokenizer(controls, bos="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    tokenizer.chat_template = CHAT if chat else None
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **ids, **CONFIGS[family])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    spread_weights(model, seed=0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in folder.iterdir()}
