"""`more sweep` on a fleet: one stream of edits on many checkpoints, each with its own state, merge or adapter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from more_lab.sweep.fleet import _labelled as fleet_labels
from support.helpers import CALM, LEARNING, REFUSING, Result, World, run, tree
from support.tiny import tiny_llava

FLEET = '[fleet]\nmodels = ["model", "broken", "other/model"]\nedits = "edits.jsonl"\nanchors = false\n'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two edits and three checkpoints: two of the same name, one of them with other weights, and a broken one."""
    world = World(tmp_path_factory.mktemp("fleet") / "world")
    world.edits(2)
    tiny_llava(world.root / "other" / "model", seed=5)
    shutil.copytree(world.model, world.root / "broken")
    (world.root / "broken" / "model.safetensors").write_bytes(b"no weights")
    return world


def fleet(world: World, then: str, out: str, settings: tuple[str, ...] = LEARNING) -> Result:
    (world.root / "fleet.toml").write_text(f'{FLEET}then = "{then}"\nsettings = {json.dumps(settings[1::2])}\n')
    return run("sweep", world.root / "fleet.toml", "-o", world.root / out)


def lines(world: World, out: str) -> dict[str, dict[str, Any]]:
    found = [json.loads(text) for text in (world.root / out / "results.jsonl").read_text().splitlines()]
    return {each["model"]: each for each in found}


def test_each_checkpoint_is_edited_and_merged_and_the_broken_one_named(world: World, tmp_path: Path) -> None:
    before = {name: tree(world.root / name) for name in ("model", "other")}
    result = fleet(world, "merge", "merged")
    assert result.code == 3, result.err
    (failed,) = [text for text in result.out.splitlines() if text.startswith("failed: ")]
    assert failed.startswith("failed: broken: ")
    assert result.err.splitlines()[-2] == "error: 1 of 3 checkpoints failed"
    found = lines(world, "merged")
    assert set(found) == {"model", "model-2"}
    for label, each in found.items():
        assert (each["edits"], each["failed"]) == (2, [])
        assert each["metrics"]["rel.gen_exact"]["value"] == 1.0
        assert each["written"] == f"{label}/merged"
        merged = world.root / "merged" / each["written"]
        assert run("init", merged, "--state", tmp_path / f"{label}.more").code == 0, "a checkpoint like any other"
    one, other = (world.root / "merged" / each["written"] / "model.safetensors" for each in found.values())
    assert one.read_bytes() != other.read_bytes()
    assert {name: tree(world.root / name) for name in before} == before, "no checkpoint of the fleet changes"
    assert not list(world.root.glob("model.more*")), "and none gets a state beside it"
    assert "`broken`" in (world.root / "merged" / "report.md").read_text()


def test_a_second_run_edits_nothing_and_a_mended_checkpoint_joins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (world.root / "merged" / "results.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("more_lab.sweep.fleet.edit_file", None)
        assert fleet(world, "merge", "merged").code == 3
    assert (world.root / "merged" / "results.jsonl").read_bytes() == before
    shutil.copy(world.model / "model.safetensors", world.root / "broken")
    assert fleet(world, "merge", "merged").code == 0
    assert set(lines(world, "merged")) == {"model", "broken", "model-2"}
    (world.root / "broken" / "model.safetensors").write_bytes(b"no weights")


def test_adapters_and_edits_that_do_not_stand(world: World) -> None:
    none = fleet(world, "none", "none", REFUSING)
    assert none.code == 3
    assert lines(world, "none")["model"]["failed"] == ["e1", "e2"]
    assert none.err.splitlines()[-2] == "error: 1 of 3 checkpoints failed", "the broken one"
    page = (world.root / "none" / "report.md").read_text()
    for name in ("model", "model-2"):
        assert f"**`{name}`: edits that do not stand:**\n- `e1`\n- `e2`\n" in page
    exported = fleet(world, "export", "exported")
    assert exported.code == 3
    assert (world.root / "exported" / "model-2" / "adapter" / "adapter_model.safetensors").is_file()


def test_a_dry_run_writes_nothing_and_names_what_cannot_be_run(world: World, tmp_path: Path) -> None:
    (world.root / "fleet.toml").write_text(FLEET)
    planned = run("sweep", world.root / "fleet.toml", "-o", tmp_path / "out", "--dry-run")
    assert (planned.code, "error: 1 of 3 jobs cannot run" in planned.err) == (3, True)
    assert "2 of 2 to run: time unknown; nothing written" in planned.out
    assert "cannot run: broken: " in planned.out
    assert not (tmp_path / "out").exists()


def test_a_state_of_other_edits_is_not_taken_for_this_stream_s(world: World) -> None:
    world.edits(1)
    refused = fleet(world, "merge", "merged")
    world.edits(2)
    assert refused.code == 3
    (failed,) = [text for text in refused.out.splitlines() if text.startswith("failed: model: ")]
    assert "was made of other edits, settings, weights or versions; hint: name another folder with -o, or" in failed
    assert refused.err.splitlines()[-1].startswith("hint: the lines `failed` say why; mend that, then")


def test_a_state_that_is_gone_is_made_again(world: World) -> None:
    fleet(world, "none", "again")
    shutil.rmtree(world.root / "again" / "model")
    fleet(world, "none", "again")
    assert (world.root / "again" / "model" / "model.more").exists()


def test_a_state_that_was_mended_is_scored_and_merged_again(world: World) -> None:
    first = fleet(world, "merge", "mended", REFUSING)
    assert (first.code, lines(world, "mended")["model"]["failed"]) == (3, ["e1", "e2"])
    folder = world.root / "mended" / "model"
    before = (folder / "merged" / "model.safetensors").read_bytes()
    assert run("edit", world.model, "--state", folder / "model.more", "--retry", *CALM).code == 0
    planned = run("sweep", world.root / "fleet.toml", "-o", world.root / "mended", "--dry-run")
    assert "1 of 2 to run" in planned.out, "model-2 stays as it is"
    assert fleet(world, "merge", "mended", REFUSING).code == 3
    assert lines(world, "mended")["model"]["failed"] == []
    assert lines(world, "mended")["model-2"]["failed"] == ["e1", "e2"]
    assert (folder / "merged" / "model.safetensors").read_bytes() != before
    found = lines(world, "mended")
    assert "ledger" not in found["model"], "a ledger holds times: results have the same bytes always"
    part = world.root / "mended" / "parts" / f"{found['model']['key']}.json"
    values = json.loads(part.read_text())
    part.write_text(json.dumps({name: values[name] for name in values if name != "ledger"}))
    planned = run("sweep", world.root / "fleet.toml", "-o", world.root / "mended", "--dry-run")
    assert "1 of 2 to run" in planned.out, "an earlier version did not note what it scored"


def test_no_two_checkpoints_share_a_label() -> None:
    folders = [Path(name) for name in ("x/a", "y/a", "x/a-2", "z/a")]
    assert [label for label, _ in fleet_labels(folders)] == ["a", "a-2", "a-2-2", "a-3"]
