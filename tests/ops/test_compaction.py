"""Compaction: at certain numbers of standing edits all of them are written together again, by itself."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from more_cli import files
from more_cli.editors.memory import Memory
from more_cli.editors.more import joint
from more_cli.editors.more.passes import Moved, Passes
from more_cli.editors.more.watch import Watch
from more_cli.ops import session
from more_cli.ops.session import Session
from more_cli.recipe.files import load_recipe
from more_cli.recipe.schema import GROWTH
from more_cli.store.ledger import Ledger
from more_cli.store.state import load_meta
from support.helpers import (
    COLOURS,
    Result,
    World,
    assert_same_state,
    at_call,
    die,
    forks,
    in_child,
    line,
    run,
)

KEYS = ("compact=2", "criterion=margin", "joint.rounds=40", "max_steps=2", "last=1", "rank_share=0.5")
SETTINGS = tuple(part for key in KEYS for part in ("--set", key))
COUNT = 2 * GROWTH + 1
"""Edits: the stream is compacted after the second and the last but one."""
KINDS = ["edit", "edit", "compact", *["edit"] * (2 * GROWTH - 2), "compact", "edit"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A stream in one call."""
    world = World(tmp_path_factory.mktemp("whole") / "world", text_layers=1)
    world.write([distinct(number) for number in range(COUNT)])
    assert world.edit(*SETTINGS, "--no-anchors").code in (0, 3)
    return world


@pytest.fixture
def world(whole: World, tmp_path: Path) -> World:
    """The same model and edits without a state."""
    copy = whole.copy(tmp_path / "world")
    shutil.rmtree(copy.folder)
    copy.sidecar.unlink()
    return copy


