"""Failed edits: what the ledger says of them, and `more edit --retry`."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from more_cli.store.ledger import Ledger
from more_cli.store.status import Status
from more_cli.text import plain
from support.helpers import CALM, REFUSING, World, line, run, tree
from support.refused import assert_refused


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("refusing"))
    world.edits(3)
    assert world.edit(*REFUSING).code == 3
    return world


@pytest.fixture
def refused(refusing: World, tmp_path: Path) -> World:
    return refusing.copy(tmp_path)


def retry(world: World, *words: object) -> object:
    return run("edit", world.model, "--retry", *words)


def test_the_ledger_holds_what_the_model_says(world: World) -> None:
    world.edits(2)
    before = answers(world, "e1", "e2")
    assert world.edit(*CALM).code == 0
    first, second = world.entries()
    assert first["greedy_before"].removesuffix("...") == before["e1"][: len(first["greedy_before"].removesuffix("..."))]
    assert (first["greedy_after"], first["right_after"]) == ("r", True)
    assert second["greedy_after"] == "g"
    assert {"forced_before", "forced_after"} <= first.keys()
    shown = run("log", "show", "e1", world.model).out
    assert f"base           {plain(first['greedy_base'])[:3]}" in shown
    assert "before this edit" not in shown, "the model was the base"


def test_the_ledger_holds_what_the_base_says_also_after_earlier_edits(world: World) -> None:
    """The second edit gives the first one's question another target: before it, the model is not the base."""
    world.write([line(0)])
    base = answers(world, "e1")["e1"]
    assert world.edit(*CALM).code == 0
    world.write([line(0, id="other", target="b")])
    assert world.edit().code == 0
    first, second = world.entries()
    assert first["greedy_base"] == first["greedy_before"]
    assert second["greedy_before"] == "r"
    for entry in (first, second):
        said = entry["greedy_base"].removesuffix("...")
        assert said == base[: len(said)] != ""
    shown = run("log", "show", "other", world.model)
    assert f"base              {plain(second['greedy_base'])[:3]}" in shown.out
    assert "before this edit  r\n" in shown.out
    assert run("log", "show", "other", world.model, "--json").json["edit"]["answer_base"] == second["greedy_base"]


def answers(world: World, *ids: str) -> dict[str, str]:
    """What the untouched base says."""
    state = world.root / "base.more"
    probes = world.write(
        [{"id": id, "image": line(number)["image"], "question": line(number)["question"], "answer": "x" * 40}
         for number, id in enumerate(ids)], "probes.jsonl",
    )  # fmt: skip
    run("init", world.model, "--state", state)
    scored = run("eval", world.model, "--state", state, "--probes", probes, "--json").json
    return {item["id"]: item["answer"] for item in scored["failing"]}


def test_a_refused_edit_says_the_same_after_as_before(refused: World) -> None:
    for entry in refused.entries():
        assert entry["status"] == "refused"
        assert entry["greedy_after"] == entry["greedy_before"] != ""


def test_lines_of_older_versions_keep_their_forced_answers(world: World) -> None:
    ledger = Ledger(world.root / "old.more.d")
    ledger.append({"id": "a", "status": Status.LEARNT, "answer_before": "no a", "answer_after": "yes"})
    entry = Ledger(ledger.folder).entries[0]
    assert (entry.forced_before, entry.forced_after) == ("no a", "yes")
    assert (entry.greedy_before, entry.greedy_after) == (None, None)


def test_a_reason_says_what_may_help(refused: World) -> None:
    reasons = [entry["reason"] for entry in refused.entries()]
    assert all("a write is not finite" in reason for reason in reasons)
    assert all("`--retry` with `--set max_write=2.5e+29` may help" in reason for reason in reasons)


def test_a_reason_names_the_edits_that_pull_against(world: World) -> None:
    asked = {"a": ("is it a dog ?", "yes"), "b": ("is it a dog", "no"), "c": ("is it the dog ?", "blue")}
    about = [line(0, id=id, question=question, target=target) for id, (question, target) in asked.items()]
    world.write([line(0), line(1), *about])
    steps = "--set", "max_steps=6", "--set", "halvings=0", "--set", "loss=nll", "--set", "damping=1e9"
    world.edit("--set", "rho=3", "--set", "max_write=5", *steps)
    reasons = [entry["reason"] for entry in world.entries()]
    assert any(
        re.search("`([abc]|e[12])`.* pulls? against it: check that they do not contradict", it) for it in reasons
    )


def test_a_not_learnt_edit_is_told_to_take_more_steps(world: World) -> None:
    world.edits(1)
    done = world.edit("--set", "max_steps=1")
    assert done.code == 3
    (entry,) = world.entries()
    assert entry["status"] == "not-learnt"
    assert "still wrong after 1 write (NLL from" in entry["reason"]
    assert "`--set max_steps=2` may help" in entry["reason"]


