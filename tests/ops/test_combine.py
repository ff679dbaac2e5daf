"""`more combine`: the state that one person would have made by giving the edits of several in one stream."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from more_cli.checkpoint.hub import Pin
from more_cli.ops import assembly
from more_cli.store.pin import read_pin, write_pin
from support.helpers import CALM, LEARNING, QUICK, REFUSING, Result, World, assert_same_state, line, run, tree
from support.refused import assert_refused
from support.reverts import JOINT, SMALL, Runs

Numbers = Sequence[int]


@pytest.fixture
def world(runs: Runs, tmp_path: Path) -> World:
    return runs.at(tmp_path)


def state(world: World, name: str) -> Path:
    return world.root / f"{name}.more"


def edit(world: World, name: str, numbers: Numbers, *options: object, **fields: object) -> Result:
    """Apply these edits of the usual stream to one of the states."""
    stream = world.write([line(number, **fields) for number in numbers], f"{name}.jsonl")
    return world.edit(*options, "--state", state(world, name), edits=stream)


def copy(world: World, name: str, new: str) -> None:
    shutil.copyfile(state(world, name), state(world, new))
    shutil.copytree(f"{state(world, name)}.d", f"{state(world, new)}.d")


def combine(world: World, names: str, *options: object, out: str = "all") -> Result:
    """Combine states, each named by a letter."""
    return run("combine", world.model, *(state(world, name) for name in names), "-o", state(world, out), *options)


def statuses(world: World, name: str = "all") -> dict[str, str]:
    lines = run("log", world.model, "--state", state(world, name), "--limit", 99, "--json").json["lines"]
    return {each["id"]: each["now"] for each in lines if each["kind"] == "edit"}


def deep(world: World, name: str = "all") -> Result:
    return run("verify", world.model, "--state", state(world, name), "--deep")


@pytest.fixture(scope="module")
def pair(runs: Runs) -> World:
    """Two states with a common past of two edits, and two of their own each, made in turn."""
    here = runs.at(runs.world.root / "pair")
    edit(here, "a", [0, 1], *QUICK)
    copy(here, "a", "b")
    for name, number in (("a", 2), ("b", 3), ("a", 4), ("b", 5)):
        assert edit(here, name, [number]).code == 3
    return here


def test_the_result_is_the_state_of_one_stream(runs: Runs, pair: World) -> None:
    once = runs.of(range(6), *QUICK)
    for names in ("ab", "ba"):
        done = combine(pair, names, "--json", out=names)
        assert done.code == 3  # nothing is learnt in one step
        assert_same_state(state(pair, names), once.sidecar)
        assert [each["id"] for each in done.json["edits"]] == ["e1", "e2", "e3", "e4", "e5", "e6"]
        assert (done.json["kept"], done.json["expected_edits"]) == (3, 3)  # e3 is next in one of the states
    assert "6 stored" in deep(pair, "ab").out
    assert deep(pair, "ab").code == 0


def test_a_line_says_which_state_it_is_from(pair: World, world: World) -> None:
    for name in "ab":
        shutil.copyfile(state(pair, name), state(world, name))
        shutil.copytree(f"{state(pair, name)}.d", f"{state(world, name)}.d")
    combine(world, "ab")
    notes = {each["id"]: each["note"] for each in world.entries(state(world, "all"))}
    assert notes == {
        "e1": "line 1 of a.more", "e2": "line 2 of a.more", "e3": "line 3 of a.more", "e4": "line 3 of b.more",
        "e5": "line 4 of a.more", "e6": "line 4 of b.more",
    }  # fmt: skip


def test_what_a_dry_run_lists_is_what_is_done(pair: World, world: World) -> None:
    before = tree(pair.root)
    shown = combine(pair, "ab", "--dry-run", out="new")
    assert shown.code == 0
    assert tree(pair.root) == before
    assert [row.split()[0] for row in shown.out.splitlines()[1:7]] == ["e1", "e2", "e3", "e4", "e5", "e6"]
    assert "would combine 6 edits of 2 states: 3 taken over as they are, 3 applied again" in shown.out
    planned = combine(pair, "ab", "--dry-run", "--json", out="new").json
    done = combine(pair, "ab", "--json", out="done").json
    assert planned["edits"] == done["edits"]
    assert (planned["dry_run"], planned["statuses"], done["dry_run"]) == (True, {}, False)


def test_states_without_a_common_past_come_in_order_of_time(runs: Runs, world: World) -> None:
    for name, numbers in (("b", [0, 1]), ("a", [2]), ("b", [3]), ("c", [1, 4])):
        edit(world, name, numbers, *QUICK)
    assert combine(world, "abc").code == 3
    assert_same_state(state(world, "all"), runs.of(range(5), *QUICK).sidecar)  # the second edit once


def test_the_same_states_give_the_same_state_again_and_a_part_adds_nothing(runs: Runs, pair: World) -> None:
    combine(pair, "ab", out="x")
    shutil.copyfile(state(pair, "x"), state(pair, "y"))
    again = combine(pair, "ab", "--json", out="x")
    assert (again.code, again.json["existed"], len(again.json["statuses"])) == (3, True, 6)
    assert state(pair, "x").read_bytes() == state(pair, "y").read_bytes()
    assert combine(pair, "xb", out="z").code == 3
    assert_same_state(state(pair, "z"), state(pair, "x"))


def test_a_state_that_another_process_made_meanwhile_is_there(
    pair: World, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to be another state: there was none before the lock, and its ledger after it."""
    for name in "ab":
        shutil.copyfile(state(pair, name), state(world, name))
        shutil.copytree(f"{state(pair, name)}.d", f"{state(world, name)}.d")
    lock = assembly.writer_lock

    def locked_late(path: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr(assembly, "writer_lock", lock)
        assert combine(world, "ab").code == 3
        return lock(path)

    monkeypatch.setattr(assembly, "writer_lock", locked_late)
    late = combine(world, "ab", "--json")
    assert (late.code, late.json["existed"]) == (3, True), late.err


def test_the_new_state_goes_on_like_any_other(world: World) -> None:
    edit(world, "a", [0, 1], *LEARNING)
    edit(world, "b", [2], *LEARNING)
    done = combine(world, "ab")
    assert done.code == 0, done.err
    assert "3 edits of 2 states: 2 taken over as they are, 1 applied again; 3 learnt" in done.out
    assert deep(world).code == 0
    merged = run("merge", world.model, "--state", state(world, "all"), "-o", world.root / "m", "--verify", "--json")
    assert (merged.code, merged.json["verification"]["lost"]) == (0, [])
    assert run("revert", world.model, "e2", "--state", state(world, "all")).code == 0
    assert edit(world, "all", [3]).code == 0
    assert statuses(world) == {"e1": "learnt", "e2": "reverted", "e3": "learnt", "e4": "learnt"}
    assert deep(world).code == 0


def test_the_new_state_knows_its_commit_on_the_hub(world: World) -> None:
    edit(world, "a", [0], *QUICK)
    edit(world, "b", [1], *QUICK)
    pin = Pin("someone/model", "a" * 40)
    for name in "ab":
        write_pin(Path(f"{state(world, name)}.d"), pin)
    combine(world, "ab")
    assert read_pin(Path(f"{state(world, 'all')}.d")) == pin


def test_contradictions_are_refused_all_of_them_by_name(world: World) -> None:
    edit(world, "a", [0, 1, 2], *QUICK)
    other = [line(number, id=f"x{number + 1}", target="z") for number in (0, 2)]
    world.edit(*QUICK, "--state", state(world, "b"), edits=world.write([*other, line(3)], "b.jsonl"))
    before = tree(world.root)
    refused = combine(world, "ab")
    assert refused.code == 4
    errors = [text for text in refused.err.splitlines() if text.startswith("error: ")]
    assert len(errors) == 2
    for text, number in zip(errors, (1, 3), strict=True):
        for part in ("`what colour is it ?`", f"(e{number}, ", "a.jsonl:", f"(x{number}, ", "b.jsonl:", "`z`", " UTC)"):
            assert part in text
    assert "hint: --theirs lets the later one of each count, or take one back: more revert" in refused.err
    assert tree(world.root) == before


def test_with_theirs_the_later_one_counts_whichever_state_has_it(runs: Runs, world: World) -> None:
    edit(world, "a", [0, 1], *QUICK)
    edit(world, "b", [0], *QUICK, id="x1", target="z")
    assert combine(world, "ab").code == 4
    done = combine(world, "ba", "--theirs", "--json")
    assert done.code == 3
    assert [[each["id"] for each in pair] for pair in done.json["contradictions"]] == [["e1", "x1"]]
    assert statuses(world)["e1"] == "superseded"
    edit(world, "once", [0, 1], *QUICK)
    edit(world, "once", [0], id="x1", target="z")
    assert_same_state(state(world, "all"), state(world, "once"))
    again = combine(world, "ab", "--theirs", "--json")
    assert (again.code, again.json["existed"]) == (3, True)


def test_with_theirs_a_later_one_that_is_refused_is_not_said_to_count(world: World) -> None:
    edit(world, "a", [0], *REFUSING)
    assert world.edit("--retry", *CALM, "--state", state(world, "a"), edits="e1").code == 0
    edit(world, "b", [0], *REFUSING, id="x1", target="z")
    done = combine(world, "ab", "--theirs")
    assert statuses(world) == {"e1": "learnt", "x1": "refused"}
    assert "the later one counts" not in done.out
    assert "the later one is refused: `what colour is it ?` has two targets: `r` in " in done.out


def test_a_state_in_which_the_earlier_of_two_rivals_counts_is_another(world: World) -> None:
    edit(world, "a", [0, 1], *QUICK)
    edit(world, "b", [0], *QUICK, id="x1", target="z")
    edit(world, "all", [0], *QUICK, id="x1", target="z")
    edit(world, "all", [1, 0])
    before = state(world, "all").read_bytes()
    refused = combine(world, "ab", "--theirs")
    assert (refused.code, refused.out) == (2, "")
    assert f"error: `{state(world, 'all')}` already exists, with these edits in another order\nhint: " in refused.err
    assert state(world, "all").read_bytes() == before
    edit(world, "other", [1], *QUICK)
    edit(world, "other", [0])
    edit(world, "other", [0], id="x1", target="z")
    assert combine(world, "ab", "--theirs", "--json", out="other").json["existed"], "other questions in any order"


def test_a_correction_of_a_common_edit_is_no_contradiction(world: World) -> None:
    edit(world, "a", [0], *QUICK)
    copy(world, "a", "b")
    edit(world, "b", [0], id="x1", target="z")
    edit(world, "a", [1])
    assert combine(world, "ab", "--json").json["contradictions"] == []
    assert statuses(world) == {"e1": "superseded", "x1": "not-learnt", "e2": "not-learnt"}


def test_two_corrections_of_a_common_edit_are_one_contradiction(world: World) -> None:
    edit(world, "a", [0], *QUICK)
    copy(world, "a", "b")
    edit(world, "b", [0], id="x1", target="z")
    edit(world, "a", [0], id="y1", target="q")
    refused = combine(world, "ab")
    assert refused.err.count("error: ") == 1
    assert "(x1, " in refused.err
    assert "(y1, " in refused.err


def test_an_edit_that_one_state_reverted_stays_reverted(runs: Runs, world: World) -> None:
    edit(world, "a", [0, 1, 2], *QUICK)
    copy(world, "a", "b")
    assert run("revert", world.model, "e2", "--state", state(world, "b")).code in (0, 3)
    edit(world, "a", [3])
    done = combine(world, "ab", "--json")
    assert done.json["withdrawn"] == {"e2": str(state(world, "b"))}
    assert "e2 stays out: reverted in" in combine(world, "ab").out
    assert_same_state(state(world, "all"), runs.of([0, 2, 3], *QUICK).sidecar)
    again = edit(world, "all", range(4), "--json")
    assert (again.json["applied"], again.json["reverted"]) == (0, ["e2"])
    assert deep(world).code == 0
    assert edit(world, "all", [1], "--reapply").code == 3
    assert statuses(world)["e2"] == "not-learnt"


def test_other_recipes_and_seeds_are_refused_with_what_differs(world: World) -> None:
    edit(world, "a", [0], *QUICK)
    edit(world, "b", [1], "--set", "max_steps=2", "--set", "last=1", "--set", "seed=7")
    refused = combine(world, "ab")
    assert refused.code == 5
    assert "b.more` differs from `" in refused.err
    assert "recipe max_steps (1, 2), recipe seed (42, 7)" in refused.err
    assert "hint: " in refused.err
    assert not state(world, "all").exists()


def test_another_base_is_refused(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "other", text_layers=1, seed=3)
    edit(world, "a", [0], *QUICK)
    other.edit(*QUICK, "--state", state(world, "b"), edits=other.edits(1))
    refused = combine(world, "ab")
    assert refused.code == 5
    assert "differs from" in refused.err
    assert "base tensor:" in refused.err
    assert "hint: states of different bases cannot be combined" in refused.err
    third = run("combine", other.model, state(world, "a"), state(world, "a2"), "-o", state(world, "all"))
    assert "no state at" in third.err


def test_one_id_for_two_edits_is_refused(world: World) -> None:
    edit(world, "a", [0, 1], *QUICK)
    edit(world, "b", [2], *QUICK, id="e1")
    refused = combine(world, "ab", "--theirs")
    assert refused.code == 4
    assert "`e1` is the id of two edits: " in refused.err
    assert "more revert MODEL ID --state FILE" in refused.err


def test_an_id_that_another_state_reverted_with_other_content_is_free(world: World) -> None:
    edit(world, "a", [0, 1], *QUICK)
    edit(world, "b", [2], *QUICK, id="e1")
    run("revert", world.model, "e1", "--state", state(world, "b"))
    edit(world, "b", [3])
    assert combine(world, "ab").code == 3
    assert set(statuses(world)) == {"e1", "e2", "e4"}


def test_an_id_whose_two_edits_are_both_reverted_keeps_nothing_back(world: World) -> None:
    edit(world, "a", [0, 1], *QUICK)
    edit(world, "b", [2], *QUICK, id="e1")
    for name in "ab":
        run("revert", world.model, "e1", "--state", state(world, name))
    edit(world, "b", [4])
    assert combine(world, "ab").code == 3
    assert statuses(world) == {"e1": "reverted", "e2": "not-learnt", "e5": "not-learnt"}
    assert deep(world).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.more", "-o", "c.more"), "at least two states are needed"),
        (("a.more", "a.more", "-o", "c.more"), "is named twice"),
        (("a.more", "b.more", "-o", "b.more"), "is one of the states that are combined"),
        (("a.more", "b.more", "-o", "other.more"), "already exists, with other edits"),
        (("img", "img", "-o", "c.more"), "are both folders"),
    ],
)
def test_misuse(pair: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str) -> None:
    monkeypatch.chdir(pair.root)
    if not state(pair, "other").exists():
        edit(pair, "other", [0], *QUICK)
    model = () if "img" in words else (pair.model,)
    refused = run("combine", *model, *words)
    assert refused.code == 2
    assert message in refused.err
    assert "hint: " in refused.err


