"""`more diff`: in what two states differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.helpers import LEARNING, QUICK, Result, World, line, run, tree
from support.reverts import Runs


@pytest.fixture(scope="module")
def world(runs: Runs) -> World:
    """States `a` and `b` with a common past; then each goes its own way."""
    here = runs.at(runs.world.root / "diff")
    edit(here, "a", *(line(number) for number in range(4)), options=LEARNING)
    for suffix in ("", ".d"):
        copy = shutil.copytree if suffix else shutil.copyfile
        copy(here.root / f"a.more{suffix}", here.root / f"b.more{suffix}")
    edit(here, "a", line(4), line(6, id="same"), line(6, id="t", question="is it what ?"))
    run("revert", here.model, "e2", "--state", here.root / "b.more")
    edit(
        here,
        "b",
        line(5),
        line(7, id="same"),
        line(6, id="t", question="is it what ?", target="z"),
        line(0, id="x1", target="z"),
    )
    return here


def edit(world: World, name: str, *lines: dict[str, object], options: tuple[str, ...] = ()) -> Result:
    return world.edit(*options, "--state", world.root / f"{name}.more", edits=world.write(lines, f"{name}.jsonl"))


def diff(world: World, *options: object, names: str = "ab") -> Result:
    return run("diff", *options[:1], *(world.root / f"{name}.more" for name in names), *options[1:])


def test_edits_that_are_not_held_alike_are_listed(world: World) -> None:
    before = tree(world.root)
    found = diff(world, "--json")
    assert found.code == 0
    assert tree(world.root) == before
    edits = {each["id"]: each for each in found.json["edits"]}
    assert {id: each["what"] for id, each in edits.items()} == {
        "e1": "with another status", "e2": "with another status", "same": "about something else",
        "t": "with another target", "e5": "only in the first", "e6": "only in the second", "x1": "only in the second",
    }  # fmt: skip
    assert [(edits["e1"][side]["status"]) for side in ("first", "second")] == ["learnt", "superseded"]
    assert edits["e2"]["second"]["status"] == "reverted"
    assert edits["e5"]["second"] is None
    assert [edits["same"][side]["target"] for side in ("first", "second")] == ["o", "p"]
    assert found.json["counts"] == {
        "alike": 2, "with another status": 2, "with another target": 1, "about something else": 1,
        "only in the first": 1, "only in the second": 2,
    }  # fmt: skip
    assert (found.json["same"], found.json["setup"], found.json["asked"], found.json["answers"]) == (
        False,
        {},
        None,
        [],
    )


def test_what_people_see(world: World) -> None:
    rows = [each.split() for each in diff(world).out.splitlines()]
    assert ["e2", "learnt", "reverted", "what", "colour", "is", "it", "?", "g"] in rows
    assert ["e5", "learnt", "-", "what", "colour", "is", "it", "?", "b"] in rows
    assert next(row for row in rows if row[0] == "same")[-3:] == ["o", "|", "p"]
    assert f"2 alike, 2 with another status, 1 only in {world.root / 'a.more'}, " in diff(world).out


def test_a_state_and_its_copy_do_not_differ(world: World, tmp_path: Path) -> None:
    for suffix in ("", ".d"):
        copy = shutil.copytree if suffix else shutil.copyfile
        copy(world.root / f"a.more{suffix}", tmp_path / f"copy.more{suffix}")
    same = run("diff", world.root / "a.more", tmp_path / "copy.more", "--json")
    assert (same.code, same.json["same"], same.json["same_bytes"], same.json["counts"]) == (0, True, True, {"alike": 7})
    assert run("diff", world.root / "a.more", tmp_path / "copy.more").out == "7 alike\nthe files have the same bytes\n"


def test_a_state_that_lacks_lines_of_its_ledger_is_named(runs: Runs, tmp_path: Path) -> None:
    here = runs.at(tmp_path)
    edit(here, "a", line(0), options=QUICK)
    saved = (here.root / "a.more").read_bytes()
    edit(here, "a", line(1), options=QUICK)
    shutil.copytree(here.root / "a.more.d", here.root / "b.more.d")
    (here.root / "b.more").write_bytes(saved)  # as after a crash between ledger and state
    assert f"other bytes: `{here.root / 'b.more'}` lacks lines of its ledger, as after a crash" in diff(here).out


def test_contradictions_are_shown(world: World, runs: Runs, tmp_path: Path) -> None:
    here = runs.at(tmp_path)
    edit(here, "a", line(0), options=QUICK)
    edit(here, "b", line(0, id="x1", target="z"), options=QUICK)
    found = diff(here)
    assert "contradiction: `what colour is it ?` has two targets: `r` in" in found.out
    assert [[each["id"] for each in pair] for pair in diff(here, "--json").json["contradictions"]] == [["e1", "x1"]]


@pytest.mark.usefixtures("silent")
def test_setup_and_anchors_are_compared(runs: Runs, tmp_path: Path) -> None:
    here = runs.at(tmp_path)
    for name, seed, question in (("a", 1, "is it old ?"), ("b", 2, "is it new ?")):
        file = here.root / f"{name}-anchors.jsonl"
        lines = [{"question": text, "image": "img/black.png", "answer": "x"} for text in ("is it big ?", question)]
        file.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
        options = (*QUICK, "--set", "anchors.size=4", "--set", f"seed={seed}")
        run("init", here.model, "--state", here.root / f"{name}.more", "--anchors", file, *options)
    found = diff(here, "--json").json
    assert found["setup"] == {"recipe seed": [1, 2]}
    assert (found["anchors_first"], found["anchors_second"]) == (["is it old ?"], ["is it new ?"])
    assert found["same"] is False
    rows = [each.split() for each in diff(here).out.splitlines()]
    assert ["recipe", "seed", "1", "2"] in rows
    assert ["anchors", "only", "there", "1", "anchor", "1", "anchor"] in rows


def test_answers_that_differ_are_shown(world: World) -> None:
    found = diff(world, world.model, "--answers", "--json")
    assert found.code == 0, found.err
    assert found.json["asked"] == 9  # eight pictures, one with two questions
    said = {each["id"]: [each["first"], each["second"]] for each in found.json["answers"]}
    for id, colour in (("e1", "red"), ("e2", "green"), ("e3", "blue"), ("e6", "white")):
        asked = "--image", world.root / "img" / f"{colour}.png", "what colour is it ?", "--json"
        states = (world.root / f"{name}.more" for name in "ab")
        answers = [run("ask", world.model, *asked, "--state", state).json["answers"]["edited"] for state in states]
        texts = [answer["text"] for answer in answers]
        assert said.get(id, [texts[0]] * 2) == texts, id
    assert said["e1"][1] == "z"
    shown = diff(world, world.model, "--answers").out
    assert f"{len(found.json['answers'])} of 9 answers differ" in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("a.more",), 2, "compares two states, not 1"),
        (("a.more", "b.more", "c.more"), 2, "compares two states, not 3"),
        (("a.more", "none.more"), 5, "no state at `none.more`"),
        (("a.more", "b.more", "--answers"), 2, "no checkpoint folder `a`"),
    ],
)
def test_misuse(world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, message: str) -> None:
    monkeypatch.chdir(world.root)
    refused = run("diff", *words)
    assert (refused.code, message in refused.err, "hint: " in refused.err) == (code, True, True), refused.err
