"""Edits beside quantised weights: learnt, resumed, exported, and merged into the full checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from more_cli import files
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import EditRequest
from more_cli.editors.more.sites import Sites
from more_cli.model.keymap import meta_model
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.quantised import keep_differentiable, unpacked
from more_cli.ops.estimate import _weights
from more_cli.ops.session import Session, open_session
from more_cli.store.target import locate
from support import tiny
from support.helpers import COLOURS, QUESTION, World, at_call, die, forks, in_child, line, run
from support.quantised import quantise, quantised_world

LEARNING = ("--set", "max_steps=40", "--set", "rehearsal.draws=30", "--set", "last=1")
TWELVE = [line(n) for n in range(8)] + [
    line(n, id=f"e{n + 9}", question="what is in the image ?", target=COLOURS[n + 4][0]) for n in range(4)
]
KINDS = [(family, scheme) for family in ("llava", "qwen2_vl") for scheme in ("int8", "nf4", "W4A16", "float8")]


@pytest.fixture(scope="module", params=KINDS, ids=" ".join)
def edited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Twelve edits learnt beside quantised weights."""
    family, scheme = request.param
    layers = {"text_layers": 2} if family == "llava" else {}
    world = quantised_world(tmp_path_factory.mktemp("quantised"), scheme, family=family, **layers)
    world.write(TWELVE)
    assert run("init", world.model, *LEARNING).code == 0
    done = world.edit("--json")
    assert done.code == 0, done.out + done.err
    assert [entry["status"] for entry in world.entries()] == ["learnt"] * 12
    return world


def test_an_edit_that_cannot_be_computed_here_leaves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "world", text_layers=1)
    world.edits(1)
    world.model.rename(world.root / "full")
    quantise(world.root / "full", world.model, "nf4")
    refused = world.edit()
    assert refused.code == 5
    assert "bitsandbytes computes nf4 wrongly there on a CPU" in refused.err
    assert not list(world.root.glob("model.more*"))


@pytest.mark.slow
def test_twelve_edits_hold_and_the_state_says_so(edited: World) -> None:
    scores = run("eval", edited.model, "--json").json
    assert scores["edits"] == 12
    assert scores["metrics"]["rel.tf_exact"]["value"] == 1.0, scores
    said = run("ask", edited.model, "--image", edited.root / "img/red.png", QUESTION)
    assert said.code == 0, said.err
    assert run("verify", edited.model).code == 0


@pytest.mark.slow
@forks
def test_resumed_after_a_kill_to_the_same_bytes(edited: World, tmp_path: Path) -> None:
    sidecar = tmp_path / "s.more"
    assert run("init", edited.model, "--state", sidecar, *LEARNING).code == 0

    def killed() -> None:
        at_call(41, [(Sites, "absorb"), (Session, "count"), (files, "_fsync"), (files, "_rename")], die)
        edited.edit("--state", sidecar, "--save-every", 2)

    in_child(killed)
    assert 0 < len(edited.entries(sidecar)) < 12
    assert edited.edit("--state", sidecar, "--save-every", 5).code == 0
    assert sidecar.read_bytes() == edited.sidecar.read_bytes()


