"""Which quantised checkpoints are taken, and the matrices that their packed weights stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from more_cli.checkpoint.bnb import FOUR_BITS
from more_cli.checkpoint.norms import weight_norm
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.quantised import SCHEMES, matrix, misfit
from more_cli.checkpoint.reader import Checkpoint, fingerprint
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.errors import StateError, UsageError
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import load_runtime
from support import tiny
from support.helpers import run
from support.quantised import COMPRESSED, SETTINGS, quantise

BITS = {"quant_method": "bitsandbytes"}
PACKED = "compressed-tensors (pack-quantized)"
LOST = f"{PACKED}, whose activations are quantised too: no gradient comes back through its Linears"
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}
INT8 = INT4 | {"num_bits": 8}
FOUR, EIGHT = ({"targets": ["Linear"], "weights": weights} for weights in (INT4, INT8))
GROUPS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {"a": FOUR},
}
ODD: list[dict[str, Any]] = [
    {"actorder": "group"},
    {"num_bits": 3},
    {"num_bits": 4.0},
    {"type": "float"},
    {"type": "float", "num_bits": 8},
    {"strategy": "tensor_group"},
    {"group_size": 0},
    {"dynamic": True},
    {"scale_dtype": "torch.float8_e4m3fn"},
]
"""What is not read, each beside 4 bits in groups."""
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "gptq", "bits": 4}, "quantised by gptq, which transformers reads through gptqmodel alone"),
    ({"quant_method": "awq", "bits": 4}, "quantised by awq, which transformers reads through gptqmodel alone"),
    ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors (float-quantized)"),
    (GROUPS | {"config_groups": {"a": FOUR, "b": EIGHT}}, "compressed-tensors (pack-quantized) with more than one"),
    (GROUPS | {"config_groups": {"a": FOUR | {"output_activations": {}, "input_activations": INT8}}}, LOST),
    (GROUPS | {"kv_cache_scheme": INT8}, "whose keys and values are quantised too"),
    (GROUPS | {"quantization_status": "frozen"}, "compressed-tensors (pack-quantized), beside which"),
    (GROUPS | {"transform_config": {"config_groups": {}}}, "compressed-tensors (pack-quantized), beside which"),
    *((GROUPS | {"config_groups": {"a": {"weights": INT4 | odd}}}, f"{PACKED}, beside which") for odd in ODD),
    *(({"quant_method": name}, name) for name in ("fp8", "fbgemm_fp8", "hqq", "quanto", "torchao", "aqlm", "mxfp4")),
    ({"quant_method": "brand-new"}, "brand-new"),
    ({}, "an unnamed method"),
    (BITS, "bitsandbytes without one of load_in_8bit and load_in_4bit"),
    (BITS | {"load_in_4bit": True, "bnb_4bit_quant_type": "af4"}, "bitsandbytes af4"),
    (
        BITS | {"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"},
        "bitsandbytes fp4 with bnb_4bit_quant_storage bfloat16",
    ),
    (BITS | {"load_in_8bit": True, "llm_int8_has_fp16_weight": True}, "int8 with llm_int8_has_fp16_weight"),
]


@pytest.mark.parametrize(("declared", "name"), REFUSED)
@pytest.mark.parametrize("command", ["init", "status"])
def test_other_schemes_are_refused_by_name_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any], name: str, command: str
) -> None:
    model = tiny.tiny_llava(tmp_path / "model")
    tiny.set_config(model, quantization_config=declared)
    monkeypatch.setattr("more_cli.ops.plan.meta_model", lambda *_: pytest.fail("a model was built"))
    result = run(command, model)
    assert result.code == 5
    assert name in result.err.splitlines()[0]
    assert "full-precision checkpoint it was made from" in result.err
    assert not (tmp_path / "model.more").exists()


@pytest.mark.parametrize("editor", ["ft-l", "lora", "wise"])
def test_other_editors_need_full_precision(tmp_path: Path, editor: str) -> None:
    model = tiny.tiny_llava(tmp_path / "model")
    tiny.set_config(model, quantization_config=BITS | {"load_in_8bit": True})
    with pytest.raises(UsageError, match=f"is quantised to int8: editor `{editor}` needs full-precision weights"):
        entry_of(editor).make(EditorOptions(model))


def test_compression_config_is_a_scheme_too(tmp_path: Path) -> None:
    model = tiny.tiny_llava(tmp_path / "model")
    tiny.set_config(model, compression_config={"quant_method": "compressed-tensors"})
    assert "quantised by compressed-tensors" in run("init", model).err


@pytest.fixture(scope="module", params=[*SETTINGS, *COMPRESSED])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    """A full-precision checkpoint in bfloat16, and what a library made of it."""
    root = tmp_path_factory.mktemp("quantised")
    full = tiny.tiny_llava(root / "full", dtype="bfloat16", text_layers=1, wide=True)
    return open_checkpoint(full), open_checkpoint(quantise(full, root / "packed", request.param))


def test_the_model_finds_every_packed_weight(pair: tuple[Checkpoint, Checkpoint]) -> None:
    full, packed = (key_map(meta_model(opened), opened) for opened in pair)
    assert packed.disk.keys() == full.disk.keys()
    assert not packed.disputed
    assert not packed.converted
    assert set(packed.disk.values()) == set(pair[1].weights)
    assert pair[1].scheme in SCHEMES
    assert len(pair[1].packed) > 10


def test_matrices_are_those_of_the_library(pair: tuple[Checkpoint, Checkpoint]) -> None:
    opened = pair[1]
    model = load_runtime(opened).model
    for name, key in key_map(meta_model(opened), opened).disk.items():
        if key not in opened.packed:
            continue
        theirs = dequantised(model.get_submodule(name.removesuffix(".weight")), str(opened.scheme))
        ours = matrix(opened, opened.packed[key])
        assert torch.allclose(ours, theirs, atol=1e-6, rtol=2**-8), key  # theirs is rounded to bfloat16
        assert weight_norm(opened, key) == pytest.approx(float(torch.linalg.vector_norm(ours)), rel=1e-5)


def dequantised(module: Any, scheme: str) -> torch.Tensor:
    """The matrix that a loaded Linear stands for."""
    if scheme == "int8":
        return module.weight.data.float() * module.weight.SCB[:, None] / 127
    if scheme in FOUR_BITS:
        from bitsandbytes import functional

        return functional.dequantize_4bit(module.weight.data, module.weight.quant_state).float()
    assert type(module) is torch.nn.Linear
    return module.weight.data.float()


def test_only_the_weight_it_was_made_from_fits(pair: tuple[Checkpoint, Checkpoint]) -> None:
    full, opened = pair
    theirs = key_map(meta_model(full), full).disk
    for name, key in key_map(meta_model(opened), opened).disk.items():
        if key not in opened.packed:
            continue
        weight = full.read_tensor(full.tensors[theirs[name]])
        assert misfit(opened, opened.packed[key], weight) <= 1, key
        other = weight.float() + 0.05 * weight.float().abs().mean() * torch.randn(weight.shape)
        assert misfit(opened, opened.packed[key], other) > 1, key


def test_a_state_belongs_to_codes_and_scales(pair: tuple[Checkpoint, Checkpoint], tmp_path: Path) -> None:
    opened = pair[1]
    key, packed = next(iter(opened.packed.items()))
    before = fingerprint(opened, [key])
    assert {f"tensor:{part.key}" for part in packed.parts.values()} <= before.keys()
    scales = packed.parts[next(name for name in ("SCB", "weight.absmax", "weight_scale") if name in packed.parts)]
    whole = (opened.path / scales.shard).read_bytes()
    try:
        changed = bytes([whole[scales.start] ^ 1])
        (opened.path / scales.shard).write_bytes(whole[: scales.start] + changed + whole[scales.start + 1 :])
        after = fingerprint(opened, [key])
    finally:
        (opened.path / scales.shard).write_bytes(whole)
    assert [name for name in before if before[name] != after[name]] == [f"tensor:{scales.key}"]


@pytest.mark.parametrize("part", ["weight.quant_state.bitsandbytes__nf4", "weight.absmax", "weight.quant_map"])
def test_damaged_parts_are_no_weight(tmp_path: Path, part: str) -> None:
    """A hostile checkpoint may say anything about a matrix; what does not fit together is not one."""
    full = tiny.tiny_llava(tmp_path / "full", text_layers=1)
    folder = quantise(full, tmp_path / "packed", "nf4")
    tensors = tiny.read_weights(folder)
    module = "language_model.model.layers.0.mlp.down_proj"
    tensors[f"{module}.{part}"] = tensors[f"{module}.{part}"][:-1].clone()
    tiny.write_weights(folder, tensors)
    assert f"{module}.weight" not in open_checkpoint(folder).packed
    result = run("init", folder, "--set", 'sites=["text.ffn_out"]')
    assert (result.code, "quantised: U8 beside" in result.err) == (5, True)


def test_rows_that_bitsandbytes_reads_wrongly_on_a_cpu_are_refused(tmp_path: Path) -> None:
    folder = quantise(tiny.tiny_llava(tmp_path / "full", text_layers=1), tmp_path / "packed", "nf4")
    edits = tmp_path / "edits.jsonl"
    edits.write_text('{"id": "e1", "question": "a photo of", "target": "a"}\n')
    result = run("edit", folder, edits)
    assert result.code == 5
    assert "no multiple of its blocks of 64: bitsandbytes computes nf4 wrongly there on a CPU" in result.err


def test_without_bitsandbytes_loading_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from more_cli.model import quantised as loading

    model = tiny.tiny_llava(tmp_path / "model")
    tiny.set_config(model, quantization_config=BITS | {"load_in_8bit": True})
    monkeypatch.setattr(loading, "find_spec", lambda _: None)
    with pytest.raises(StateError, match="quantised to int8, which needs bitsandbytes") as failed:
        loading.import_library(open_checkpoint(model))
    assert failed.value.hint == 'pip install "more-vlm[quantised]"'


def test_without_compressed_tensors_loading_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from more_cli.model import quantised as loading

    model = tiny.tiny_llava(tmp_path / "model")
    tiny.set_config(model, quantization_config=GROUPS)
    monkeypatch.setattr(loading, "find_spec", lambda _: None)
    what = "quantised to int4 .compressed-tensors., which needs compressed-tensors"
    with pytest.raises(StateError, match=what) as failed:
        loading.import_library(open_checkpoint(model))
    assert failed.value.hint == 'pip install "more-vlm[quantised]"'


LINEAR = "language_model.model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("weight_packed", lambda old: old[:, :-1]),
        ("weight_scale", lambda old: old[:-1]),
        ("weight_scale", lambda old: old.to(torch.int32)),
        ("weight_zero_point", lambda old: old.flatten()[:-1]),
        ("weight_shape", lambda old: old + 8),
        ("weight_shape", lambda old: -old),
        ("weight_shape", lambda old: old.to(torch.int32)),
        ("weight_g_idx", lambda old: torch.zeros(128, dtype=torch.int32)),
        ("input_scale", lambda old: torch.ones(1)),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_the_model_is_loaded(
    tmp_path: Path, part: str, value: Callable[[Any], torch.Tensor]
) -> None:
    """compressed-tensors would leave an order of columns (`weight_g_idx`) out, without an error."""
    full = tiny.tiny_llava(tmp_path / "full", text_layers=1, wide=True)
    folder = quantise(full, tmp_path / "packed", "W4A16 asymmetric")
    tensors = tiny.read_weights(folder)
    tensors[f"{LINEAR}.{part}"] = value(tensors.get(f"{LINEAR}.{part}")).clone()
    tiny.write_weights(folder, tensors)
    opened = open_checkpoint(folder)
    assert f"{LINEAR}.weight" not in opened.packed
    with pytest.raises(StateError, match=f"`{LINEAR}.*` does not fit its scheme"):
        load_runtime(opened)
    result = run("init", folder, "--set", 'sites=["text.ffn_out"]')
    assert (result.code, "no tensor on disk (quantised: compressed-tensors" in result.err) == (5, True)


def test_float8_without_its_scales_is_refused(tmp_path: Path) -> None:
    full = tiny.tiny_llava(tmp_path / "full", text_layers=1, wide=True)
    folder = quantise(full, tmp_path / "packed", "float8")
    tensors = tiny.read_weights(folder)
    del tensors[f"{LINEAR}.weight_scale"]
    tiny.write_weights(folder, tensors)
    with pytest.raises(StateError, match=f"{LINEAR}.weight has dtype F8_E4M3"):
        open_checkpoint(folder)


def test_blocks_of_any_size_take_no_more_memory_than_the_matrix(tmp_path: Path) -> None:
    full = tiny.tiny_llava(tmp_path / "full", text_layers=1, wide=True)
    folder = quantise(full, tmp_path / "packed", "W8A16 naive")
    config = open_checkpoint(folder).config["quantization_config"]
    config["config_groups"]["group_0"]["weights"] |= {"strategy": "block", "block_structure": [1 << 40, 1 << 40]}
    tiny.set_config(folder, quantization_config=config)
    opened = open_checkpoint(folder)
    packed = opened.packed[f"{LINEAR}.weight"]
    assert matrix(opened, packed).shape == packed.shape == (64, 128)
