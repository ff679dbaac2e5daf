"""`more anchors add`: anchors for a state that has edits already."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from more_cli.editors.anchors import Anchor, ReadKeys
from more_cli.inputs.edits import Probe
from more_cli.model.batches import Batch, Encoded, Query
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.model.vision import VisionCache
from more_cli.ops import anchors
from support.helpers import Result, World, line, run
from support.refused import assert_refused

HELD = ("--set", "max_steps=4", "--set", "rehearsal.size=0", "--set", "anchors.size=2", "--set", "anchors.keys=true")
HELD += ("--set", "anchors.watched=0", "--set", "halvings=0", "--set", "anchors.prompts=[]")
ANCHORS = [{"question": "is it a dog ?"}, {"question": "who is it ?", "image": "img/black.png", "answer": "a fox"}]


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("edited"))
    world.edits(3)
    world.edit(*HELD)
    world.write(ANCHORS, "anchors.jsonl")
    return world


@pytest.fixture
def world(edited: World, tmp_path: Path) -> World:
    return edited.copy(tmp_path)


def add(world: World, *options: object) -> Result:
    return run("anchors", "add", world.model, world.root / "anchors.jsonl", *options)


def test_a_line_of_the_ledger_says_so_and_later_writes_hold_them(world: World) -> None:
    before = world.sidecar.read_bytes()
    done = add(world, "--json")
    assert done.code == 0, done.err
    assert done.json == {"schema": "more.anchors/1", "state": str(world.sidecar), "added": 2, "repeated": 0} | {
        "anchors": 2, "replayed": 0,
    }  # fmt: skip
    assert world.sidecar.read_bytes() != before
    last = world.entries()[-1]
    assert (last["kind"], last["id"], last["anchors"]) == ("anchors", "anchors-4", 2)
    world.write([line(5, id="held")])
    world.edit()
    edit = world.entries()[-1]
    assert edit["cost"] == pytest.approx(
        (edit["writes"] + 1) / 3 + 3 * edit["writes"], abs=0.01
    )  # itself and 2 anchors
    assert run("status", world.model, "--json").json["anchors"] == 2


def test_the_base_is_asked_new_questions_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    add(world)
    world.write([*ANCHORS, {"question": "is it old ?"}], "anchors.jsonl")
    asked, ask = [], anchors.ask_base

    def counted(runtime: Runtime, question: Probe, keys: ReadKeys | None) -> Anchor:
        asked.append(question.question)
        return ask(runtime, question, keys)

    with monkeypatch.context() as patch:
        patch.setattr(anchors, "ask_base", counted)
        assert add(world, "--json").json["added"] == 1
    assert asked == ["is it old ?"]
    for file in (world.folder / "cache").iterdir():
        file.unlink()
    assert run("verify", world.model, "--deep").code == 0, "whoever asks all of them gets the same bytes"


def test_init_runs_the_vision_tower_once_a_picture(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is asked about it, and its key goes into P."""
    seen, see = list[str](), VisionCache._recorded

    def saw(cache: VisionCache, run: Callable[[], object]) -> Any:
        seen.append("a picture")
        return see(cache, run)

    monkeypatch.setattr(VisionCache, "_recorded", saw)
    done = run(
        "init", world.model, *HELD, "--anchors", world.root / "anchors.jsonl", "--state", world.root / "new.more"
    )
    assert (done.code, len(seen)) == (0, 1), done.err


def test_init_measures_the_answer_and_the_keys_of_an_anchor_in_one_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, score = list[int](), Runtime.score

    def counted(runtime: Runtime, batch: Batch, **recorded: Any) -> Scored:
        passes.append(len(batch))
        return score(runtime, batch, **recorded)

    monkeypatch.setattr(Runtime, "score", counted)
    done = run(
        "init", world.model, *HELD, "--anchors", world.root / "anchors.jsonl", "--state", world.root / "new.more"
    )
    assert (done.code, passes) == (0, [1, 1]), done.err


