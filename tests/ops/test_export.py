"""Anchors and consolidation on the command line, and a PEFT adapter against the live state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from more_cli import files
from more_cli.editors.more.sites import Sites
from more_cli.files import sha256_bytes
from more_cli.ops.anchors import read_cache
from more_cli.ops.calibrate import CANDIDATES, GAIN
from more_cli.ops.session import Session
from more_cli.recipe.files import load_recipe
from more_cli.store.state import load_state, save_state
from support.helpers import QUESTION, World, at_call, die, forks, in_child, line, run, tree

LOOP = ("--set", "criterion=margin", "--set", "rehearsal.size=4", "--set", "max_steps=6", "--set", "anchors.prompts=[]")
ANCHORS = [
    {"image": "img/purple.png", "question": "what is in the image ?"},
    {"image": "img/orange.png", "question": QUESTION, "answer": "o"},
    {"question": "a photo of"},
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, text_layers=2)
    world.edits(6)
    world.write(ANCHORS, "anchors.jsonl")
    return world


def init(world: World, *options: object):
    return run("init", world.model, "--anchors", world.root / "anchors.jsonl", *LOOP, *options)


def test_init_with_anchors(world: World) -> None:
    done = init(world)
    assert done.code == 0, done.err
    assert "3 anchors" in done.out
    status = run("status", world.model, "--json").json
    (words,) = {site["keys"] for site in status["sites"] if site["modality"] == "text"}
    assert words > 3, "a key of every token of three answers"
    assert {site["keys"] for site in status["sites"] if site["modality"] == "visual"} == {2 * 4}
    assert all(site["ridge"] for site in status["sites"])
    assert "3 anchors (8 per write, their keys in P)" in run("status", world.model).out
    assert "already exists, unchanged" in init(world).out
    other = run("init", world.model, *LOOP)
    assert other.code == 5
    assert "another set of anchors" in other.err
    assert f"`more anchors add {world.model} FILE` adds some to this one" in other.err


def test_changed_or_lost_anchors_are_one_clear_error(world: World) -> None:
    init(world)
    kept = world.folder / "anchors.jsonl"
    text = kept.read_text()
    kept.write_text(text.replace("photo", "drawing"))
    done = world.edit()
    assert done.code == 5
    assert "anchors.jsonl` has changed" in done.err
    kept.unlink()
    assert world.edit().code == 5


@pytest.mark.parametrize("text", ["\n", "[]\n", '{"question":1}\n', '{"question":"q","image":"../x"}\n', "\xff"])
def test_anchors_of_a_hostile_state_are_one_clear_error(world: World, text: str) -> None:
    init(world)
    (world.folder / "anchors.jsonl").write_bytes(text.encode("latin-1"))
    state = load_state(world.sidecar)
    state.meta.anchors = sha256_bytes(text.encode("latin-1"))
    save_state(world.sidecar, state)
    done = run("status", world.model)
    assert (done.code, done.out) == (5, "")
    assert "anchors.jsonl` is damaged" in done.err


def test_the_cache_of_anchors_changes_no_bit(world: World) -> None:
    init(world)
    world.edit("--limit", 3)
    for cache in (world.folder / "cache").iterdir():
        cache.write_bytes(b"damaged")
    world.edit("--limit", 1)
    for cache in (world.folder / "cache").iterdir():  # whole files, of what cannot be an answer or a direction
        save_file({name: torch.full((3,), 10**9) for name in read_cache(cache)}, cache)
    world.edit("--limit", 1)
    for cache in (world.folder / "cache").glob("directions-*"):
        save_file({"soon": torch.zeros(3)}, cache)
    world.edit()
    disturbed = world.sidecar.read_bytes()
    other = world.root / "other.more"
    init(world, "--state", other)
    world.edit("--state", other)
    assert disturbed == other.read_bytes()


@forks
def test_killed_with_rehearsal_and_consolidation(world: World) -> None:
    """Margins are in the ledger: after any interruption the same edits are rehearsed again."""
    moments = [(Sites, "absorb"), (Session, "count"), (Session, "save"), (files, "_fsync"), (files, "_rename")]
    init(world)
    copies = {step: world.copy(world.root.with_name(f"{world.root.name}-{step}")) for step in (2, 9, 17, 30)}
    world.edit("--consolidate", "all")
    for step, here in copies.items():

        def killed(step: int = step, here: World = here) -> None:
            at_call(step, moments, die)
            here.edit("--consolidate", "all", "--save-every", 2)

        assert in_child(killed) < 0, step
        here.edit()
        if not any(entry["kind"] == "consolidate" for entry in here.entries()):
            here.edit("--consolidate", "all")
        assert here.sidecar.read_bytes() == world.sidecar.read_bytes(), f"killed at step {step}"


def test_consolidation_is_a_line_of_the_ledger(world: World) -> None:
    init(world)
    done = world.edit("--limit", 2, "--consolidate", "run", "--json").json
    assert done["consolidation"]["cost"] > 0
    assert [entry["kind"] for entry in world.entries()] == ["edit", "edit", "consolidate"]
    assert world.entries()[-1]["since"] == 1
    world.edit("--consolidate", "run")
    last = world.entries()[-1]
    assert (last["kind"], last["since"]) == ("consolidate", 4)
    assert [number for number, _ in last["looks"]] == [4, 5, 6, 7]
    assert run("eval", world.model, "--json").json["edits"] == 6
    before = world.sidecar.read_bytes()
    world.sidecar.unlink()
    init(world)
    assert run("eval", world.model).code == 0
    world.edit("--save-every", 1)
    assert world.sidecar.read_bytes() == before


def test_export_peft(world: World, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForImageTextToText

    init(world, "--set", "rank=8", "--set", 'sites=["text.ffn_in","text.ffn_out","projector"]')
    world.edit()
    out = tmp_path / "adapter"
    done = run("export", world.model, "-o", out)
    assert done.code == 0, done.err
    assert "modules of the model" in done.out
    assert run("export", world.model, "-o", out).code == 2
    assert run("export", world.model, "-o", out, "--force").code == 0
    model = AutoModelForImageTextToText.from_pretrained(world.model, dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(model, out).eval()
    assert type(peft.AutoPeftModel.from_pretrained(out).get_base_model()) is type(model), "PEFT finds the base's class"
    from more_cli.editors.base import EditRequest
    from more_cli.model.batches import Query
    from more_cli.model.machine import Machine
    from more_cli.ops.session import open_session
    from more_cli.store.target import locate

    session = open_session(locate(world.model, None), Machine())
    edits = [session.ledger.edit_of(entry) for entry in session.ledger.standing()]
    with session.attached():
        live, batches = [], []
        for edit in edits:
            request = EditRequest.of(edit)
            batches.append(session.runtime.batch([session.runtime.encode(request.query, request.target)]))
            live.append(session.runtime.score(batches[-1]).logits)
        assert Query
    for batch, logits in zip(batches, live, strict=True):
        with torch.no_grad():
            ours = adapted(**batch.inputs, logits_to_keep=batch.keep).logits
        torch.testing.assert_close(ours, logits, atol=1e-5, rtol=1e-5)
    names = {name for name, _ in adapted.named_parameters() if "lora_B" in name}
    config = json.loads((out / "adapter_config.json").read_text())
    assert len(names) == len(config["target_modules"]) == len(session.editor.records)


def test_an_adapter_of_one_rank_says_what_it_loses(world: World, tmp_path: Path) -> None:
    init(world)
    world.edit()
    out, deltas = tmp_path / "adapter", tmp_path / "deltas.safetensors"
    done = run("export", world.model, "-o", out, "--rank", 2, "--json").json
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"], config["alpha_pattern"]) == (2, {}, {})
    vast = run("export", world.model, "-o", tmp_path / "vast", "--rank", 100_000)
    assert (vast.code, (tmp_path / "vast").exists()) == (2, False), "an adapter of gigabytes of zeros"
    assert "no edited weight has a rank above" in vast.err
    assert set(done["kept"]) == set(config["target_modules"]) == set(done["modules"])
    assert run("export", world.model, "-o", deltas, "--format", "delta").code == 0
    whole, made = load_file(deltas), load_file(out / "adapter_model.safetensors")
    disk_keys = {site["module"]: site["disk_key"] for site in run("status", world.model, "--json").json["sites"]}
    for module, part in done["kept"].items():
        A, B = (made[f"base_model.model.{module}.lora_{letter}.weight"] for letter in "AB")
        update = config["lora_alpha"] / 2 * (B @ A)
        lost = (update - whole[disk_keys[module]]).norm() / whole[disk_keys[module]].norm()
        assert float(lost) == pytest.approx((1 - part**2) ** 0.5, abs=1e-3)
    assert min(done["kept"].values()) < 1
    said = run("export", world.model, "-o", out, "--rank", 2, "--force").out
    assert f"the rank keeps {min(done['kept'].values()):.1%} or more of each update; least in " in said
    assert "| update that truncation kept | " in (out / "README.md").read_text()
    refused = run("export", world.model, "-o", deltas, "--format", "delta", "--rank", 2, "--force")
    assert (refused.code, refused.err.splitlines()[0]) == (2, "error: `--rank` is for adapters")


def test_export_delta(world: World, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    init(world, "--set", "rank=8")
    empty = run("export", world.model, "--format", "delta", "-o", tmp_path / "none.safetensors")
    assert empty.code == 5
    assert "no edits to export" in empty.err
    world.edit()
    out = tmp_path / "delta.safetensors"
    assert run("export", world.model, "--format", "delta", "-o", out).code == 0
    assert run("export", world.model, "--format", "delta", "-o", out).code == 2
    assert run("merge", world.model, "-o", tmp_path / "merged").code == 0
    base, merged = (load_file(folder / "model.safetensors") for folder in (world.model, tmp_path / "merged"))
    deltas = load_file(out)
    changed = {name for name, value in base.items() if not torch.equal(value, merged[name])}
    assert set(deltas) == changed
    for name, delta in deltas.items():
        torch.testing.assert_close((base[name].float() + delta).to(base[name].dtype), merged[name])


def calibration(world: World) -> Path:
    lines = [line(number, rephrases=["what hue ?"], locality=[{"question": "a photo of"}]) for number in range(3)]
    return world.write(lines, "calibration.jsonl")


def test_init_with_calibration(world: World) -> None:
    stream = calibration(world)
    done = run("init", world.model, "--calibrate", stream, *LOOP, "--json")
    assert done.code == 0, done.err
    result = done.json["calibration"]
    assert result["n"] == 3
    settings = [trial["setting"] for trial in result["tried"]]
    assert settings[0] == {}
    assert {key for setting in settings for key in setting} == {"default.lambda_rel", "margin", "visual_share"}
    chosen, best = done.json["recipe"], result["tried"][0]["score"]
    before = load_recipe("llava", [word for word in LOOP if word != "--set"]).canonical()
    for key in CANDIDATES:
        top, value = max(
            (trial["score"], trial["setting"][key]) for trial in result["tried"] if key in trial["setting"]
        )
        *parents, leaf = key.split(".")
        ours, theirs = (values[parents[0]] if parents else values for values in (chosen, before))
        assert ours[leaf] == (value if top >= best + GAIN else theirs[leaf])
        best = max(best, top) if top >= best + GAIN else best
    assert json.loads(json.dumps(done.json["sites"]))
    state = run("status", world.model, "--json").json
    assert state["recipe"] == chosen
    assert state["edits"] == 0
    again = run("init", world.model, "--calibrate", stream, *LOOP)
    assert "already exists, unchanged" in again.out
    assert "mean score" in again.out
    assert "another calibration" in run("init", world.model, *LOOP).err
    assert "another recipe" in run("init", world.model, "--calibrate", stream, *LOOP, "--set", "rank=3").err
    assert world.edit().code in (0, 3)


def test_calibration_needs_something_to_measure(world: World) -> None:
    done = run("init", world.model, "--calibrate", world.root / "edits.jsonl", *LOOP)
    assert done.code == 4
    assert "no rephrases and no locality probes" in done.err
    assert not world.sidecar.exists()


def test_recipes_as_published_take_no_anchors(world: World) -> None:
    done = init(world, "--recipe", "paper-llava")
    assert done.code == 2
    assert "recipe `paper-llava` does not use anchors" in done.err
    assert not world.sidecar.exists()


def test_a_past_image_that_is_gone_ends_the_run_and_refuses_nothing(world: World) -> None:
    """The new edit is not at fault: nothing of it is kept, and it is applied once the image is back."""
    world.edit("--limit", 2, "--no-store-images", *LOOP)
    before = world.sidecar.read_bytes()
    gone = world.root / "img" / "red.png"
    gone.rename(world.root / "elsewhere.png")
    world.write([line(number) for number in range(1, 6)])
    done = world.edit("--no-store-images")
    assert done.code == 5
    assert "edit `e1` cannot be rehearsed" in done.err
    assert [entry["id"] for entry in world.entries()] == ["e1", "e2"]
    assert world.sidecar.read_bytes() == before
    (world.root / "elsewhere.png").rename(gone)
    assert world.edit("--no-store-images").code in (0, 3)
    assert "refused" not in {entry["status"] for entry in world.entries()}


def test_nothing_is_exported_over_the_base_or_the_state(world: World) -> None:
    world.edit(edits=world.edits(1))
    before = tree(world.root)
    for out in (
        world.model / "model.safetensors",
        world.model / "adapter",
        world.sidecar,
        world.folder / "ledger.jsonl",
    ):
        for form in ("delta", "peft"):
            refused = run("export", world.model, "-o", out, "--force", "--format", form)
            assert refused.code == 2, refused.err
    assert tree(world.root) == before


def test_a_delta_replaces_a_delta_only(world: World, tmp_path: Path) -> None:
    world.edit(edits=world.edits(1))
    out = tmp_path / "out.safetensors"
    out.write_bytes((world.model / "model.safetensors").read_bytes())
    refused = run("export", world.model, "-o", out, "--force", "--format", "delta")
    assert (refused.code, "holds no deltas of `more`" in refused.err) == (2, True)
    out.unlink()
    assert run("export", world.model, "-o", out, "--format", "delta").code == 0
    assert run("export", world.model, "-o", out, "--format", "delta", "--force").code == 0


def test_an_adapter_of_somebody_else_is_not_replaced(world: World, tmp_path: Path) -> None:
    out = tmp_path / "theirs"
    (out / "checkpoint-500").mkdir(parents=True)
    (out / "adapter_config.json").write_text('{"peft_type": "LORA"}', encoding="utf-8")
    before = tree(out)
    assert world.edit("--limit", 1).code == 0
    assert run("export", world.model, "-o", out, "--force").code == 2
    assert tree(out) == before
    shutil.rmtree(out)
    assert run("export", world.model, "-o", out).code == 0
    (out / "notes.txt").write_text("mine")
    assert "holds more than was written there: notes.txt" in run("export", world.model, "-o", out, "--force").err
    (out / "notes.txt").unlink()
    assert run("export", world.model, "-o", out, "--force").code == 0


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("merge", "export", "out` holds a merged checkpoint, not an adapter"),
        ("export", "merge", "out` holds an adapter, not a merged checkpoint"),
    ],
)
def test_a_merge_and_an_export_do_not_replace_each_other(
    world: World, tmp_path: Path, first: str, second: str, said: str
) -> None:
    """A merged checkpoint may be the base of a state, which would have lost it, and an adapter may be in use."""
    out = tmp_path / "out"
    assert world.edit("--limit", 1).code == 0
    assert run(first, world.model, "-o", out).code == 0
    before = tree(out)
    refused = run(second, world.model, "-o", out, "--force")
    assert refused.code == 2
    assert said in refused.err
    assert tree(out) == before
