"""Anchors that come with the edits: a stream that is cut anywhere has the same, and gives the same bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from more_cli.editors.anchors import Anchor, ReadKeys
from more_cli.editors.draws import watched_places
from more_cli.editors.more.editor import MoreEditor
from more_cli.files import sha256_file
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.ops import anchors
from more_cli.ops.arriving import OTHERS, PER_EDIT, Arrivals
from more_cli.ops.auto_anchors import PICTURED
from more_cli.ops.held import Held
from more_cli.ops.session import Session
from more_cli.recipe.files import load_recipe
from more_cli.store.ledger import Ledger
from more_cli.store.snapshots import snapshots_folder
from more_cli.store.state import load_meta
from more_cli.store.status import Status
from support.helpers import COLOURS, Result, World, assert_same_state, die, forks, in_child, line, run, run_as_typed
from support.refused import assert_refused

QUESTIONS = ("what colour is it ?", "is it a dog ?", "how old is the fox ?", "where is the chair ?", "who sits there ?")
LINES = [line(number, question=question) for number, question in enumerate(QUESTIONS)]
PROMPTS = ("--set", 'anchors.prompts=["what is 2 plus 3 ?", "is it the capital of Peru ?"]')
NEUTRAL = 'anchors.questions=["What is in the picture?"]'
FEW = (*PROMPTS, "--set", NEUTRAL, "--set", "anchors.watched=3")
LOOP = ("--set", "max_steps=2", "--set", "rehearsal.size=2", "--set", "last=1")
MADE = ("--anchors", *FEW, *LOOP)
pytestmark = pytest.mark.usefixtures("silent")
MEASURED = {"prev", "check", "time", "wall_ms", "source", "line"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five edits in one call, a snapshot after each of them."""
    world = World(tmp_path_factory.mktemp("whole") / "world", text_layers=2)
    world.write(LINES)
    assert world.edit(*MADE, "--snapshot-every", 1).code in (0, 3)
    return world


@pytest.fixture
def world(whole: World, tmp_path: Path) -> World:
    """A copy of it."""
    return whole.copy(tmp_path / "world")


@pytest.fixture
def empty(whole: World, tmp_path: Path) -> World:
    """The same model without a state."""
    return forget(whole.copy(tmp_path / "empty"))


def forget(world: World) -> World:
    """Remove the state."""
    shutil.rmtree(world.folder)
    world.sidecar.unlink()
    return world


def call(world: World, lines: Sequence[dict[str, Any]], *options: object) -> Result:
    world.write(lines)
    done = world.edit(*MADE, *options)
    assert done.code in (0, 3), done.err
    return done


def pipe(world: World, lines: Sequence[dict[str, Any]]) -> Result:
    text = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    done = world.edit(*MADE, "--image-root", world.root, edits="-", stdin=text)
    assert done.code in (0, 3), done.err
    return done


def contents(world: World) -> list[dict[str, Any]]:
    """The ledger without times, and without where a line was read."""
    return [{key: value for key, value in entry.items() if key not in MEASURED} for entry in world.entries()]


def brought(world: World) -> list[list[str]]:
    """The questions that each edit in the ledger brought."""
    return [[anchor["question"] for anchor in entry.get("made", [])] for entry in contents(world)]


def assert_same(one: World, other: World) -> None:
    assert contents(one) == contents(other)
    assert_same_state(one.sidecar, other.sidecar)
    assert (one.folder / "anchors.jsonl").read_bytes() == (other.folder / "anchors.jsonl").read_bytes()


def listed(world: World, *state: object) -> list[tuple[str, str]]:
    """Picture, by its name, and question of every anchor, in their order."""
    names = {sha256_file(path): path.stem for path in (world.root / "img").iterdir()}
    found = run("anchors", "list", world.model, *state, "--json").json["anchors"]
    pairs = [(names.get(anchor["image"] or "", ""), anchor["question"]) for anchor in found]
    assert len(set(pairs)) == len(pairs)
    return pairs