def test_no_model_is_loaded_if_all_are_held_already(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    add(world)
    before = world.sidecar.read_bytes(), len(world.entries())
    monkeypatch.setattr("more_cli.ops.session.load_runtime", lambda *_, **__: pytest.fail("the model was loaded"))
    done = add(world, "--json")
    assert (done.json["added"], done.json["repeated"], done.json["anchors"]) == (0, 2, 2)
    assert (world.sidecar.read_bytes(), len(world.entries())) == before


def test_an_anchor_that_no_write_draws_is_not_encoded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("cat", "dog", "fox", "bird", "red", "blue", "big", "old", "wet", "here", "there", "black")
    asked = [f"is it a {word} or a {word} ?" for word in words]
    world.write([{"question": question} for question in asked], "anchors.jsonl")
    add(world)
    encoded, encode = list[str](), Prompter.encode

    def counted(prompter: Prompter, query: Query, target: str | None = None) -> Encoded:
        encoded.append(query.question)
        return encode(prompter, query, target)

    monkeypatch.setattr(Prompter, "encode", counted)
    world.write([line(5)])
    world.edit()
    found = [question for question in encoded if question in asked]
    assert 0 < len(set(found)) == len(found) < len(asked), "two for each of three writes"


def test_replay_revert_and_verify_go_through_it(world: World) -> None:
    add(world)
    world.write([line(4), line(5)])
    world.edit()
    before = world.sidecar.read_bytes()
    checked = run("verify", world.model, "--deep")
    assert checked.code == 0, checked.out
    assert "2, unchanged since they were added" in checked.out
    world.sidecar.unlink()
    world.edit(*HELD)
    assert world.sidecar.read_bytes() == before
    reverted = run("revert", world.model, "e2", "--json")
    assert reverted.code in (0, 3), reverted.err
    assert run("status", world.model, "--json").json["anchors"] == 2
    assert run("verify", world.model, "--deep").code == 0
    assert run("gc", world.model).code == 0
    assert run("verify", world.model, "--deep").code == 0


def test_a_revert_before_it_gives_the_bytes_of_a_run_without_the_edit(world: World) -> None:
    add(world)
    run("revert", world.model, "e2")
    other = world.root / "other.more"
    world.write([line(0), line(2)])
    world.edit(*HELD, "--state", other)
    assert add(world, "--state", other).code == 0
    assert world.sidecar.read_bytes() == other.read_bytes()


def test_more_anchors_are_added_to_those_of_init(world: World, tmp_path: Path) -> None:
    state = world.root / "held.more"
    run("init", world.model, *HELD, "--anchors", world.root / "anchors.jsonl", "--state", state)
    world.edit("--state", state)
    world.write([*ANCHORS, {"question": "why ?"}], "anchors.jsonl")
    done = add(world, "--state", state)
    assert f"1 anchor added, 2 known already; {state} holds 3 from now on" in done.out
    listed = run("anchors", "list", world.model, "--state", state, "--json").json
    assert [anchor["question"] for anchor in listed["anchors"]] == ["is it a dog ?", "who is it ?", "why ?"]
    assert "3 anchors" in run("anchors", "list", world.model, "--state", state).out
    assert run("verify", world.model, "--deep", "--state", state).code == 0
    count = len(world.entries(state))
    assert "0 anchors added, 3 known already" in add(world, "--state", state).out
    assert len(world.entries(state)) == count


def test_anchors_of_a_state_without_edits_are_those_of_init(world: World) -> None:
    late, early = world.root / "late.more", world.root / "early.more"
    run("init", world.model, *HELD, "--state", late)
    add(world, "--state", late)
    run("init", world.model, *HELD, "--anchors", world.root / "anchors.jsonl", "--state", early)
    for state in (late, early):
        world.edit("--state", state)
    held = [
        [entry["nll_after"] for entry in world.entries(state) if entry["kind"] == "edit"] for state in (late, early)
    ]
    assert held[0] == pytest.approx(held[1], rel=0.5)  # other places in the history draw other anchors
    assert run("verify", world.model, "--deep", "--state", late).code == 0


def test_mistakes(world: World) -> None:
    state = world.root / "plain.more"
    run("init", world.model, "--state", state, "--set", "anchors.size=0", "--set", "anchors.keys=false")
    assert_refused(add(world, "--state", state), 2, "does not use anchors", "--set anchors.size=8")
    assert_refused(add(world, "--state", world.root / "none.more"), 5, "no state")
    assert not (world.root / "none.more.d").exists()
    world.write([{"questions": "?"}], "anchors.jsonl")
    assert_refused(add(world), 4, "anchors.jsonl:1: unknown field `questions`; did you mean `question`?")


def test_a_crash_before_the_state_is_written_is_made_good(world: World) -> None:
    before = world.sidecar.read_bytes()
    add(world)
    after = world.sidecar.read_bytes()
    world.sidecar.write_bytes(before)  # the ledger has the line, the state does not
    assert run("status", world.model, "--json").json["behind"] == 1
    assert "replayed 1 " in world.edit(*HELD).err
    assert world.sidecar.read_bytes() == after


def test_a_crash_before_the_ledger_line_leaves_nothing_that_counts(world: World) -> None:
    (world.folder / "anchors-0123456789abcdef.jsonl").write_text('{"question": "lost ?"}\n')
    assert run("anchors", "list", world.model, "--json").json["anchors"] == []
    assert run("verify", world.model).code == 0
    assert "anchors-0123456789abcdef.jsonl" in run("gc", world.model, "--json").json["files"]


def test_a_folder_that_is_not_writable_costs_time_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    older = world.sidecar.read_bytes()
    add(world)
    newer = world.sidecar.read_bytes()
    world.sidecar.write_bytes(older)  # behind its ledger, as after a kill
    shutil.rmtree(world.folder / "cache")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(anchors, "replacing", refused)
    assert run("ask", world.model, "is it a dog ?", "--max-tokens", 2).code == 0
    assert run("merge", world.model, "-o", world.root / "out").code == 0
    assert (world.sidecar.read_bytes(), (world.folder / "cache").exists()) == (older, True)
    monkeypatch.undo()
    assert run("edit", world.model, world.root / "edits.jsonl").code in (0, 3)
    assert world.sidecar.read_bytes() == newer


def test_log_init_status_and_switch_name_a_ledger_that_is_missing(world: World) -> None:
    shutil.rmtree(world.folder)
    for command in (("log",), ("init", "--no-anchors"), ("status",)):
        assert_refused(run(command[0], world.model, *command[1:]), 5, "holds 3 edits, and their ledger", "is missing")
    assert "holds 3 edits" in run("switch", world.model, "main").out
    assert not world.folder.exists()


def test_another_answer_to_a_question_that_is_held_is_refused(world: World) -> None:
    assert add(world).code == 0
    before = world.sidecar.read_bytes()
    world.write([ANCHORS[1] | {"answer": "a wolf"}], "anchors.jsonl")
    assert_refused(add(world), 4, "anchors.jsonl:1: gives another answer (`a wolf`, there `a fox`)", "is held")
    assert before == world.sidecar.read_bytes()
    world.write([ANCHORS[1] | {"question": "Who  is it ?"}], "anchors.jsonl")
    assert "0 anchors added, 1 known already" in add(world).out


def test_anchors_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write([ANCHORS[1], ANCHORS[1] | {"answer": "a wolf"}], "anchors.jsonl")
    found = run("init", world.model, "--anchors", world.root / "anchors.jsonl", *HELD)
    assert_refused(found, 4, "anchors.jsonl:2: gives another answer (`a wolf`, there `a fox`) than line 1")
    assert not world.sidecar.exists()
