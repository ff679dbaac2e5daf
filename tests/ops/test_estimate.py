"""The estimate of memory for editing, its parts, and the refusal if it exceeds the free memory."""

from pathlib import Path

import pytest

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.errors import ResourceError
from more_cli.model.machine import Machine
from more_cli.ops.estimate import Estimate, estimate
from more_cli.ops.init import plan
from more_cli.store.target import locate
from support.helpers import QUICK, World, run


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, dtype="bfloat16")


def of(world: World, *settings: str, machine: Machine | None = None, **asked: int) -> Estimate:
    chosen = plan(locate(world.model, None), None, settings)
    return estimate(chosen.checkpoint, chosen.sites, chosen.recipe, machine or Machine(), **asked)


def part(result: Estimate, name: str) -> int:
    return next(part.bytes for part in result.parts if part.name == name)


def test_weights_are_those_of_the_headers_in_the_dtype_they_are_loaded_in(world: World) -> None:
    tensors = open_checkpoint(world.model).tensors.values()
    on_disk = sum(entry.stop - entry.start for entry in tensors)
    assert part(of(world), "weights") == on_disk
    assert part(of(world, machine=Machine(dtype="float32")), "weights") == 2 * on_disk


def test_the_state_is_as_large_as_its_file(world: World) -> None:
    assert run("init", world.model).code == 0
    result = run("status", world.model, "--estimate", "--json").json["estimate"]
    header = 8 + int.from_bytes(world.sidecar.read_bytes()[:8], "little")
    assert result["state"] == world.sidecar.stat().st_size - header


def test_longer_sequences_wider_sites_and_more_samples_take_more(world: World) -> None:
    result = of(world)
    assert part(of(world, tokens=10 * result.tokens), "passes") > 5 * part(result, "passes")
    assert part(of(world, 'sites=["text.ffn_out"]', "last=1"), "passes") < part(result, "passes")
    assert part(of(world, "rank=4"), "sites") < part(result, "sites")
    assert of(world, anchors=100).samples == result.samples + 8
    assert part(of(world, anchors=100), "images") > part(result, "images")


def test_samples_are_split_into_parts_of_limited_memory(world: World, monkeypatch) -> None:
    whole = of(world)
    monkeypatch.setattr("more_cli.model.activations.PART", 1)
    alone = of(world)
    assert next(part.note for part in whole.parts if part.name == "passes") == "17 of 17 samples at a time"
    assert next(part.note for part in alone.parts if part.name == "passes") == "1 of 17 samples at a time"
    assert part(alone, "passes") < part(whole, "passes") / 10


def test_one_sample_is_counted_in_the_singular(world: World) -> None:
    notes = {part.name: part.note for part in of(world, "rehearsal.size=0", "anchors.size=1", anchors=1).parts}
    assert (notes["passes"], notes["images"]) == ("2 of 2 samples at a time", "of 2 samples and 1 anchor")
    notes = {part.name: part.note for part in of(world, "rehearsal.size=0").parts}
    assert (notes["passes"], notes["images"]) == ("1 of 1 sample at a time", "of 1 sample")


def test_text_shows_the_parts_and_json_the_bytes(world: World) -> None:
    said = run("status", world.model, "--estimate", "--memory", "3")
    assert "weights" in said.out
    assert "in bfloat16" in said.out
    assert "free: 3.00 GiB" in said.out
    result = run("status", world.model, "--estimate", "--json", "--dtype", "float32", "--tokens", "77").json["estimate"]
    assert result["tokens"] == 77
    assert result["total"] == sum(result["parts"].values())
    assert run("status", world.model, "--json").json["estimate"] is None


def test_too_little_memory_is_refused_before_a_weight_is_loaded(world: World, monkeypatch) -> None:
    monkeypatch.setattr("more_cli.ops.session.load_runtime", lambda *_, **__: pytest.fail("the model was loaded"))
    result = run("edit", world.model, world.edits(1), *QUICK, "--memory", "0.01")
    assert result.code == ResourceError.exit_code
    assert "0.0 GiB are free (weights 0.0, sequences of" in result.err
    for knob in ("--dtype", "--device", "--device-map", "--set", "--memory", "--estimate"):
        assert knob in result.err
    assert not (world.folder / "ledger.jsonl").exists()


def test_memory_sets_what_is_free(world: World, monkeypatch) -> None:
    monkeypatch.setattr("more_cli.model.machine.free_memory", lambda: 1)
    world.edits(1)
    assert world.edit(*QUICK).code == ResourceError.exit_code
    assert world.edit("--memory", "4").code in (0, 3)


def test_without_a_dtype_in_the_config_the_weights_on_disk_decide(world: World) -> None:
    config = world.model / "config.json"
    config.write_text(config.read_text().replace('"dtype": "bfloat16",', ""))
    assert '"dtype"' not in config.read_text()
    result = of(world)
    assert result.parts[0].note == "in bfloat16"
