"""The estimate of memory for editing, its parts, and the refusal if it exceeds the free memory."""

from pathlib import Path

import pytest
import torch
from torch import nn

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.errors import ResourceError
from more_cli.inputs.images import grey_image
from more_cli.model.activations import Activations
from more_cli.model.batches import Query
from more_cli.model.loading import load_blueprint
from more_cli.model.machine import Machine
from more_cli.ops import estimate as module
from more_cli.ops.estimate import Estimate, estimate
from more_cli.ops.plan import plan
from more_cli.store.state import load_meta
from more_cli.store.target import locate
from support.helpers import QUICK, World, run, run_as_typed
from support.paths import DATA


@pytest.fixture(autouse=True)
def _multiplies_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every processor."""
    monkeypatch.setattr(module, "multiplies_in", lambda _: True)


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


def sizes(world: World) -> tuple[int, int, int]:
    """Return the numbers of values in A, B and P of all sites."""
    state = run("init", world.model)
    assert state.code == 0
    records = load_meta(world.sidecar).sites
    A = sum(record.rank * record.shape[1] for record in records)
    B = sum(record.rank * record.shape[0] for record in records)
    return A, B, sum(record.rank**2 for record in records)


def test_what_sites_hold_follows_from_their_shapes(world: World) -> None:
    A, B, P = sizes(world)
    result = of(world)
    assert part(result, "sites") == 2 * A + (4 + 2) * B + 8 * P  # bfloat16 branches: B is also there rounded
    assert part(of(world, machine=Machine(dtype="float32")), "sites") == 4 * A + 4 * B + 8 * P
    assert part(result, "undo") == 3 * (4 * B + 8 * P)
    assert part(result, "steps") == 4 * B


def test_a_trained_basis_is_written_and_undone_too(world: World) -> None:
    A, B, P = sizes(world)
    result = of(world, "basis_rate=0.1")
    assert part(result, "steps") == 4 * (A + B)
    assert part(result, "undo") == 3 * (4 * (A + B) + 8 * P)


def test_a_pass_is_its_activations_and_logits_and_leaves_holes_on_a_cpu(world: World) -> None:
    chosen = plan(locate(world.model, None), None, ())
    model = load_blueprint(chosen.checkpoint).model.bfloat16()
    activations = Activations.of(model, [site.module for site in chosen.sites])
    result = of(world, "rehearsal.size=4", tokens=100)
    logits = 5 * module.ANSWER * model.config.get_text_config().vocab_size * (2 + 3 * 4)
    assert part(result, "passes") == activations.bytes(5 * 100, "backward") + logits
    assert part(result, "holes") == round(module.HOLES * part(result, "passes"))


def test_the_largest_matrix_counts_where_products_convert_them(world: World, monkeypatch) -> None:
    narrow, wide = of(world), of(world, machine=Machine(dtype="float32"))
    monkeypatch.setattr(module, "multiplies_in", lambda dtype: dtype == torch.float32)
    modules = load_blueprint(open_checkpoint(world.model)).model.modules()
    largest = max(found.weight.numel() for found in modules if isinstance(found, nn.Linear))
    converting = of(world)
    assert part(converting, "passes") == part(narrow, "passes") + 4 * largest
    assert converting.total == narrow.total + 4 * largest
    assert of(world, machine=Machine(dtype="float32")).total == wide.total


def test_gradients_and_steps_count_where_they_are_larger_than_a_pass(world: World, monkeypatch) -> None:
    _, B, _ = sizes(world)
    monkeypatch.setattr(module, "ANSWER", 0)
    assert part(of(world, "rehearsal.size=0", tokens=1), "passes") == 2 * 4 * B


def test_every_shape_of_a_product_in_half_precision_has_a_kernel(world: World, monkeypatch) -> None:
    monkeypatch.setattr(module, "KERNELS", 1000)
    one, two = (part(of(world, f"rehearsal.size={past}"), "kernels") for past in (0, 1))
    assert one > 0
    assert two == 2 * one
    assert part(of(world, machine=Machine(dtype="float32")), "kernels") == 0


def test_no_more_kernels_count_than_are_kept(world: World) -> None:
    assert part(of(world), "kernels") == module.KERNELS * module.KERNEL


def test_past_edits_and_the_anchors_that_are_held_join_a_write(world: World) -> None:
    assert of(world, "rehearsal.size=0").samples == 1
    assert of(world).samples == 17
    assert of(world, "rehearsal.size=0", anchors=4).samples == 1 + 3  # one in four is watched


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


def test_features_are_as_wide_as_the_vision_tower() -> None:
    """Of Qwen2-VL its config names this width `embed_dim`."""
    checkpoint = open_checkpoint(DATA / "qwen2_vl")
    blueprint = load_blueprint(checkpoint)
    vision, sample = blueprint.model.config.vision_config, blueprint.prompter.encode(Query((grey_image(),), "what ?"))
    assert vision.embed_dim < vision.hidden_size
    patches = len(sample.extras["pixel_values"]) * vision.temporal_patch_size
    expected = 2 * blueprint.model.dtype.itemsize * vision.embed_dim * patches
    assert module._features(blueprint.model, sample) == expected


def test_samples_are_split_into_parts_of_limited_memory(world: World, monkeypatch) -> None:
    whole = of(world)
    monkeypatch.setattr("more_cli.model.activations.PART", 1)
    alone = of(world)
    assert next(part.note for part in whole.parts if part.name == "passes") == "17 of 17 samples at a time"
    assert next(part.note for part in alone.parts if part.name == "passes") == "1 of 17 samples at a time"
    assert part(alone, "passes") < part(whole, "passes") / 10


def test_one_sample_is_counted_in_the_singular(world: World) -> None:
    notes = {part.name: part.note for part in of(world, "rehearsal.size=0", "anchors.watched=0", anchors=1).parts}
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
    monkeypatch.setattr("more_cli.ops.init.load_runtime", lambda *_, **__: pytest.fail("the model was loaded"))
    result = run_as_typed("edit", world.model, world.edits(1), *QUICK, "--memory", "0.01")
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