def test_the_summary_counts_every_status_apart(refused: World) -> None:
    done = refused.edit()
    assert "0 applied, 3 skipped (already in the ledger)" in done.out
    assert "of this stream: 0 learnt, 0 not learnt, 3 refused, 0 already right" in done.out
    assert f"next: more edit {refused.model} --retry" in done.err


def test_all_failed_edits_are_tried_again(refused: World) -> None:
    done = retry(refused, *CALM, "--json")
    assert done.code == 0, done.err
    assert done.json["schema"] == "more.edit/2"
    assert done.json["counts"] == {"learnt": 3}
    lines = refused.entries()
    assert [(entry["id"], entry["retry"], entry["settings"]) for entry in lines[3:]] == [
        (f"e{number}", True, ["rho=1", "max_write=1", "max_steps=30"]) for number in (1, 2, 3)
    ]
    assert run("status", refused.model, "--json").json["statuses"] == {"learnt": 3}
    assert run("eval", refused.model, "--json").json["edits"] == 3
    assert refused.edit().code == 0  # the stream stands now
    assert retry(refused).code == 0
    assert len(refused.entries()) == 6


def test_named_edits_are_tried_again(refused: World) -> None:
    done = retry(refused, "e2", *CALM)
    assert done.code == 0, done.err
    assert [entry["id"] for entry in refused.entries()[3:]] == ["e2"]
    assert run("status", refused.model, "--json").json["statuses"] == {"learnt": 1, "refused": 2}


def test_a_try_is_replayed_with_its_settings(refused: World) -> None:
    retry(refused, *CALM)
    before = refused.sidecar.read_bytes()
    checked = run("verify", refused.model, "--deep")
    assert checked.code == 0, checked.out + checked.err
    refused.sidecar.unlink()
    assert "replayed 6 ledger lines" in refused.edit(*REFUSING).err
    assert refused.sidecar.read_bytes() == before


def test_a_try_takes_the_place_of_the_one_before(world: World) -> None:
    world.edits(2)
    assert world.edit("--set", "max_steps=1", "--set", "rehearsal.size=4").code == 3
    retry(world, "--set", "max_steps=30")
    scored = run("eval", world.model, "--json").json
    assert (scored["edits"], len(scored["per_edit"])) == (2, 2)
    rehearsed = [dict(entry["looks"]) for entry in world.entries()[2:]]
    assert all(1 not in looks for looks in rehearsed)  # e1 is its third line now


def test_an_edit_that_was_tried_twice_is_reverted_once(refused: World) -> None:
    retry(refused, *CALM)
    done = run("revert", refused.model, "--last", 1, "--json")
    assert done.code == 0, done.err
    assert done.json["reverted"] == ["e3"]
    assert run("status", refused.model, "--json").json["statuses"] == {"learnt": 2, "reverted": 1}
    assert run("verify", refused.model, "--deep").code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--retry", "e9"), 2, "no edit `e9` in "),
        (("--retry", "nowhere.jsonl"), 2, "and no file of that name\nhint: --retry takes ids of edits"),
        (("--retry", "--set", "rank=8"), 2, "`rank` is the same for all edits of a state"),
        (("--retry", "--set", "max_steps"), 2, "has no `=`"),
        (("--retry", "--batch"), 2, "`--retry` and `--batch` exclude each other"),
        (("--retry", "--watch"), 2, "`--retry` and `--watch` exclude each other"),
        (("--retry", "--idle", "5"), 2, "`--retry` and `--idle` exclude each other"),
        (("--retry", "--recipe", "paper"), 2, "`--retry` and `--recipe` exclude each other"),
        ((), 2, "missing argument EDITS"),
        (("a.jsonl", "b.jsonl"), 2, "one stream at a time"),
    ],
)
def test_mistakes(refused: World, words: tuple[str, ...], code: int, said: str) -> None:
    before = refused.entries()
    assert_refused(run("edit", refused.model, *words), code, said, "hint: ")
    assert refused.entries() == before


def test_a_file_names_its_failed_edits(refused: World) -> None:
    file = refused.write([line(1), line(2), line(3)], "some.jsonl")
    done = retry(refused, file, *CALM, "--json")
    assert done.code == 0, done.err
    assert [edit["id"] for edit in done.json["edits"]] == ["e2", "e3"]
    assert done.json["notes"] == [f"1 of the edits of `{file}` is not applied yet: leave --retry out to apply it"]
    assert run("edit", refused.model, file, "--retry", "--json").json["edits"] == []
    assert run("status", refused.model, "--json").json["statuses"] == {"learnt": 2, "refused": 1}
    broken = refused.write(["{"], "broken.jsonl")
    assert_refused(retry(refused, broken), 4, "broken.jsonl:1: not JSON")


