"""LLaVA-Next: images in tiles, of different numbers, through every command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from more_cli.inputs.images import locate_image
from more_cli.model.batches import Query
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from support.helpers import COLOURS, World, run
from support.tiny import make_model, make_processor


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("next"), family="llava_next")
    world.edits(6)
    return world


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    processor = make_processor("llava_next")
    model = make_model(processor.tokenizer, 2, 0, "llava_next").eval()
    return Runtime(model, Prompter(processor))


def test_images_of_different_shapes_share_a_batch(runtime: Runtime, world: World) -> None:
    encoded = [
        runtime.encode(Query((locate_image(f"{colour}.png", world.root / "img"),), "what colour ?"), colour[0])
        for colour in COLOURS[:3]
    ]
    assert len({sequence.extras["pixel_values"].shape for sequence in encoded}) > 1
    alone = []
    for sequence in encoded:
        batch = runtime.batch([sequence])
        with torch.no_grad():
            alone.append(runtime.model(**batch.inputs, logits_to_keep=batch.keep).logits[0][batch.mask[0]])
    with runtime.attached([]):
        batch = runtime.batch(encoded)
        for _ in range(2):
            scored = runtime.score(batch)
            for row, mask, expected in zip(scored.logits, scored.mask, alone, strict=True):
                torch.testing.assert_close(row[mask], expected, atol=1e-4, rtol=1e-4)
        assert runtime._vision.calls == 3


def test_every_command(world: World, tmp_path: Path) -> None:
    done = world.edit("--set", "max_steps=30")
    assert done.code == 0, done.err + done.out
    status = run("status", world.model, "--json").json
    assert status["recipe"]["name"] == "llava"
    assert {site["name"].rpartition(".")[2] for site in status["sites"] if site["modality"] == "visual"} == {
        "linear_1",
        "linear_2",
    }
    assert run("eval", world.model, "--json").json["metrics"]["rel.tf_exact"]["value"] == 1.0
    merged = run("merge", world.model, "-o", tmp_path / "merged", "--verify", "--json").json
    assert merged["verification"]["lost"] == []
    assert merged["verification"]["largest_logit_gap"] < 1e-4
    base, ours = (load_file(folder / "model.safetensors") for folder in (world.model, tmp_path / "merged"))
    edited = {fold["disk_key"] for fold in merged["folds"]}
    assert all(torch.equal(ours[name], value) for name, value in base.items() if name not in edited)
    assert run("export", world.model, "-o", tmp_path / "adapter").code == 0
