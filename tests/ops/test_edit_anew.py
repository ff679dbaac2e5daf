"""`edit --consolidate anew`: what was written is taken out, and all edits are written together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from more_cli import files
from more_cli.api import open_model
from more_cli.editors.more import joint
from more_cli.editors.more.editor import Consolidated, MoreEditor
from more_cli.editors.more.joint import HARM, TOO_FEW, Watch, consolidate
from more_cli.editors.more.passes import Attempt, Passes
from more_cli.editors.more.sites import Sites, Snapshot
from more_cli.ops.session import Session
from more_cli.recipe.files import load_recipe
from more_cli.store.state import load_state, save_state
from support.helpers import COLOURS, World, at_call, die, forks, in_child, line, run, tree
from support.refused import assert_refused

JOINT = ("--set", "criterion=margin", "--set", "joint.rounds=40", "--set", "max_steps=2")
HELD = "consolidation: 5 edits written anew"


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("edited"), text_layers=2)
    world.edits(5)
    assert run("init", world.model, *JOINT).code == 0
    assert world.edit().code in (0, 3)
    return world


@pytest.fixture
def world(edited: World, tmp_path: Path) -> World:
    return edited.copy(tmp_path)


def parts(path: Path, kind: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(path).items() if name.endswith(f".{kind}")}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_all_edits_are_written_together_from_nothing(world: World) -> None:
    done = world.edit("--consolidate", "anew")
    assert done.code == 0, done.err
    assert HELD in done.out
    assert "all hold" in done.out
    last = world.entries()[-1]
    assert (last["kind"], last["since"], last["anew"], last["reason"]) == ("consolidate", 1, True, "")
    assert [number for number, _ in last["looks"]] == [1, 2, 3, 4, 5]
    assert run("eval", world.model, "--json").json["metrics"]["rel.tf_exact"]["value"] == 1.0
    assert "5 edits written anew" in run("log", world.model).out


def test_all_anew_takes_at_most_half_a_step_and_a_batch_whole_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, write = list[float](), Sites.write

    def spy(sites: Sites, before: Snapshot, steps: dict[str, Any], share: float = 1.0) -> None:
        shares.append(share)
        write(sites, before, steps, share)

    monkeypatch.setattr(Sites, "write", spy)
    assert world.edit("--consolidate", "anew").code == 0
    assert max(shares) == 0.5
    shares.clear()
    world.edit("--batch", edits=world.write([line(5)], "later.jsonl"))
    assert max(shares) == 1.0


def test_a_consolidation_needs_no_file_of_edits(world: World) -> None:
    other = World.at(shutil.copytree(world.root, world.root.with_name("other")))
    assert world.edit("--consolidate", "anew").code == 0
    done = run("edit", other.model, "--consolidate", "anew")
    assert (done.code, done.out.startswith(HELD)) == (0, True), done.err
    assert same(load_file(world.sidecar), load_file(other.sidecar))
    assert_refused(run("edit", world.model, "--consolidate", "run"), 2, "missing argument EDITS")
    watched = run("edit", world.model, "--consolidate", "anew", "--watch")
    assert_refused(watched, 2, "missing argument EDITS")
    before = tree(world.root)
    none = run("edit", world.model, "--state", world.root / "none.more", "--consolidate", "all")
    assert_refused(none, 5, "no state at")
    assert tree(world.root) == before


def test_nothing_is_left_of_what_was_written_before(world: World) -> None:
    """Two states with another B and another P end with the same B and P."""
    other = world.root / "other.more"
    state = load_state(world.sidecar)
    state.B = {name: 0.5 * B for name, B in state.B.items()}
    state.P = {name: 0.5 * (P + torch.eye(len(P)).to(P)) for name, P in state.P.items()}
    (world.root / "other.more.d").symlink_to(world.sidecar.with_name(world.sidecar.name + ".d"))
    save_state(other, state)
    done = world.edit("--state", other, "--consolidate", "anew")
    assert (done.code, "undone" in done.out) == (0, False), done.err
    world.edit()  # the ledger is the same one: this replays its line
    assert same(parts(world.sidecar, "B"), parts(other, "B"))
    assert same(parts(world.sidecar, "P"), parts(other, "P"))


def test_eval_says_how_edits_that_no_longer_hold_are_written_again(world: World) -> None:
    advice = f"next: more edit {world.model} --consolidate all\n"
    assert advice not in run("eval", world.model).err
    state = load_state(world.sidecar)
    state.B = {name: torch.zeros_like(B) for name, B in state.B.items()}
    save_state(world.sidecar, state)
    scored = run("eval", world.model)
    assert "do not hold, the oldest of them" in scored.out
    assert scored.err.endswith(advice)


def test_it_is_undone_where_fewer_edits_hold(world: World) -> None:
    state = world.root / "one.more"
    few = ("--set", "criterion=margin", "--set", "joint.rounds=1", "--set", "max_steps=20", "--set", "max_write=0.5")
    assert run("init", world.model, *few, "--state", state).code == 0
    assert world.edit("--state", state).code == 0
    B = parts(state, "B")
    done = world.edit("--state", state, "--consolidate", "anew")
    assert f"5 edits written anew (undone: {TOO_FEW})" in done.out
    assert same(parts(state, "B"), B)
    assert TOO_FEW in run("log", world.model, "--state", state).out


def test_a_basis_that_the_state_stores_comes_back_where_it_is_undone(world: World) -> None:
    """P is made anew of other anchors than those that the first A came from, and so is A."""
    state = world.root / "one.more"
    world.write([{"image": f"img/{colour}.png", "question": "what is it ?"} for colour in COLOURS[:6]], "anchors.jsonl")
    world.write([{"image": f"img/{COLOURS[6]}.png", "question": "who is it ?"}], "more.jsonl")
    few = ("criterion=margin", "joint.rounds=1", "max_steps=20", "max_write=0.5", "basis=pca")
    few = (*few, "anchors.prompts=[]", "anchors.watched=2")
    few = tuple(part for key in few for part in ("--set", key))
    assert run("init", world.model, *few, "--anchors", world.root / "anchors.jsonl", "--state", state).code == 0
    world.edit("--state", state)
    assert run("anchors", "add", world.model, world.root / "more.jsonl", "--state", state).code == 0
    before = load_file(state)
    done = world.edit("--state", state, "--consolidate", "anew")
    assert "(undone: " in done.out
    after = load_file(state)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    cache = state.with_name("one.more.d") / "cache"
    assert list(cache.glob("anchors-*"))
    assert not list(cache.glob("directions-*")), "they are those of one A"


@pytest.mark.parametrize(("how", "did"), [("anew", "written anew"), ("all", "checked")])
def test_it_is_undone_where_a_watched_anchor_moves_too_far(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str, did: str
) -> None:
    state = world.root / "watched.more"
    world.write([{"question": "who is it ?"}, {"question": "why ?"}], "anchors.jsonl")
    watching = ("--set", "anchors.watched=2", "--set", "anchors.max_drift=99", "--set", "anchors.size=1")
    anchors = ("--anchors", world.root / "anchors.jsonl", "--set", "anchors.prompts=[]")
    assert run("init", world.model, *JOINT, *watching, *anchors, "--state", state).code == 0
    world.edit("--state", state, "--limit", 2)
    B = parts(state, "B")
    monkeypatch.setattr(Watch, "harm", lambda watch: True)
    done = run("edit", world.model, "--state", state, "--consolidate", how)
    assert f"2 edits {did} (undone: {HARM})" in done.out
    assert same(parts(state, "B"), B)
    assert HARM in run("log", world.model, "--state", state).out


def test_a_batch_that_breaks_the_harm_budget_is_written_edit_by_edit(world: World) -> None:
    world.write([{"question": "who is it ?"}, {"question": "why ?"}], "anchors.jsonl")
    strict = ("--set", "anchors.watched=2", "--set", "anchors.max_drift=1e-9", "--set", "anchors.size=1")
    anchors = ("--anchors", world.root / "anchors.jsonl", "--set", "anchors.prompts=[]")
    states = [world.root / "batch.more", world.root / "stream.more"]
    for state, how in zip(states, (("--batch",), ()), strict=True):
        assert run("init", world.model, *JOINT, *strict, *anchors, "--state", state).code == 0
        assert world.edit("--state", state, "--limit", 2, *how).code == 3
        assert not any(B.any() for B in parts(state, "B").values()), "every edit is refused"


@pytest.mark.parametrize("rounds", [16, 1], ids=["within the rounds", "after the last"])
def test_an_anchor_that_joint_writing_harms_takes_part_in_the_writes_that_follow(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint, "SIZE", 2)
    written: list[tuple[list[int], list[str]]] = []
    harm = iter([["a", "b"], ["a"], []])
    learnt = set[int]()

    class Found:
        def harm(self) -> bool:
            self.harmed = [SimpleNamespace(anchor=anchor) for anchor in next(harm)]
            return bool(self.harmed)

    class Held:
        margin = 2.0
        recipe = load_recipe("default", [f"joint.rounds={rounds}"])
        attempt = Attempt()

        def score(self, numbers: list[int]) -> dict[int, SimpleNamespace]:
            return {number: SimpleNamespace(margin=number) for number in numbers}

        def failing(self) -> list[int]:
            return []

        def holds(self, score: SimpleNamespace) -> bool:
            return score.margin in learnt

        def steps(self, chosen: list[int], *, rescore: bool) -> dict[str, object]:
            self.scores = self.score(chosen)
            return {}

        def write(self, chosen: list[int], steps: object) -> str:
            written.append((chosen, [*self.attempt.harmed]))
            learnt.update(chosen)
            return ""

    assert consolidate(range(9, 0, -1), Held(), watch=Found()) == ([], False)
    assert [chosen for chosen, _ in written[:5]] == [[1, 2], [3, 4], [5, 6], [7, 8], [9]]
    least_sure = [[1, 2], [3, 4], [5, 6]]
    assert written[5:] == [(chosen, ["a", "b"]) for chosen in [*least_sure, *least_sure]]


@pytest.mark.parametrize(("share", "rounds"), [(1.0, 6), (0.5, 12)])
def test_joint_writing_gives_up_where_nearly_all_edits_go_on_failing(share: float, rounds: int) -> None:
    written = []

    class Stuck:
        margin = 2.0
        recipe = load_recipe("default")
        attempt = Attempt(max_step=share)

        def score(self, numbers: list[int]) -> dict[int, SimpleNamespace]:
            return {number: SimpleNamespace(margin=-1.0) for number in numbers}

        def failing(self) -> list[int]:
            return list(self.scores)

        def holds(self, score: SimpleNamespace) -> bool:
            return False

        def steps(self, chosen: list[int], *, rescore: bool) -> dict[str, object]:
            self.scores = self.score(chosen)
            return {}

        def write(self, chosen: list[int], steps: object) -> str:
            written.append(len(chosen))
            return ""

    assert consolidate(range(1, 41), Stuck()) == (list(range(1, 41)), False)
    assert written == [16, 16, 8] * rounds


@pytest.mark.parametrize("together", [{"batch": True}, {"consolidate": "all"}, {"consolidate": "anew"}], ids=str)
def test_writing_together_says_how_far_it_is(tmp_path: Path, together: dict[str, Any]) -> None:
    world, told = World(tmp_path, text_layers=2), set[tuple[int, int | None, str]]()
    world.edits(4)
    settings = ("max_steps=2", "criterion=margin", "last=1")
    with open_model(world.model, settings=settings, progress=lambda *step: told.add(step)) as model:
        model.edit(world.root / "edits.jsonl", anchors=False, **together)
    assert (0, 4, "writing edits together, round 1") in told


def test_an_edit_that_it_loses_has_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = MoreEditor.write_anew

    def losing(*args, **how) -> Consolidated:
        done = whole(*args, **how)
        return replace(done, failing=[2], margins={**done.margins, 2: -0.5})

    world.edit("--consolidate", "all")
    second = world.entries()[1]["id"]
    with monkeypatch.context() as patch:
        patch.setattr(MoreEditor, "write_anew", losing)
        done = world.edit("--consolidate", "anew")
        alone = run("edit", world.model, "--consolidate", "anew")
    assert (alone.code, "no edit arrived" in alone.err) == (3, False), "it is about all edits of the state"
    assert f"failed edits: {second}" in alone.err
    assert done.code == 3
    assert "4 learnt, 1 not learnt" in done.out
    assert "some still do not hold" in done.out
    assert f"failed edits: {second}" in done.err
    failed = run("status", world.model, "--json").json["failed"]
    assert [(edit["id"], edit["reason"]) for edit in failed] == [(second, "wrong since a consolidation")]
    assert world.edit("--consolidate", "all").code == 0, "the last consolidation says that it is right"


def test_edits_of_an_interrupted_batch_are_written_too(tmp_path: Path) -> None:
    world = World(tmp_path, text_layers=2)
    world.edits(4)
    assert run("init", world.model, *JOINT).code == 0
    assert world.edit("--limit", "2").code in (0, 3)
    done = world.edit("--batch", "--consolidate", "anew", "--json")
    assert (done.code, done.json["counts"]) == (0, {"learnt": 4}), done.err
    assert [entry["kind"] for entry in world.entries()] == ["edit"] * 4 + ["consolidate"]
    assert world.edit("--batch").code == 0


@forks
def test_killed_while_it_is_written(edited: World, world: World, tmp_path: Path) -> None:
    world.edit("--consolidate", "anew")
    for step in (1, 3, 5, 6):
        here = edited.copy(tmp_path / f"killed-{step}")

        def killed(step: int = step, here: World = here) -> None:
            at_call(step, [(Session, "count"), (Passes, "write"), (files, "_fsync")], die)
            here.edit("--consolidate", "anew")

        assert in_child(killed) < 0, step
        if not any(entry["kind"] == "consolidate" for entry in here.entries()):
            assert here.edit("--consolidate", "anew").code == 0, step
        else:
            assert here.edit().code == 0, step
        assert here.sidecar.read_bytes() == world.sidecar.read_bytes(), f"killed at step {step}"


def test_a_revert_writes_the_others_anew_again(world: World) -> None:
    world.edit("--consolidate", "anew")
    first = world.entries()[0]["id"]
    assert run("revert", world.model, first).code == 0
    kinds = [entry["kind"] for entry in world.entries()]
    assert kinds[-5:] == ["edit"] * 4 + ["consolidate"]
    assert world.entries()[-1]["anew"]
    assert run("verify", world.model).code == 0


def test_retry_takes_no_consolidation(world: World) -> None:
    done = run("edit", world.model, "--retry", "e1", "--consolidate", "anew")
    assert done.code == 2
    assert "`--retry` and `--consolidate` exclude each other" in done.err