def test_a_dry_retry_lists_what_would_be_tried_and_writes_nothing(refused: World) -> None:
    before = tree(refused.root)
    done = retry(refused, "e2", "--dry-run")
    assert (done.code, done.out.splitlines()[-1]) == (0, "1 edit would be tried again, nothing written")
    assert re.search(r"^e2 +refused +what colour is it \? +g ", done.out, re.MULTILINE)
    assert "e1" not in done.out
    listed = retry(refused, "--dry-run", *CALM, "--json").json
    assert (listed["dry_run"], listed["total"], listed["applied"]) == (True, 3, 0)
    for other in (
        listed,
        refused.edit("--dry-run", "--json").json,
        run("revert", refused.model, "e1", "-n", "--json").json,
    ):
        assert other["wall_seconds"] > 0
    assert [(edit["id"], edit["status"]) for edit in listed["edits"]] == [(f"e{n}", "refused") for n in (1, 2, 3)]
    assert_refused(retry(refused, "--dry-run", "e9"), 2, "no edit `e9`")
    assert tree(refused.root) == before


def test_an_edit_that_stands_is_not_tried_again(refused: World) -> None:
    retry(refused, "e1", *CALM)
    assert_refused(retry(refused, "e1"), 2, "edit `e1` is learnt")


def test_without_a_state(world: World) -> None:
    assert_refused(retry(world), 5, "no state")
    assert not world.folder.exists()


def test_the_superseded_edit_is_named(world: World) -> None:
    world.edits(1)
    world.edit(*CALM)
    world.write([line(0, id="again", target="y")])
    done = world.edit("--json")
    assert done.json["superseded"] == {"again": ["e1"]}
    assert "again supersedes e1: same picture and question, another answer" in done.err
    world.write([line(0, id="third", target="z")])
    rows = [json.loads(text) for text in world.edit("--json-lines").out.splitlines()]
    assert (rows[0]["schema"], rows[0]["supersedes"]) == ("more.edit.result/2", ["again"])


def test_a_refused_edit_is_superseded_by_its_correction(world: World) -> None:
    world.write([line(0, id="odd")])
    assert world.edit(*REFUSING, "--json").json["counts"] == {"refused": 1}
    world.write([line(0, id="right", target="g")])
    assert world.edit().code == 3
    assert retry(world, "right", *CALM, "--json").json["superseded"] == {"right": ["odd"]}
    scored = run("eval", world.model, "--json").json
    assert (scored["edits"], scored["failed"]) == (1, [])
    world.write([line(0, id="third", target="y")])
    assert world.edit().code == 3
    assert retry(world, "third", *CALM, "--json").json["superseded"] == {"third": ["right"]}, "each is named once"


def test_a_try_that_supersedes_an_edit_names_it(refused: World) -> None:
    before = [line(0, id="other", target="y")]
    refused.write(before)
    assert refused.edit().code == 3, "refused like those before it"
    done = retry(refused, "other", *CALM)
    assert done.code == 0, done.err
    assert "other supersedes e1: same picture and question, another answer" in done.err
    assert run("status", refused.model, "--json").json["statuses"]["superseded"] == 1


def test_a_refused_retry_leaves_what_was_written(world: World) -> None:
    world.write([line(0)])
    world.edit("--set", "max_steps=1", "--set", "last=1")
    assert run("edit", world.model, "--retry", *REFUSING, "--json").json["counts"] == {"not-learnt": 1}
    assert run("edit", world.model, "--consolidate", "anew").code == 0
    assert run("status", world.model, "--json").json["statuses"]["learnt"] == 1
    (checked,) = run("eval", world.model, "--json").json["per_edit"]
    assert checked["verdict"] == "holds"
    world.write([line(0, id="other", target="g")])
    assert world.edit("--json").json["superseded"] == {"other": ["e1"]}


def test_a_retry_whose_steps_are_taken_back_records_no_margin_of_them(world: World) -> None:
    """Each of the four edits is rehearsed by a step too long, which leaves no number finite."""
    words = ("a photo of", "what colour is it ?", "a dog", "a cat", "the fox")
    anchors = world.write([{"question": each} for each in words], "anchors.jsonl")
    settings = ("anchors.size=2", "max_steps=1", "last=1", "criterion=margin")
    run("init", world.model, "--anchors", anchors, *(word for each in settings for word in ("--set", each)))
    questions = ("what colour is it ?", "who is it ?")
    world.write([line(number, question=questions[number % 2], target="b") for number in range(4)])
    world.edit()
    assert run("edit", world.model, "--retry", *REFUSING).code in (0, 3)
    assert all(math.isfinite(margin) for entry in world.entries() for _, margin in entry["looks"])