def test_every_edit_brings_questions_of_those_before(whole: World) -> None:
    made, neutral = brought(whole), "What is in the picture?"
    for number, questions in enumerate(made):
        assert set(questions) <= {*QUESTIONS[:number], neutral}
        assert len(set(questions) - {neutral}) <= OTHERS
    assert sum(map(len, made)) > 5
    pairs = listed(whole)
    assert [picture for picture, _ in pairs[:2]] == ["", ""]
    assert pairs[2:] == [(COLOURS[number], each) for number, questions in enumerate(made) for each in questions]


@pytest.mark.parametrize("cut", [1, 3])
def test_two_calls_give_what_one_gives(whole: World, empty: World, cut: int) -> None:
    call(empty, LINES[:cut])
    call(empty, LINES[cut:])
    assert_same(empty, whole)


def test_a_pipe_gives_what_a_file_gives(whole: World, empty: World) -> None:
    created = pipe(empty, LINES[:2]).err
    assert f"created {empty.sidecar} with recipe llava and 2 anchors; edits bring more" in created
    pipe(empty, LINES[2:])
    assert_same(empty, whole)


def test_steps_by_limit_give_what_one_call_gives(whole: World, empty: World) -> None:
    for number in (2, 4, 5):
        call(empty, LINES, "--limit", number)
    assert_same(empty, whole)


