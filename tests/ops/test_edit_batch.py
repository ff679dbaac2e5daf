"""`edit --batch`: keys first, then everything written together; and how a consolidation changes an edit's status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from more_cli import files
from more_cli.editors.more import joint
from more_cli.editors.more.passes import Passes
from more_cli.editors.more.sites import Sites
from more_cli.ops.session import Session
from support.helpers import Result, World, at_call, die, forks, in_child, line, run, tree

JOINT = ("--set", "criterion=margin", "--set", "joint.rounds=40", "--set", "max_steps=2")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, text_layers=2)
    world.edits(5)
    assert run("init", world.model, *JOINT).code == 0
    return world


def test_a_batch_is_written_together(world: World) -> None:
    done = world.edit("--batch", "--json")
    assert done.code == 0, done.err
    assert done.json["counts"] == {"learnt": 5}
    assert done.json["consolidation"]["writes"] > 0
    *edits, last = world.entries()
    assert [(entry["joint"], entry["writes"], entry["greedy_after"]) for entry in edits] == [(True, 0, None)] * 5
    assert (last["kind"], last["since"]) == ("consolidate", 1)
    # 13 tokens of answers, and 4 of each of 5 pictures.
    assert {site["keys"] for site in run("status", world.model, "--json").json["sites"]} == {13, 20}
    assert run("eval", world.model, "--json").json["metrics"]["rel.tf_exact"]["value"] == 1.0
    again = world.edit("--batch")
    assert (again.code, len(world.entries())) == (0, 6)
    assert "0 applied, 5 skipped" in again.out


def test_a_later_batch_leaves_the_first_alone(world: World) -> None:
    world.edit("--batch", "--limit", 2)
    world.edit("--batch")
    assert [entry["since"] for entry in world.entries() if entry["kind"] == "consolidate"] == [1, 4]
    assert [number for number, _ in world.entries()[-1]["looks"]] == [4, 5, 6]


ONE_ROUND = ("--set", "criterion=margin", "--set", "joint.rounds=1", "--set", "rehearsal.size=2")
"""After one round of joint writes no edit holds."""


def test_a_batch_whose_joint_writes_fail_ends_as_the_stream_does(world: World) -> None:
    states = {}
    for name, switch in {"together": ["--batch"], "in turn": []}.items():
        state = world.root / f"{name}.more"
        assert run("init", world.model, *ONE_ROUND, "--state", state).code == 0
        done = world.edit("--state", state, *switch, "--json")
        assert done.json["applied"] == 5
        states[name] = load_file(state)
    assert states["together"].keys() == states["in turn"].keys()
    assert all(torch.equal(states["together"][key], tensor) for key, tensor in states["in turn"].items())


def test_a_few_that_do_not_hold_are_written_one_by_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "FEW", 1.0)
    state = world.root / "few.more"
    assert run("init", world.model, *ONE_ROUND, "--state", state).code == 0
    done = world.edit("--state", state, "--batch", "--json")
    assert (done.code, done.json["counts"]) == (0, {"learnt": 5}), done.err
    # P holds every key once: 13 tokens of answers, and 4 of each of 5 pictures.
    assert {site["keys"] for site in run("status", world.model, "--state", state, "--json").json["sites"]} == {13, 20}


@forks
def test_killed_in_a_batch(world: World, tmp_path: Path) -> None:
    moments = [(Sites, "absorb"), (Session, "count"), (Passes, "write"), (files, "_fsync")]
    copies = {step: world.copy(tmp_path.with_name(f"{tmp_path.name}-{step}")) for step in (1, 5, 11, 16, 21)}
    world.edit("--batch")
    for step, here in copies.items():

        def killed(step: int = step, here: World = here) -> None:
            at_call(step, moments, die)
            here.edit("--batch", "--save-every", 2)

        assert in_child(killed) < 0, step
        assert here.edit("--batch").code == 0, step
        assert here.sidecar.read_bytes() == world.sidecar.read_bytes(), f"killed at step {step}"


@forks
def test_an_unfinished_batch_is_named(world: World) -> None:
    def killed() -> None:
        at_call(1, [(Passes, "write")], die)
        world.edit("--batch")

    in_child(killed)
    plain = world.edit()
    assert plain.code == 3
    assert "an interrupted --batch left edits unwritten" in plain.err
    assert world.edit("--batch").code == 0
    assert "unwritten" not in world.edit().err


def test_edits_that_a_consolidation_corrects_are_learnt(world: World) -> None:
    alone = world.root / "alone.more"
    settings = ("--set", "criterion=margin", "--set", "max_steps=1", "--set", "joint.rounds=40")
    assert run("init", world.model, *settings, "--state", alone).code == 0
    assert world.edit("--state", alone).code == 3
    done = world.edit("--state", alone, "--consolidate", "all", "--json")
    assert (done.code, done.json["counts"]) == (0, {"learnt": 5})


def test_a_recipe_names_its_anchors(world: World) -> None:
    folder = world.root / "recipes"
    folder.mkdir()
    (folder / "held.jsonl").write_text(json.dumps({"question": "a photo of"}) + "\n")
    (folder / "own.toml").write_text(
        '[default]\nstep = "polyak"\nlambda_rel = 0.02\n[anchors]\nsize = 2\nfile = "held.jsonl"\n'
    )
    state = world.root / "own.more"
    done = run("init", world.model, "--recipe", folder / "own.toml", "--state", state)
    assert done.code == 0, done.err
    assert "1 anchor\n" in done.out
    assert "held.jsonl" not in state.read_bytes()[:100_000].decode(errors="replace")
    again = run("init", world.model, "--recipe", folder / "own.toml", "--state", state)
    assert "already exists, unchanged" in again.out
    created = world.root / "created.more"
    world.write([line(0)], "one.jsonl")
    world.edit("--state", created, "--recipe", folder / "own.toml", edits=world.root / "one.jsonl")
    assert "1 anchor (2 per write)" in run("status", world.model, "--state", created).out
    (folder / "held.jsonl").unlink()
    gone = run("init", world.model, "--recipe", folder / "own.toml", "--state", world.root / "none.more")
    assert gone.code == 4
    assert "held.jsonl" in gone.err


@forks
@pytest.mark.parametrize("options", [JOINT, (*JOINT, "--set", "compact=2")])
def test_a_consolidation_of_a_stream_is_the_same_after_a_break(world: World, options: tuple[str, ...]) -> None:
    """A call that ended before it leaves all of the stream to the next, not only what that one applies."""

    def edit(name: str) -> Result:
        return world.edit("--state", world.root / f"{name}.more", "--consolidate", "run", *options)

    edit("whole")
    for name, step, moment in (("edits", 3, (Session, "count")), ("consolidation", 1, (Session, "consolidate"))):

        def killed(name: str = name, step: int = step, moment: tuple[type, str] = moment) -> None:
            at_call(step, [moment], die)
            edit(name)

        assert in_child(killed) < 0
        assert edit(name).code == 0
        state = world.root / f"{name}.more"
        assert state.read_bytes() == (world.root / "whole.more").read_bytes(), name
        before = tree(world.root)
        assert edit(name).code == 0
        assert tree(world.root) == before, "a further call has nothing to consolidate"
