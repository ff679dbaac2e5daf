"""The key map compared with the tensors that `from_pretrained` puts in memory."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForImageTextToText

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError
from more_cli.model.backbones import find_sites
from more_cli.model.keymap import KeyMap, key_map, meta_model, quiet
from support import tiny
from support.tiny_families import FAMILIES, tiny_family

QWEN = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN |= {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
TOKENS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
QWEN3_VL_MOE = transformers.Qwen3VLMoeConfig(
    text_config=QWEN | {"head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24},
    vision_config={"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 4}
    | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    **TOKENS,
)


def mapped(path: Path) -> tuple[Checkpoint, KeyMap]:
    opened = open_checkpoint(path)
    return opened, key_map(meta_model(opened), opened)


def used(keys: KeyMap) -> set[str]:
    """Return the disk keys that become a parameter or a part of one."""
    return {*keys.disk.values(), *(key for parts in keys.converted.values() for key in parts)}


def assert_true(path: Path, keys: KeyMap) -> None:
    """Every mapped parameter equals its disk tensor, and every Linear that is not tied is mapped."""
    disk = tiny.read_weights(path)
    model = AutoModelForImageTextToText.from_pretrained(path, dtype="auto")
    memory = model.state_dict()
    for name, key in keys.disk.items():
        assert torch.equal(memory[name], disk[key]), (name, key)
    linears = {f"{name}.weight" for name, part in model.named_modules() if type(part) is torch.nn.Linear}
    assert linears <= {*keys.disk, *model.all_tied_weights_keys}


@pytest.mark.parametrize("layout", ["save_pretrained", "old_hub", "native"])
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_llava(tmp_path: Path, layout: str, shards: int, dtype: str) -> None:
    path = tiny.tiny_llava(tmp_path, layout, shards, dtype)
    opened, keys = mapped(path)
    assert_true(path, keys)
    assert keys.how == "transformers and structure"
    assert not keys.disputed
    assert not keys.converted
    assert used(keys) == set(opened.weights)


@pytest.mark.parametrize("layout", ["save_pretrained", "old_hub", "native"])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_families(tmp_path: Path, family: str, layout: str) -> None:
    path = tiny_family(tmp_path, family, layout, shards=3, tied=layout == "old_hub")
    opened, keys = mapped(path)
    assert_true(path, keys)
    assert not keys.disputed
    assert used(keys) == set(opened.weights)


@pytest.mark.parametrize("family", ["blip-2", "qwen2_vl", "gemma3", "paligemma"])
def test_both_copies_of_a_tied_tensor(tmp_path: Path, family: str) -> None:
    """As in older repositories: neither is a site, and every other tensor keeps its place."""
    path = tiny_family(tmp_path, family, "native", tied=True)
    tensors = tiny.read_weights(path)
    aliases = meta_model(open_checkpoint(path)).all_tied_weights_keys
    assert aliases
    tiny.write_weights(path, tensors | {alias: tensors[source].clone() for alias, source in aliases.items()})
    opened, keys = mapped(path)
    assert_true(path, keys)
    head = next(iter(aliases)).removesuffix(".weight")
    with pytest.raises(StateError, match=r"nothing to edit in re:.*tied to"):
        find_sites(meta_model(opened), keys, opened, [f"re:{re.escape(head)}"], last=None)


def test_fused_experts_are_not_mapped_when_converted(tmp_path: Path) -> None:
    AutoModelForImageTextToText.from_config(QWEN3_VL_MOE).save_pretrained(tmp_path)
    _, keys = mapped(tmp_path)
    experts = {name for name in keys.converted if "experts" in name}
    assert experts
    assert not experts & set(keys.disk)


def test_tensors_that_become_nothing(tmp_path: Path) -> None:
    path = tiny.tiny_llava(tmp_path)
    tiny.write_weights(path, {**tiny.read_weights(path), "zz.inv_freq": torch.ones(3)})
    opened, keys = mapped(path)
    assert set(opened.weights) - used(keys) == {"zz.inv_freq"}


def test_without_the_conversion_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.tiny_llava(tmp_path, "old_hub")
    opened, both = mapped(path)
    monkeypatch.setitem(sys.modules, "transformers.conversion_mapping", None)
    alone = key_map(meta_model(opened), opened)
    assert alone.how.startswith("structure alone")
    assert alone.disk == both.disk


def test_disagreement_is_kept_out_of_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swap two tensors of equal shape in the tables: neither may be edited any more, everything else may."""
    from transformers import core_model_loading

    path = tiny.tiny_llava(tmp_path, "old_hub")
    real = core_model_loading.rename_source_key

    def swapped(key: str, *rest: object) -> tuple[str, str | None]:
        name, pattern = real(key, *rest)
        swap = {"gate_proj": "up_proj", "up_proj": "gate_proj"} if ".layers.1.mlp." in name else {}
        for old, new in swap.items():
            if f".{old}." in name:
                return name.replace(old, new), pattern
        return name, pattern

    monkeypatch.setattr(core_model_loading, "rename_source_key", swapped)
    _, keys = mapped(path)
    layer = "model.language_model.layers.1.mlp"
    assert set(keys.disputed) == {f"{layer}.gate_proj.weight", f"{layer}.up_proj.weight"}
    assert not set(keys.disputed) & set(keys.disk)
    assert f"{layer}.down_proj.weight" in keys.disk