def distinct(number: int) -> dict[str, Any]:
    question = ("what colour is it ?", "who is it ?")[number // len(COLOURS)]
    return line(number % len(COLOURS), id=f"e{number}", question=question)


def edit(world: World, *options: object, **how: Any) -> Result:
    done = world.edit(*SETTINGS, "--no-anchors", *options, **how)
    assert done.code in (0, 3), done.err
    return done


def kinds(world: World) -> list[str]:
    return [entry["kind"] for entry in world.entries()]


def ranks(world: World) -> list[tuple[int, int]]:
    return [(site.rank, site.shape[1]) for site in load_meta(world.sidecar).sites]


def test_all_standing_edits_are_written_together_at_growing_numbers(whole: World) -> None:
    assert kinds(whole) == KINDS
    first, second = (entry for entry in whole.entries() if entry["kind"] == "compact")
    assert [number for number, _ in first["looks"]] == [1, 2]
    assert [number for number, _ in second["looks"]] == [1, 2, *range(4, 2 * GROWTH + 2)]
    assert first["writes"] > 0
    log = run("log", whole.model).out
    assert "compaction-3" in log
    assert "2 edits written anew" in log


def test_ranks_then_reach_all_of_a_site_s_inputs(whole: World, world: World) -> None:
    edit(world, "--limit", 1)
    assert all(rank == width // 2 for rank, width in ranks(world))
    assert all(rank == width for rank, width in ranks(whole))
    assert "compaction at 2 edits, 8 and so on" in run("status", whole.model).out
    assert run("verify", whole.model).code == 0
    assert run("verify", whole.model, "--deep").code == 0


def test_a_state_made_anew_is_that_of_its_anchors_and_edits_alone(world: World) -> None:
    """What was written before leaves no trace: other steps before a compaction end with the same B and P."""
    edit(world, "--limit", 2)
    other = world.root / "other.more"
    run("init", world.model, "--state", other, *SETTINGS, "--set", "max_write=0.01")
    world.edit("--limit", 2, "--state", other)
    one, two = load_file(world.sidecar), load_file(other)
    assert all(torch.equal(one[name], two[name]) for name in one if name.endswith(".P"))


def test_json_and_text_say_what_was_compacted(world: World) -> None:
    done = edit(world, "--limit", 2)
    assert "compaction: 2 edits written anew" in done.out
    again = world.edit("--json", "--limit", 3)
    assert again.json["compactions"] == []
    assert again.json["applied"] == 1


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_two_calls_give_the_bytes_of_one(whole: World, world: World, cut: int) -> None:
    edit(world, "--limit", cut)
    edit(world)
    assert kinds(world) == KINDS
    assert_same_state(world.sidecar, whole.sidecar)


def test_a_pipe_gives_the_bytes_of_a_file(whole: World, world: World) -> None:
    lines = (world.root / "edits.jsonl").read_bytes()
    edit(world, "--image-root", world.root, edits="-", stdin=lines)
    assert_same_state(world.sidecar, whole.sidecar)


@forks
@pytest.mark.slow
def test_killed_at_any_step_of_a_compaction(whole: World, world: World, tmp_path: Path) -> None:
    edit(world, "--limit", 1)
    watched = [(Session, "compact"), (Session, "count"), (Passes, "write"), (Passes, "score"), (files, "_fsync")]

    def steps() -> int:
        here = World.at(shutil.copytree(world.root, tmp_path / "counted"))
        number = tmp_path / "number"

        def count() -> None:
            calls = at_call(0, watched, die)
            edit(here, "--limit", 2)
            number.write_text(str(calls()))

        assert in_child(count) == 0
        return int(number.read_text())

    for step in range(1, steps() + 1):
        here = World.at(shutil.copytree(world.root, tmp_path / f"killed-{step}"))

        def killed(step: int = step, here: World = here) -> None:
            at_call(step, watched, die)
            edit(here, "--limit", 2)

        assert in_child(killed) < 0, step
        edit(here)
        assert kinds(here) == KINDS, f"killed at step {step}"
        assert_same_state(here.sidecar, whole.sidecar)


HARM = Watch.harm


def harmed_at_first(watch: Watch) -> bool:
    """Find a watched anchor too far in the first writes of many edits, whatever the scores say."""
    HARM(watch)
    anchors = watch.watched.anchors if watch.joint else {}
    watch.harmed = [Moved(anchor, 1.0, anchor.tokens) for anchor in list(anchors.values())[1:]]
    return bool(watch.harmed) and watch.passes.tally.writes < 8


@forks
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param((), id="rounds"),
        pytest.param(("--set", "joint.rounds=1"), id="the rest one by one"),
        pytest.param(("--set", "anchors.watched=2", "--anchors", "anchors.jsonl"), id="a watched anchor is too far"),
    ],
)
def test_a_killed_compaction_goes_on_where_it_ended(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    """Killed at one of its writes, the next call makes those that are left, and the bytes are the same."""
    count = 2 * GROWTH
    world.write([{"image": f"img/{colour}.png", "question": "what is it ?"} for colour in COLOURS[:6]], "anchors.jsonl")
    monkeypatch.chdir(world.root)
    monkeypatch.setattr(joint, "FEW", 1.0)
    monkeypatch.setattr(joint, "SIZE", 3)
    monkeypatch.setattr(session, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(Watch, "harm", harmed_at_first)
    assert run("init", world.model, *SETTINGS, *settings).code == 0
    world.edit("--limit", count - 1)
    world.edit("--limit", count, "--no-compact")
    number = tmp_path / "number"

    def writes(here: World) -> int:
        def count_writes() -> None:
            calls = at_call(0, [(Passes, "write")], die)
            run("edit", here.model, here.root / "edits.jsonl", "--limit", count)
            number.write_text(str(calls()))

        assert in_child(count_writes) == 0
        return int(number.read_text())

    def copy(name: str) -> World:
        return World.at(shutil.copytree(world.root, tmp_path / name))

    reference = copy("reference")
    total, left = writes(reference), []
    for step in sorted({1, 2, total // 2, total - 1, total}):
        here = copy(f"killed-{step}")

        def killed(step: int = step, here: World = here) -> None:
            at_call(step, [(Passes, "write")], die)
            run("edit", here.model, here.root / "edits.jsonl", "--limit", count)

        assert in_child(killed) < 0, step
        left.append(writes(here))
        assert_same_state(here.sidecar, reference.sidecar)
        assert not list(here.folder.glob("cache/unfinished-*")), "it ended, so nothing of it is kept"
    assert left[0] == total
    assert left[-1] < total / 2, left


@forks
def test_a_signal_ends_a_compaction_at_once_and_the_next_call_makes_it(whole: World, world: World) -> None:
    def interrupted() -> Result:
        at_call(1, [(joint, "consolidate")], lambda *_: os.kill(os.getpid(), signal.SIGINT))
        return world.edit(*SETTINGS, "--no-anchors")

    assert in_child(interrupted) == 130
    assert kinds(world) == ["edit", "edit"]
    assert run("verify", world.model).code == 0
    edit(world)
    assert_same_state(world.sidecar, whole.sidecar)


@pytest.mark.parametrize("gone", [0, 3, COUNT - 1])
def test_a_revert_gives_the_state_of_a_run_without_the_edit(
    whole: World, world: World, tmp_path: Path, gone: int
) -> None:
    reverted = whole.copy(tmp_path / "reverted")
    assert run("revert", reverted.model, f"e{gone}").code in (0, 3)
    lines = [distinct(number) for number in range(COUNT) if number != gone]
    world.write(lines)
    edit(world)
    history = Ledger(reverted.folder).history
    assert [kind for kind, _ in history.kinds()] == kinds(world)
    one, two = load_file(reverted.sidecar), load_file(world.sidecar)
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_it_is_undone_where_fewer_edits_hold(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(world, "--limit", 1)
    before = ranks(world)
    wrong = iter([0, 1])
    monkeypatch.setattr(joint.JointWrites, "_wrong", lambda _: next(wrong))
    done = edit(world, "--limit", 2)
    assert "undone: fewer edits are right than before" in done.out
    assert ranks(world) == before
    monkeypatch.undo()
    fresh = world.root / "fresh.more"
    run("init", world.model, "--state", fresh, *SETTINGS, "--set", "compact=none")
    world.edit("--limit", 2, "--state", fresh)
    assert_same_tensors(world.sidecar, fresh)


def assert_same_tensors(one: Path, other: Path) -> None:
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_call_says_that_a_compaction_begins_and_how_to_go_on_without(world: World) -> None:
    assert "anew" not in edit(world, "--limit", 1).err
    said = edit(world, "--limit", 2, "--json-lines").err
    assert "2 edits are written anew now, in about 1 minute or less" in said
    assert "hint: --no-compact leaves that to a later call" in said


def test_a_call_without_compaction_leaves_it_to_a_later_one(world: World) -> None:
    assert "anew" not in edit(world, "--no-compact", "--limit", 3).err
    assert kinds(world) == ["edit"] * 3
    assert run("verify", world.model, "--deep").code == 0
    assert "3 edits are written anew" in edit(world, "--limit", 3).err
    assert kinds(world) == ["edit"] * 3 + ["compact"]


def test_a_revert_compacts_nothing_that_was_left_to_a_later_call(world: World) -> None:
    edit(world, "--no-compact", "--limit", 4)
    reverted = run("revert", world.model, "e3")
    assert reverted.code == 0, reverted.err
    assert kinds(world) == ["edit"] * 4 + ["revert"]


def test_rows_that_are_not_orthonormal_are_as_long_after_a_compaction_as_in_the_next_call(world: World) -> None:
    settings = (*SETTINGS, "--set", "basis=gaussian", "--set", "max_write=0.02", "--no-anchors")
    once = world.root / "once.more"
    world.edit(*settings, "--limit", 4, "--state", once)
    for limit in (2, 4):
        world.edit(*settings, "--limit", limit)
    assert kinds(world) == ["edit", "edit", "compact", "edit", "edit"]
    assert_same_tensors(world.sidecar, once)


def test_writing_all_anew_is_the_compaction_that_is_due(world: World) -> None:
    edit(world, "--no-compact", "--limit", 3)
    assert run("edit", world.model, "--consolidate", "anew").code in (0, 3)
    assert kinds(world) == ["edit"] * 3 + ["consolidate"]
    edit(world, "--limit", 3)
    assert kinds(world) == ["edit"] * 3 + ["consolidate"]


def test_only_the_default_compacts_by_itself_and_not_before_a_thousand_edits(world: World) -> None:
    assert {load_recipe(name).compact for name in ("default", "llava", "gemma3")} == {1000}
    assert {load_recipe(name).compact for name in ("paper-llava", "authors", "strict")} == {None}
    assert "compact" not in load_recipe("paper").canonical(), "states of before keep their bytes"
    assert world.edit(*SETTINGS, "--set", "compact=none", "--no-anchors").code in (0, 3)
    assert kinds(world) == ["edit"] * COUNT
    refused = world.edit(*SETTINGS)
    assert refused.code == 5
    assert "another recipe" in refused.err


def test_a_merged_checkpoint_answers_as_the_compacted_state(whole: World, tmp_path: Path) -> None:
    done = run("merge", whole.model, "-o", tmp_path / "merged", "--verify", "--json")
    assert done.code in (0, 3), done.err
    assert done.json["verification"]["lost"] == []


def test_superseded_and_refused_edits_do_not_count() -> None:
    memory = Memory(lambda number: pytest.fail("none is fetched"))
    memory.add(1, "s", "a")
    memory.add(2, "s", "b")
    assert not memory.compaction_due(2)
    memory.add(4, "t", "a")
    assert memory.compaction_due(2)
    memory.together = 2
    assert not memory.compaction_due(2)
    assert not memory.compaction_due(None)
