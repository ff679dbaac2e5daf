"""What serves a base serves its merged folder: same files, names, shapes, dtypes; and servers find the names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.ops.card import CARD, PROVENANCE
from more_cli.store.state import load_state
from support.helpers import QUICK, World, run

NEW = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "lm_head.": "language_model.lm_head.",
}
RULES = {
    "llava": NEW,
    "gemma3": NEW,
    "qwen2_vl": {
        "model.language_model.": "language_model.model.",
        "model.visual.": "visual.",
        "lm_head.": "language_model.lm_head.",
        "model.": "language_model.model.",
    },
}
"""Prefixes that vLLM replaces, in order: `hf_to_vllm_mapper` in vllm/model_executor/models/ of vllm-project/vllm,
llava.py, gemma3_mm.py and qwen2_vl.py of 0.32.0."""
TOWER = "vision_tower.vision_model."
PARTS = {
    "llava": ("language_model.model.", "language_model.lm_head.", TOWER, "multi_modal_projector."),
    "gemma3": ("language_model.model.", "language_model.lm_head.", TOWER, "multi_modal_projector."),
    "qwen2_vl": ("language_model.model.", "language_model.lm_head.", "visual."),
}
"""The modules that the classes there have: `CLIPVisionModel` and `SiglipVisionModel` hold a `vision_model`."""


@pytest.fixture(scope="module", params=[*RULES])
def merged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, World, Path]:
    family = request.param
    named = {} if family == "llava" else {"family": family}
    # Tensors are named as in the repositories of llava-hf, google and Qwen.
    world = World(tmp_path_factory.mktemp(family) / "world", layout="old_hub", **named)
    world.edits(1)
    assert world.edit(*QUICK).code in (0, 3)
    out = world.root / "merged"
    done = run("merge", world.model, "-o", out)
    assert done.code == 0, done.err
    return family, world, out


def test_a_merged_folder_has_the_files_names_shapes_and_dtypes_of_its_base(merged: tuple[str, World, Path]) -> None:
    _, world, out = merged
    base, ours = ({path.name for path in folder.iterdir()} for folder in (world.model, out))
    assert ours - base <= {PROVENANCE, CARD}
    assert base <= ours
    for name in base:
        if not name.endswith(".safetensors"):
            assert (out / name).read_bytes() == (world.model / name).read_bytes(), name
    before, after = open_checkpoint(world.model), open_checkpoint(out)
    assert after.tensors == before.tensors, "key, dtype, shape, shard and place of every tensor"
    same = {
        key
        for key, entry in after.tensors.items()
        if before.read_tensor(before.tensors[key]).equal(after.read_tensor(entry))
    }
    state = load_state(world.sidecar)
    changed = set(after.tensors) - same
    assert changed == {site.disk_key for site in state.meta.sites if state.B[site.name].any()}
    assert changed


def test_vllm_finds_every_tensor_by_its_name(merged: tuple[str, World, Path]) -> None:
    family, _, out = merged
    keys = list(open_checkpoint(out).tensors)
    mapped = [found_by_vllm(key, RULES[family]) for key in keys]
    assert len(set(mapped)) == len(keys), "no two tensors land in the same place"
    assert [name for name in mapped if not name.startswith(PARTS[family])] == []


def found_by_vllm(key: str, rules: dict[str, str]) -> str:
    for old, new in rules.items():
        if key.startswith(old):
            key = new + key.removeprefix(old)
    return key


def test_deltas_are_added_by_five_lines_of_numpy(merged: tuple[str, World, Path]) -> None:
    _, world, out = merged
    file = world.root / "deltas.safetensors"
    assert run("export", world.model, "--format", "delta", "-o", file).code == 0
    weights, deltas = load_file(world.model / "model.safetensors"), load_file(file)
    for name, delta in deltas.items():
        weights[name] = (weights[name].astype(np.float32) + delta).astype(weights[name].dtype)
    theirs = load_file(out / "model.safetensors")
    assert deltas
    for name, value in theirs.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-6, atol=1e-7)


def test_the_configuration_names_the_class_that_servers_look_up(merged: tuple[str, World, Path]) -> None:
    _, world, out = merged
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == json.loads((world.model / "config.json").read_text())["architectures"]
    assert config["architectures"][0].endswith("ForConditionalGeneration")