def test_a_link_that_leads_nowhere_makes_no_state(pair: World, tmp_path: Path) -> None:
    link, before = tmp_path / "link.more", tree(pair.root)
    link.symlink_to(tmp_path / "unmounted" / "s.more")
    for refused in (
        run("combine", pair.model, state(pair, "a"), state(pair, "b"), "-o", link),
        run("rebase", pair.model, pair.model, "--state", state(pair, "a"), "-o", link),
        run("edit", pair.model, pair.root / "a.jsonl", "--state", link, "--dry-run"),
    ):
        assert_refused(refused, 5, f"`{link}` is a link to `{tmp_path}/unmounted/s.more`, which is not there")
    assert (link.is_symlink(), tree(pair.root)) == (True, before)
    assert not (tmp_path / "unmounted").exists()


def test_the_model_is_the_folder_that_a_states_name_says(pair: World, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pair.root / "home"
    home.mkdir()
    for name, new in (("a", "llava.more"), ("b", "llava.ann.more")):
        shutil.copyfile(state(pair, name), home / new)
        shutil.copytree(f"{state(pair, name)}.d", home / f"{new}.d")
    monkeypatch.chdir(home)
    missing = run("combine", "llava.ann.more", "llava.more", "-o", "both.more")
    assert (missing.code, "no checkpoint folder `llava.ann`" in missing.err) == (2, True)
    shutil.copytree(pair.model, home / "llava")
    assert run("combine", "llava.ann.more", "llava.more", "-o", "both.more", "-n").code == 0


def test_failed_edits_come_in_and_a_later_try_brings_its_settings(world: World) -> None:
    edit(world, "a", [0], *REFUSING)
    edit(world, "b", [1], *REFUSING)
    assert world.edit("--retry", *CALM, "--state", state(world, "b"), edits="e2").code == 0
    done = combine(world, "ab", "--json")
    assert (done.code, done.json["failed"]) == (3, ["e1"])
    assert statuses(world) == {"e1": "refused", "e2": "learnt"}
    copy(world, "a", "c")
    assert world.edit("--retry", *CALM, "--state", state(world, "c"), edits="e1").code == 0
    assert combine(world, "ac", out="mended").code == 0  # the try that went well, after the common line
    assert [(each["status"], each["retry"]) for each in world.entries(state(world, "mended"))] == [
        ("refused", False),
        ("learnt", True),
    ]
    assert deep(world, "mended").code == 0


def test_what_was_written_together_comes_edit_by_edit_unless_all_states_have_it(world: World) -> None:
    edit(world, "a", [0, 1], *JOINT, "--batch")
    copy(world, "a", "b")
    edit(world, "b", [2])
    edit(world, "a", [3, 4], "--batch")
    done = combine(world, "ab", "--json")
    assert done.json["kept"] == 4  # a batch of two, its consolidation, and the edit after it
    assert "what was written together (--batch, --consolidate) is written edit by edit" in done.json["notes"]
    kinds = [(each["kind"], each["joint"]) for each in world.entries(state(world, "all"))]
    assert kinds == [("edit", True), ("edit", True), ("consolidate", False), *[("edit", False)] * 3]
    assert deep(world).code == 0


def test_what_a_short_state_wrote_together_is_noted_beside_a_longer_one_that_is_taken_over(world: World) -> None:
    edit(world, "a", [0, 1, 2], *JOINT)
    edit(world, "b", [3], *JOINT, "--consolidate", "run")
    done = combine(world, "ab", "--json").json
    assert done["kept"] == 3  # more lines than the other state has
    assert "what was written together (--batch, --consolidate) is written edit by edit" in done["notes"]


def test_a_compaction_that_only_the_edits_of_both_are_enough_for_comes_by_itself(runs: Runs, world: World) -> None:
    compact = (*SMALL, "--set", "compact=3", "--set", "joint.rounds=3")
    edit(world, "a", [0], *compact)
    copy(world, "a", "b")
    edit(world, "a", [1])
    edit(world, "b", [2])
    combine(world, "ab")
    assert [each["kind"] for each in world.entries(state(world, "all"))] == ["edit"] * 3 + ["compact"]
    assert_same_state(state(world, "all"), runs.of(range(3), *compact).sidecar)


def test_a_compaction_of_the_common_past_is_kept(runs: Runs, world: World) -> None:
    compact = (*SMALL, "--set", "compact=2", "--set", "joint.rounds=3")
    edit(world, "a", range(3), *compact)
    copy(world, "a", "b")
    edit(world, "a", [3])
    edit(world, "b", [4])
    combine(world, "ab")
    assert_same_state(state(world, "all"), runs.of(range(5), *compact).sidecar)
    assert deep(world).code == 0


def test_images_that_are_not_stored_stay_where_they_are(world: World) -> None:
    edit(world, "a", [0], *QUICK, "--no-store-images")
    edit(world, "b", [1], *QUICK)
    assert combine(world, "ab").code == 3
    assert len(list((world.root / "all.more.d" / "images").iterdir())) == 1
    assert deep(world).code == 0
    shutil.rmtree(f"{state(world, 'all')}.d")
    state(world, "all").unlink()
    (world.root / "img" / "red.png").unlink()
    refused = combine(world, "ab")
    assert refused.code in (4, 5)
    assert "edit `e1` of `" in refused.err
    assert not Path(f"{state(world, 'all')}.d").exists()


ANCHORED = (*QUICK, "--set", "anchors.size=4", "--set", "anchors.keys=true", "--set", "anchors.prompts=[]")


def anchors(world: World, name: str, *questions: str) -> Path:
    path = world.root / f"{name}-anchors.jsonl"
    lines = [{"question": text, "image": "img/black.png", "answer": "x"} for text in questions]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return path


@pytest.mark.usefixtures("silent")
def test_anchors_of_all_states_are_held(world: World) -> None:
    first = anchors(world, "first", "is it big ?")
    for name in "ab":
        assert run("init", world.model, "--state", state(world, name), "--anchors", first, *ANCHORED).code == 0
    other = anchors(world, "other", "is it far ?")
    run("init", world.model, "--state", state(world, "c"), "--anchors", other, *ANCHORED)
    edit(world, "a", [0])
    for name, questions in (("a", ["is it old ?", "is it new ?"]), ("b", ["is it new ?", "is it wet ?"])):
        file = anchors(world, name, *questions)
        assert run("anchors", "add", world.model, file, "--state", state(world, name)).code == 0
    edit(world, "b", [1])
    edit(world, "c", [2])
    assert combine(world, "ab").code == 3
    assert asked(world, "all") == ["is it big ?", "is it old ?", "is it new ?", "is it wet ?"]
    assert deep(world).code == 0
    assert combine(world, "abc", out="three").code == 3
    assert asked(world, "three") == ["is it big ?", "is it far ?", "is it old ?", "is it new ?", "is it wet ?"]
    assert deep(world, "three").code == 0


@pytest.mark.usefixtures("silent")
def test_the_base_is_not_asked_again_for_anchors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = anchors(world, "first", "is it big ?", "is it old ?")
    run("init", world.model, "--state", state(world, "a"), "--anchors", first, *ANCHORED)
    edit(world, "a", [0])
    copy(world, "a", "b")
    for name, number in (("a", 1), ("b", 2)):
        edit(world, name, [number])
    with monkeypatch.context() as patch:
        patch.setattr("more_cli.ops.anchors.ask_base", lambda *_: pytest.fail("the base was asked"))
        assert combine(world, "ab").code == 3
    assert deep(world).code == 0, "whoever asks it gets the same bytes"


def asked(world: World, name: str) -> list[str]:
    """The questions of a state's anchors that have a picture."""
    held = run("anchors", "list", world.model, "--state", state(world, name), "--json").json["anchors"]
    return [each["question"] for each in held if each["image"]]


def test_a_state_that_was_made_with_another_recipe_is_another(world: World) -> None:
    edit(world, "a", [0], *QUICK)
    edit(world, "b", [1], *QUICK)
    assert combine(world, "ab").code == 3
    assert combine(world, "ab").code == 3, "the same command finds it"
    for name, number in (("a", 0), ("b", 1)):
        state(world, name).unlink()
        shutil.rmtree(state(world, name).with_name(f"{name}.more.d"))
        edit(world, name, [number], *QUICK, "--set", "scale=1.5")
    refused = combine(world, "ab")
    assert (refused.code, "already exists, with another base, recipe or set of anchors" in refused.err) == (2, True)


def test_time_decides_in_a_state_that_was_combined_too(world: World) -> None:
    """What was reverted, made again or compacted meanwhile makes no edit later than it is."""
    options = (*JOINT, "--set", "compact=1")
    edit(world, "a", [1, 0], *options)
    edit(world, "a", [2])
    edit(world, "d", [0], *options, id="later", target="g")
    edit(world, "b", [3], *options)
    for id in ("e2", "e3"):
        assert run("revert", world.model, id, "--state", state(world, "a")).code in (0, 3)
    combine(world, "ab", out="c")
    for names in ("ad", "cd"):
        assert combine(world, names, "--theirs", out=f"{names}-all").code in (0, 3)
        now = statuses(world, f"{names}-all")
        assert now["e1"] == "superseded" != now["later"], names


def test_what_was_decided_by_applying_it_again_stays(world: World) -> None:
    edit(world, "a", [0], *CALM)
    edit(world, "a", [0], id="other", target="g")
    assert run("revert", world.model, "e1", "--state", state(world, "a")).code == 0
    edit(world, "a", [0], "--reapply")
    assert statuses(world, "a") == {"e1": "learnt", "other": "superseded"}
    edit(world, "b", [3], *CALM)
    for _ in range(2):
        assert combine(world, "ab").code == 0, "the second time it is there"
    assert statuses(world) == {"e1": "learnt", "other": "superseded", "e4": "learnt"}


def test_states_without_edits_are_one_without_edits(world: World) -> None:
    for name in "ab":
        run("init", world.model, *SMALL, "--state", state(world, name))
    assert combine(world, "ab").code == 0
    assert_same_state(state(world, "all"), state(world, "a"))
    assert combine(world, "ab").code == 0


def test_a_first_try_is_not_taken_over_without_the_second(world: World) -> None:
    edit(world, "a", [0], *QUICK)
    assert run("edit", world.model, "--retry", "--state", state(world, "a")).code in (0, 3)
    assert [entry["retry"] for entry in world.entries(state(world, "a"))] == [False, True]
    edit(world, "b", [1], *QUICK)
    assert combine(world, "ab", "--json").json["kept"] == 0