# ------------------------------------------------------------------------------------------------ meta model


def test_meta_model_holds_no_weights_and_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_checkpoint(tiny.tiny_llava(tmp_path))
    monkeypatch.setattr(socket, "socket", pytest.fail)
    model = meta_model(opened)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "my_vlm"}, "unknown to transformers"),
        ({"model_type": "my_vlm", "auto_map": {"AutoConfig": "evil.Config"}}, "code from its repository"),
        ({"model_type": None}, "unknown to transformers"),
        ({"model_type": "vit"}, "model_type 'vit' is neither an image-text nor a causal language model"),
        ({"model_type": ["llava"]}, "unknown to transformers"),
        ({"architectures": ["LlavaNextForConditionalGeneration"]}, "LlavaNextForConditionalGeneration"),
        ({"text_config": {"model_type": "llama", "hidden_size": "many"}}, "config.json"),
        ({"text_config": 7}, "config.json"),
        ({"architectures": "LlavaForConditionalGeneration2"}, "architectures"),
        ({"architectures": 5}, "architectures"),
    ],
)
def test_config_that_cannot_be_built(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = tiny.tiny_llava(tmp_path)
    (path / "evil.py").write_text("raise SystemExit('remote code ran')")
    tiny.set_config(path, **change)
    with pytest.raises(StateError, match=reason) as caught:
        meta_model(open_checkpoint(path))
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("where", [None, "text_config", "vision_config"])
def test_attention_from_elsewhere_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str | None
) -> None:
    path = tiny.tiny_llava(tmp_path)
    config = json.loads((path / "config.json").read_text())
    for name in ("_attn_implementation", "attn_implementation", "_attn_implementation_internal"):
        (config[where] if where else config)[name] = "someone/kernels"
    tiny.set_config(path, **config)
    monkeypatch.setattr(socket, "socket", pytest.fail)
    meta_model(open_checkpoint(path))


def test_known_model_with_auto_map_uses_no_remote_code(tmp_path: Path) -> None:
    path = tiny.tiny_llava(tmp_path)
    (path / "evil.py").write_text("raise SystemExit('remote code ran')")
    tiny.set_config(path, auto_map={"AutoConfig": "evil.C", "AutoModelForImageTextToText": "evil.M"})
    assert type(meta_model(open_checkpoint(path))) is transformers.LlavaForConditionalGeneration


def test_quantised_config_builds_plain_linears(tmp_path: Path) -> None:
    linear = "language_model.model.layers.1.mlp.down_proj"
    opened = open_checkpoint(tiny.quantised(tiny.tiny_llava(tmp_path), linear))
    parts = meta_model(opened).modules()
    assert all(type(part) is torch.nn.Linear for part in parts if isinstance(part, torch.nn.Linear))


def test_quiet_puts_everything_back() -> None:
    level, filters = logging.getLogger("transformers").level, list(warnings.filters)
    with pytest.raises(KeyError), quiet():
        raise KeyError
    assert logging.getLogger("transformers").level == level
    assert warnings.filters == filters