@pytest.mark.slow
def test_peft_answers_the_same_on_the_quantised_base(edited: World, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForImageTextToText

    done = run("export", edited.model, "-o", tmp_path / "adapter")
    assert done.code == 0, done.err
    compressed = "compressed-tensors" in str(open_checkpoint(edited.model).scheme)
    assert ("CompressedTensorsConfig(dequantize=True)" in done.err) == compressed
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["base_model_name_or_path"]
    session = open_session(locate(edited.model, None), Machine())
    asked = [EditRequest.of(session.ledger.edit_of(entry)) for entry in session.ledger.standing()]
    with session.attached():
        runtime = session.runtime
        batches = [runtime.batch([runtime.encode(request.query, request.target)]) for request in asked]
        live = [runtime.score(batch).logits for batch in batches]
    base = AutoModelForImageTextToText.from_pretrained(
        edited.model, local_files_only=True, device_map={"": "cpu"}, **unpacked(session.checkpoint)
    )
    keep_differentiable(base)  # else bitsandbytes rounds scales on some processors, and logits differ by 0.01
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert type(base.get_submodule(session.editor.records[0].module)).__module__.startswith("peft.tuners.lora")
    for request, batch, logits in zip(asked, batches, live, strict=True):
        with torch.no_grad():
            theirs = adapted(**batch.inputs).logits[:, batch.keep]
        assert torch.allclose(theirs, logits, atol=2e-2), (request.target, (theirs - logits).abs().max())
        assert theirs.argmax(-1).equal(logits.argmax(-1))


@pytest.mark.slow
def test_merged_into_the_full_checkpoint(edited: World, tmp_path: Path) -> None:
    full = edited.root / "full"
    done = run("merge", edited.model, "-o", tmp_path / "out", "--into", full, "--json")
    assert done.code in (0, 3), done.err
    found = done.json["verification"]
    assert found["edits"] == 12
    assert (done.code == 3) == bool(found["lost"])
    runtime = load_runtime(open_checkpoint(tmp_path / "out"))
    ledger = open_session(locate(edited.model, None), Machine()).ledger
    wrong = []
    for entry in ledger.standing():
        request = EditRequest.of(ledger.edit_of(entry))
        batch = runtime.batch([runtime.encode(request.query, request.target)])
        logits = runtime.score(batch).logits
        if not logits.argmax(-1)[batch.mask].equal(batch.targets[batch.mask]):
            wrong.append(entry.id)
    assert found["lost"] == wrong
    base, merged = tiny.read_weights(full), tiny.read_weights(tmp_path / "out")
    assert {name for name in base if not base[name].equal(merged[name])} == {
        fold["disk_key"] for fold in done.json["folds"]
    }
    assert run("verify", tmp_path / "out", "--deep").code == 0
    assert f"its {open_checkpoint(edited.model).scheme} form" in (tmp_path / "out/README.md").read_text()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One edit beside nf4 weights."""
    world = quantised_world(tmp_path_factory.mktemp("small"), "nf4", text_layers=1)
    world.edits(1)
    assert world.edit("--set", "max_steps=2").code in (0, 3)
    return world


def merge(world: World, out: Path, *options: Any):
    return run("merge", world.model, "-o", out, *options)


def test_merge_says_why_it_cannot_and_what_to_do(small: World, tmp_path: Path) -> None:
    done = merge(small, tmp_path / "out")
    assert done.code == 2
    assert f"`{small.model}` is quantised to nf4: merged into its weights, edits would be rounded away" in done.err
    assert f"hint: more merge {small.model} -o OUT --into BASE" in done.err
    assert not (tmp_path / "out").exists()


def test_edits_that_do_not_hold_in_the_full_checkpoint_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = quantised_world(tmp_path, "int8", text_layers=1)
    world.write([line(0), line(1, id="never", target="zebra crossing " * 5)])
    assert world.edit("--set", "max_steps=10").code == 3
    assert [entry["status"] for entry in world.entries()] == ["learnt", "not-learnt"]
    monkeypatch.setattr("more_cli.ops.folding.fold", lambda W, *_: W.float())
    done = merge(world, tmp_path / "out", "--into", tmp_path / "full")
    assert done.code == 3
    assert "verified: 0 of 2 edits hold in" in done.out
    assert "did not hold beside the quantised weights either: never" in done.err
    again = merge(world, tmp_path / "out", "--into", tmp_path / "full", "--force", "--json")
    assert (again.code, again.json["not_held"]) == (3, ["never"])
    assert "lost beside full-precision weights: e1" in done.err


def test_into_is_for_quantised_models(small: World, tmp_path: Path) -> None:
    full = World(tmp_path / "plain", text_layers=1)
    full.edits(1)
    full.edit("--set", "max_steps=2")
    done = merge(full, tmp_path / "out", "--into", small.root / "full")
    assert (done.code, "is not quantised" in done.err) == (2, True)
    done = merge(small, tmp_path / "out", "--into", small.model)
    assert (done.code, "is quantised to nf4 itself" in done.err) == (2, True)
    done = merge(small, small.root / "full", "--into", small.root / "full", "--force")
    assert (done.code, "lies in, the base checkpoint" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ("language_model.model.layers.0.mlp.down_proj.weight", "times as far from it as nf4 rounds"),
        ("language_model.model.norm.weight", "differs, which is not quantised"),
    ],
)
def test_another_checkpoint_is_not_merged_into(small: World, tmp_path: Path, spoilt: str, said: str) -> None:
    other = shutil.copytree(small.root / "full", tmp_path / "other")
    tensors = tiny.read_weights(other)
    tensors[spoilt] = tensors[spoilt] * 1.2
    tiny.write_weights(other, tensors)
    done = merge(small, tmp_path / "out", "--into", other)
    assert done.code == 5
    assert f"was not made from `{other}`: `{spoilt}`" in done.err
    assert said in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scheme", ["W4A16 asymmetric", "W8A16 naive"])
def test_compressed_weights_are_compared_too(tmp_path: Path, scheme: str) -> None:
    world = quantised_world(tmp_path, scheme, text_layers=1)
    world.edits(1)
    assert world.edit("--set", "max_steps=2").code in (0, 3)
    done = merge(world, tmp_path / "out")
    name = open_checkpoint(world.model).scheme
    assert (done.code, f"is quantised to {name}: merged into" in done.err) == (2, True)
    key = "language_model.model.layers.0.mlp.down_proj.weight"
    tensors = tiny.read_weights(tmp_path / "full")
    tensors[key] = tensors[key] * 1.2
    tiny.write_weights(tmp_path / "full", tensors)
    done = merge(world, tmp_path / "out", "--into", tmp_path / "full")
    assert done.code == 5
    assert f"`{key}` is" in done.err
    assert f"times as far from it as {name} rounds" in done.err
    assert "if its weights were adjusted for it (GPTQ, AWQ, SmoothQuant), none fits" in done.err


def test_a_model_of_another_shape_is_not_merged_into(small: World, tmp_path: Path) -> None:
    other = tiny.tiny_llava(tmp_path / "other", text_layers=2, wide=True)
    done = merge(small, tmp_path / "out", "--into", other)
    assert (done.code, "is of shape" in done.err) == (5, True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scheme", ["int8", "nf4 nested", "W4A16 asymmetric", "W8A16"])
def test_the_full_checkpoint_may_be_of_another_dtype_and_layout(tmp_path: Path, scheme: str, dtype: str) -> None:
    world = World(tmp_path, text_layers=1, layout="old_hub", shards=2, wide=True)
    full = world.model.rename(tmp_path / "full")
    quantise(full, world.model, scheme, dtype=getattr(torch, dtype))
    world.edits(1)
    assert world.edit("--set", "max_steps=2").code in (0, 3)
    done = merge(world, tmp_path / "out", "--into", full, "--dry-run")
    assert done.code == 0, done.err
    assert "would write" in done.out
    assert merge(world, tmp_path / "out", "--into", full).code in (0, 3)
    assert (tmp_path / "out" / tiny.INDEX).exists()


def test_deltas_of_quantised_weights_are_refused(small: World, tmp_path: Path) -> None:
    done = run("export", small.model, "--format", "delta", "-o", tmp_path / "deltas.safetensors")
    assert (done.code, "deltas cannot be added to such weights" in done.err) == (2, True)


@pytest.mark.parametrize(("scheme", "said"), [("W4A16", "in float32"), ("nf4", "in nf4 and float32")])
def test_memory_is_that_of_the_weights_as_they_are_loaded(tmp_path: Path, scheme: str, said: str) -> None:
    world = quantised_world(tmp_path, scheme, text_layers=1)
    checkpoint = open_checkpoint(world.model)
    model = meta_model(checkpoint)
    part = _weights(checkpoint, model)
    whole = 4 * sum(weight.numel() for weight in model.parameters())
    assert part.note == said
    assert (part.bytes == whole) == (scheme == "W4A16")