@forks
@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (MoreEditor, "add", 2),
        (MoreEditor, "edit", 3),
        (Ledger, "append", 3),
        (Session, "count", 4),
        (Session, "save", 2),
    ],
)
def test_a_kill_anywhere_gives_what_an_undisturbed_run_gives(
    whole: World, empty: World, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int
) -> None:
    calls, function = [0], getattr(owner, name)

    def killed(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return die() if calls[0] == number else function(*args, **kwargs)

    def child() -> Result:
        monkeypatch.setattr(owner, name, killed)
        return call(empty, LINES, "--save-every", 2)

    assert in_child(child) == -9
    call(empty, LINES)
    assert_same(empty, whole)


def test_a_replay_takes_the_anchors_of_the_ledger_and_guesses_none(
    whole: World, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arrivals, "questions", None)
    snapshot = sorted(snapshots_folder(world.folder).iterdir())[1]
    world.sidecar.write_bytes(snapshot.read_bytes())
    assert run("status", world.model, "--json").json["behind"] == 3
    assert call(world, LINES).code in (0, 3)
    assert_same_state(world.sidecar, whole.sidecar)
    checked = run("verify", world.model, "--deep")
    assert checked.code == 0, checked.out
    assert "the same bytes" in checked.out
    assert "edits brought" in checked.out


def test_a_lost_state_comes_back_with_the_command_that_made_it(whole: World, world: World) -> None:
    world.sidecar.unlink()
    call(world, LINES)
    assert_same_state(world.sidecar, whole.sidecar)


def test_a_revert_gives_the_bytes_of_a_run_without_the_edits(world: World, empty: World) -> None:
    assert run("revert", world.model, "--last", 1).code in (0, 3)
    call(empty, LINES[:4])
    assert_same_state(world.sidecar, empty.sidecar)
    assert listed(world) == listed(empty)
    other = forget(empty.copy(world.root / "other"))
    assert run("revert", world.model, "e2").code in (0, 3)
    call(other, [LINES[0], *LINES[2:4]])
    assert_same_state(world.sidecar, other.sidecar)
    assert listed(world) == listed(other)
    assert brought(world)[-2:] == brought(other)[-2:]
    assert run("verify", world.model, "--deep").code == 0


def test_a_revert_keeps_anchors_that_the_user_added_later(world: World, empty: World) -> None:
    added = [{"question": "who is it ?", "image": "img/black.png", "answer": "a fox"}]
    for each, lines in ((world, LINES), (empty, LINES[1:])):
        each.write(added, "anchors.jsonl")
        call(each, lines)
        assert run("anchors", "add", each.model, each.root / "anchors.jsonl").code == 0
        call(each, [line(5, id="later", question="is it wet ?")])
    assert run("revert", world.model, "e1").code in (0, 3)
    assert listed(world) == listed(empty)
    assert_same_state(world.sidecar, empty.sidecar)
    assert run("gc", world.model).code == 0
    assert run("verify", world.model, "--deep").code == 0


def test_a_batch_is_the_same_after_a_kill(empty: World, tmp_path: Path) -> None:
    other = empty.copy(tmp_path / "other")
    call(empty, LINES, "--batch")
    call(other, LINES[:3], "--batch", "--limit", 3)
    assert brought(empty)[:3] == brought(other)[:3]
    assert run("verify", empty.model, "--deep").code == 0


def test_none_are_made_without_anchors(empty: World) -> None:
    empty.write(LINES)
    assert empty.edit("--no-anchors", *FEW, *LOOP).code in (0, 3)
    assert listed(empty) == []
    assert not [entry for entry in empty.entries() if "made" in entry]
    assert b"arriving" not in empty.sidecar.read_bytes()
    call(empty, [line(5)])  # it is the state that says so
    assert listed(empty) == []
    assert not load_meta(empty.sidecar).arriving


def test_init_makes_the_state_that_edit_would_make(whole: World, empty: World) -> None:
    made = run_as_typed("init", empty.model, *FEW, *LOOP)
    assert made.code == 0, made.err
    assert "no edits, made with 2 anchors; edits bring more, made of their pictures" in made.out
    empty.write(LINES)
    assert run_as_typed("edit", empty.model, empty.root / "edits.jsonl").code in (0, 3)
    assert_same(empty, whole)
    again = run_as_typed("init", empty.model, *FEW, *LOOP)
    assert "already exists, unchanged" in again.out, again.err
    assert "another set of anchors" in run_as_typed("init", empty.model, "--no-anchors", *FEW, *LOOP).err


def test_init_holds_no_anchors_where_none_are_wanted_or_the_recipe_takes_none(
    empty: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("more_cli.ops.init.load_runtime", None)  # loads no weights
    for number, options in enumerate((("--no-anchors", *FEW), ("--recipe", "paper-llava"))):
        state = empty.root / f"{number}.more"
        done = run_as_typed("init", empty.model, "--state", state, *options)
        assert done.code == 0, done.err
        assert done.out.rstrip().endswith("no edits")
        assert b"arriving" not in state.read_bytes()
    both = run_as_typed("init", empty.model, "--anchors", "anchors.jsonl", "--no-anchors")
    assert_refused(both, 2, "`--anchors` and `--no-anchors` exclude each other")


def test_a_state_with_anchors_of_its_own_takes_no_others(empty: World) -> None:
    empty.write([{"question": "who is it ?"}], "anchors.jsonl")
    alone = (*FEW, *LOOP, "--set", "anchors.prompts=[]")
    assert run("init", empty.model, "--anchors", empty.root / "anchors.jsonl", *alone).code == 0
    empty.write(LINES)
    assert empty.edit("--anchors").code in (0, 3)
    assert listed(empty) == [("", "who is it ?")]
    assert b"arriving" not in empty.sidecar.read_bytes()


def test_a_model_that_takes_no_text_alone_starts_from_none(tmp_path: Path) -> None:
    one = World(tmp_path / "one", family="mllama")
    two = one.copy(tmp_path / "two")
    options = ("--set", "max_steps=1", "--set", "rehearsal.size=0")
    for each, parts in ((one, [LINES[:3]]), (two, [LINES[:1], LINES[1:3]])):
        for part in parts:
            each.write(part)
            assert each.edit("--anchors", *FEW, *options).code in (0, 3)
    assert_same_state(one.sidecar, two.sidecar)
    assert contents(one) == contents(two)
    assert {picture for picture, _ in listed(one)} == {"green", "blue"}
    assert run("verify", one.model, "--deep").code == 0


def held_at_each_edit(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    held, edit = list[set[str]](), MoreEditor.edit

    def watched(editor: MoreEditor, *args: Any) -> Any:
        anchors = [*editor._held.values(), *(editor._watched.anchors.values() if editor._watched else ())]
        held.append({anchor.question for anchor in anchors})
        return edit(editor, *args)

    monkeypatch.setattr(MoreEditor, "edit", watched)
    return held


def test_a_later_edit_releases_the_anchors_it_is_about(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held = held_at_each_edit(monkeypatch)
    made = brought(world)[4]
    dog = "Is this one a dog or not ?"
    assert QUESTIONS[1] in made
    before = run("status", world.model, "--json").json
    assert (before["anchors"], before["made"]) == (len(listed(world)), len(listed(world)) - 2)
    call(world, [line(4, id="again", question=dog), {"id": "fact", "question": "The capital of Peru ?", "target": "b"}])
    assert "what is 2 plus 3 ?" in held[0]
    assert "is it the capital of Peru ?" in held[0]
    assert "is it the capital of Peru ?" not in held[1]
    rows = run("anchors", "list", world.model, "--json").json["anchors"]
    white = sha256_file(world.root / "img" / f"{COLOURS[4]}.png")
    corrected = {(row["image"], row["question"]): row["corrected_by"] for row in rows if row["corrected_by"]}
    assert corrected == {(white, QUESTIONS[1]): "again", (None, "is it the capital of Peru ?"): "fact"}
    after = run("status", world.model, "--json").json
    assert after["anchors"] == len(rows) - 2
    assert after["drift"]["watched"] <= before["drift"]["watched"] + 2
    assert run("verify", world.model, "--deep").code == 0
    whole = world.copy(world.root / "copy")  # a new process holds the same
    call(whole, [line(6, question="is it wet ?")])
    assert held[-1] >= held[-2]
    assert run("verify", whole.model, "--deep").code == 0


def test_what_the_base_answers_as_it_answers_the_edit_is_not_made(
    empty: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = QUESTIONS[1:3]

    def said(_: Runtime, queries: Sequence[Query], limit: int) -> list[list[int]]:
        return [[20 if query.question in alike else 20 + len(query.question.split("o"))] for query in queries]

    monkeypatch.setattr(Runtime, "generate", said)
    call(empty, LINES[:3])
    assert alike[0] not in brought(empty)[2]
    assert QUESTIONS[0] in brought(empty)[2]


def test_a_retry_brings_none(empty: World) -> None:
    call(empty, LINES)
    failed = run("status", empty.model, "--json").json["failed"]
    assert failed
    count = len(listed(empty))
    assert run("edit", empty.model, "--retry", "--anchors").code in (0, 3)
    assert len(listed(empty)) == count
    assert run("verify", empty.model, "--deep").code == 0


def test_a_probe_that_became_an_anchor_is_not_scored(world: World) -> None:
    picture, question = listed(world)[-1]
    probe = {"question": question, "image": f"img/{picture}.png"}
    call(world, [line(6, question="is it wet ?", locality=[probe])])
    assert "1 of 1 locality probe is an anchor too" in run("eval", world.model).out


def test_pictures_that_are_not_stored_are_read_where_they_are(whole: World, empty: World) -> None:
    call(empty, LINES[:3], "--no-store-images")
    call(empty, LINES[3:], "--no-store-images")
    assert_same_state(empty.sidecar, whole.sidecar)
    assert run("verify", empty.model, "--deep").code == 0


def test_the_cache_is_one_file_a_set_and_changes_no_bit(whole: World, empty: World) -> None:
    for number in range(5):
        call(empty, LINES[number : number + 1])
        cached = sorted(path.name.partition("-")[0] for path in (empty.folder / "cache").iterdir())
        assert cached == ["anchors", "directions"]
        if number == 2:
            assert run("gc", empty.model).code == 0
    assert_same_state(empty.sidecar, whole.sidecar)


def test_nearness_of_an_anchor_is_computed_once_whenever_it_came(empty: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that edits brought it is kept."""
    computed, key = list[str](), MoreEditor._key

    def counted(editor: MoreEditor, anchor: Anchor) -> Any:
        computed.append(anchor.question)
        return key(editor, anchor)

    monkeypatch.setattr(MoreEditor, "_key", counted)
    call(empty, LINES[:1])
    first = len(listed(empty))
    assert (first, computed) == (2, []), "no pass but the one that asks the base"
    for number in range(1, 5):
        call(empty, LINES[number : number + 1])
    arrived = len(listed(empty)) - first
    watched = len(watched_places(first + arrived, 3)) - len(watched_places(first, 3))
    assert watched > 0
    assert len(computed) == arrived + watched, "one pass of the edited model, one of the base if watched"


def test_a_revert_asks_the_base_no_anchor_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edits after it are applied again, and bring anchors that they brought before."""
    before, asked, measured = listed(world), list[Probe](), list[str]()
    ask, directions = anchors.ask_base, MoreEditor._directions

    def counted(runtime: Runtime, question: Probe, keys: ReadKeys | None) -> Anchor:
        asked.append(question)
        return ask(runtime, question, keys)

    def also_counted(editor: MoreEditor, anchors: Sequence[Anchor]) -> list[Tensor]:
        measured.extend(anchor.question for anchor in anchors)
        return directions(editor, anchors)

    monkeypatch.setattr(anchors, "ask_base", counted)
    monkeypatch.setattr(MoreEditor, "_directions", also_counted)
    assert run("revert", world.model, contents(world)[1]["id"]).code == 3
    assert len(brought(world)) > 5, "the lines of the edits that were applied again"
    assert [each.question for each in asked] == [question for _, question in set(listed(world)) - set(before)]
    assert len(measured) == 1, "its place is watched now, and was not before"
    assert run("verify", world.model, "--deep").code == 0


def picture(number: int) -> ImageSource:
    return ImageSource(f"{number}.png", None, f"{number:064}")


def stream(folder: Path, edits: Sequence[Edit]) -> list[list[Probe]]:
    """What each edit brings, if the base never says the same."""
    ledger, held = Ledger(folder), Held()
    arrivals = Arrivals(load_recipe("default"), ledger)
    brought = []
    for place, edit in enumerate(edits):
        made = arrivals.questions(edit, place, held)
        held.add(made, written=False)
        fields = {"id": edit.id, "status": Status.LEARNT, "images": [image.sha256 for image in edit.images]}
        fields |= {"question": edit.question, "target": edit.target}
        rows = [{"question": each.question, "image": each.images[0].sha256 if each.images else None} for each in made]
        ledger.append({**fields, "made": rows})
        brought.append(made)
    return brought


def thing(number: int) -> Edit:
    return Edit(f"e{number}", (picture(number),), f"where is the thing{number} ?", "here")


def test_there_are_enough_at_some_time(tmp_path: Path) -> None:
    brought = stream(tmp_path, [thing(number) for number in range(50)])
    assert sum(map(len, brought)) == PICTURED
    assert [len(made) for made in brought[-10:]] == [0] * 10
    for edit, made in zip(map(thing, range(50)), brought, strict=True):
        assert {each.images for each in made} <= {edit.images[:1]}
        assert edit.question not in {each.question for each in made}
    asked = [each.question for made in brought for each in made if "thing" in each.question]
    assert max(map(asked.count, asked)) <= PER_EDIT
    neutral = PICTURED - len(asked)
    assert PICTURED // 4 <= neutral <= PICTURED // 4 + 10


def test_an_edit_without_a_picture_brings_none(tmp_path: Path) -> None:
    edits = [thing(0), Edit("t", (), "who wrote it ?", "b"), thing(1)]
    assert [bool(made) for made in stream(tmp_path, edits)] == [True, False, True]


@pytest.mark.parametrize("fields", [{"rephrases": ("is thing0 seen where ?",)}, {"target": "on thing0"}])
def test_what_an_edit_is_about_in_other_words_is_not_asked(tmp_path: Path, fields: dict[str, Any]) -> None:
    plain = stream(tmp_path / "plain", [thing(0), thing(1)])
    other = stream(tmp_path / "other", [thing(0), replace(thing(1), **fields)])
    assert thing(0).question in {each.question for each in plain[1]}
    assert thing(0).question not in {each.question for each in other[1]}
