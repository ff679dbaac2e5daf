"""`more rebase`: the state that the same edits would have made on the new base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from more_cli.api import open_model
from more_cli.errors import DataError
from more_cli.inputs.edits import Edit
from more_cli.ops import commit
from more_cli.ops.session import Session, Try
from support.helpers import CALM, QUICK, REFUSING, Result, World, assert_same_state, line, run, tree
from support.reverts import JOINT
from support.tiny import tiny_llava
from support.tiny_families import tiny_family

THREE = ("--set", "max_steps=3")
"""Steps that are enough for all four edits on the old base, and not on the new one."""


class Bases:
    """A model with pictures, and a new version of it: the same architecture with other weights."""

    def __init__(self, root: Path) -> None:
        self.world = World(root, text_layers=1)
        self.new = World.at(root)
        self.new.model = tiny_llava(root / "new", text_layers=1, seed=3)
        self.new.sidecar, self.new.folder = root / "new.more", root / "new.more.d"

    def copy(self, root: Path) -> Bases:
        here = Bases.__new__(Bases)
        here.world, here.new = self.world.copy(root), World.at(root)
        here.new.model, here.new.sidecar, here.new.folder = root / "new", root / "new.more", root / "new.more.d"
        return here

    def edit(self, *numbers: int, options: tuple[object, ...] = (), **fields: object) -> Result:
        stream = self.world.write([line(number, **fields) for number in numbers], "stream.jsonl")
        return self.world.edit(*options, edits=stream)

    def rebase(self, *options: object) -> Result:
        return run("rebase", self.world.model, self.new.model, *options)

    def once(self, *lines: dict[str, object], options: tuple[object, ...] = QUICK) -> Path:
        """The state of a stream that is applied to the new base directly."""
        sidecar = self.new.root / "once.more"
        self.new.edit(*options, "--state", sidecar, edits=self.new.write(lines, "once.jsonl"))
        return sidecar

    def statuses(self) -> dict[str, str]:
        lines = run("log", self.new.model, "--limit", 99, "--json").json["lines"]
        return {each["id"]: each["now"] for each in lines if each["kind"] == "edit"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("rebase"))


@pytest.fixture
def bases(made: Bases, tmp_path: Path) -> Bases:
    return made.copy(tmp_path)


def test_the_result_is_the_state_of_the_same_stream_on_the_new_base(bases: Bases) -> None:
    bases.edit(0, 1, 2, options=QUICK)
    before = tree(bases.world.root)
    done = bases.rebase()
    assert done.code == 3  # nothing is learnt in one step
    assert_same_state(bases.new.sidecar, bases.once(*map(line, range(3))))
    assert run("verify", bases.new.model, "--deep").code == 0
    after = tree(bases.world.root)
    assert {name: after[name] for name in before} == before, "the old state and both bases stay as they are"


def test_it_says_which_edits_no_longer_hold(bases: Bases) -> None:
    assert bases.edit(0, 1, 2, 3, options=THREE).code == 0
    done = bases.rebase("--json")
    assert done.code == 3
    found, now = done.json, bases.statuses()
    assert found["lost"] == [id for id, status in now.items() if status == "not-learnt"] != []
    assert found["held"] == [id for id, status in now.items() if status == "learnt"] != []
    assert found["counts"] == {
        "held": len(found["held"]), "already_right": 0, "lost": len(found["lost"]), "still_failed": 0,
        "superseded": 0, "reverted": 0,
    }  # fmt: skip
    assert found["changed"] == {id: ["learnt", "not-learnt"] for id in found["lost"]}
    again = bases.rebase()
    assert again.code == 3
    for id in found["lost"]:
        assert f"\n{id}: {found['reasons'][id]}\n" in again.out
    assert f"\nno longer hold: {', '.join(found['lost'])}\n" in again.out
    assert again.out.startswith(f"hold: {', '.join(found['held'])}\n")
    assert f"is there already: {len(found['held'])} hold, {len(found['lost'])} no longer hold\n" in again.out
    assert f"next: more edit {bases.new.model} --retry" in again.err


def test_it_says_which_edits_the_new_base_answers_right_already(bases: Bases) -> None:
    bases.edit(0, options=CALM)
    shutil.rmtree(bases.new.model)
    assert run("merge", bases.world.model, "-o", bases.new.model).code == 0  # the next version has the first edit
    assert bases.edit(1).code == 0
    done = bases.rebase("--json")
    assert (done.code, done.json["already_right"], done.json["held"]) == (0, ["e1"], ["e2"])
    assert bases.statuses() == {"e1": "already-right", "e2": "learnt"}
    assert bases.rebase().out.startswith("hold: e2\nalready right on the new base: e1\n")


def test_an_edit_that_an_earlier_one_made_right_is_not_the_bases(bases: Bases) -> None:
    bases.edit(0, options=CALM)
    bases.world.edit(edits=bases.world.write([line(0, id="again")], "again.jsonl"))
    done = bases.rebase("--json").json
    assert bases.statuses() == {"e1": "learnt", "again": "already-right"}
    assert (done["held"], done["already_right"]) == (["e1", "again"], [])


def test_what_failed_before_is_tried_and_named_apart(bases: Bases) -> None:
    assert bases.edit(0, options=REFUSING).code == 3
    assert bases.world.edit("--retry", *CALM, edits="e1").code == 0
    assert bases.edit(1).code == 3
    done = bases.rebase("--json")
    assert (done.code, done.json["held"], done.json["still_failed"], done.json["lost"]) == (3, ["e1"], ["e2"], [])
    (first, second) = bases.new.entries()
    assert (first["settings"], first["retry"], second["settings"]) == (list(CALM[1::2]), False, [])
    assert "\nfailed before too: e2\n" in bases.rebase().out


def test_reverted_and_superseded_edits_stay_so(bases: Bases) -> None:
    bases.edit(0, 1, 2, options=QUICK)
    bases.edit(0, id="x1", target="z")
    run("revert", bases.world.model, "e2")
    done = bases.rebase("--json")
    assert (done.json["superseded"], done.json["reverted"]) == (["e1"], ["e2"])
    now = bases.statuses()
    assert (now["e1"], now["e2"]) == ("superseded", "reverted")
    bases.once(line(0), line(2))
    assert_same_state(bases.new.sidecar, bases.once(line(0, id="x1", target="z"), options=()))
    assert run("verify", bases.new.model, "--deep").code == 0
    stream = bases.new.write([line(1)], "again.jsonl")
    assert "1 of these edits stay reverted" in bases.new.edit(edits=stream).err


def test_an_edit_whose_correction_is_refused_now_is_named(bases: Bases, monkeypatch: pytest.MonkeyPatch) -> None:
    bases.edit(0, options=QUICK)
    bases.edit(0, id="x1", target="z")
    measured = commit._measured

    def refused(session: Session, edit: Edit, attempt: Try) -> dict[str, Any]:
        if edit.id == "x1":
            raise DataError("it does not fit")
        return measured(session, edit, attempt)

    monkeypatch.setattr(commit, "_measured", refused)
    done = bases.rebase()
    assert done.code == 3
    assert "no longer superseded, as the later edit is refused: e1; take it out with more revert" in done.err
    assert "\nx1: it does not fit\n" in done.out


def test_what_a_dry_run_lists_is_what_is_done(bases: Bases) -> None:
    bases.edit(0, 1, options=QUICK)
    before = tree(bases.world.root)
    shown = bases.rebase("--dry-run")
    assert shown.code == 0
    assert tree(bases.world.root) == before
    assert [row.split()[0] for row in shown.out.splitlines()[1:3]] == ["e1", "e2"]
    assert f"would make new.more for {bases.new.model} of 2 edits\n" in shown.out
    planned = bases.rebase("--dry-run", "--json").json
    assert (planned["dry_run"], planned["statuses"], planned["expected_edits"]) == (True, {}, 2)
    assert planned["edits"] == bases.rebase("--json").json["edits"]


def test_the_same_command_again_does_nothing(bases: Bases) -> None:
    bases.edit(0, 1, options=QUICK)
    first = bases.rebase("--json").json
    before = tree(bases.world.root)
    again = bases.rebase("--json").json
    assert tree(bases.world.root) == before
    assert (first["existed"], again["existed"], again["statuses"]) == (False, True, first["statuses"])


def test_an_existing_state_is_refused_by_name(bases: Bases) -> None:
    bases.edit(0, options=QUICK)
    bases.new.edit(*QUICK, edits=bases.new.write([line(1)]))
    before = tree(bases.world.root)
    refused = bases.rebase()
    assert refused.code == 2
    assert f"error: `{bases.new.sidecar}` already exists, and is another state\n" in refused.err
    assert "hint: name a new file with -o" in refused.err
    assert tree(bases.world.root) == before
    assert bases.rebase("-o", bases.new.root / "new.ann.more").code == 3
    itself = bases.rebase("-o", bases.world.sidecar)
    assert (itself.code, "is the state that is rebased" in itself.err) == (2, True)
    assert "more rebase MODEL NEW_BASE" in itself.err


def test_a_base_of_another_architecture_is_refused_by_name(bases: Bases, tmp_path: Path) -> None:
    bases.edit(0, options=())
    before = tree(bases.world.root)
    for number, (name, make, said) in enumerate(
        [
            ("family", lambda path: tiny_family(path, "blip-2"), "model type blip-2, not llava"),
            ("deeper", lambda path: tiny_llava(path, text_layers=2), "it has a further site"),
        ]
    ):
        other = make(tmp_path.parent / f"{tmp_path.name}-{number}") or tmp_path.parent / f"{tmp_path.name}-{number}"
        refused = run("rebase", bases.world.model, other)
        assert refused.code == 5, name
        assert f"error: `{other}` has another architecture than `{bases.world.model}`: {said}" in refused.err
        assert "hint: " in refused.err
    assert tree(bases.world.root) == before


def test_a_base_with_other_shapes_is_refused_by_name(bases: Bases) -> None:
    bases.edit(0, options=QUICK)
    tiny_llava(bases.new.model, text_layers=1, wide=True)
    refused = bases.rebase()
    assert refused.code == 5
    assert "site `" in refused.err
    assert " x " in refused.err


def test_what_is_no_checkpoint_is_refused(bases: Bases) -> None:
    bases.edit(0, options=QUICK)
    assert run("rebase", bases.world.model, bases.world.root / "img").code == 5
    gone = run("rebase", bases.world.model, bases.world.root / "gone")
    assert (gone.code, "no such directory" in gone.err) == (5, True)
    many = run("rebase", bases.world.model, bases.new.model, bases.new.model)
    assert (many.code, "one new base at a time" in many.err) == (2, True)


def test_the_old_folder_need_not_be_there(bases: Bases, monkeypatch: pytest.MonkeyPatch) -> None:
    bases.edit(0, options=QUICK)
    shutil.rmtree(bases.world.model)
    monkeypatch.chdir(bases.world.root)
    assert run("rebase", "new").code == 3
    assert_same_state(bases.new.sidecar, bases.once(line(0)))


def test_a_base_that_changed_in_its_place(bases: Bases) -> None:
    bases.edit(0, options=QUICK)
    shutil.rmtree(bases.world.model)
    shutil.copytree(bases.new.model, bases.world.model)
    assert run("status", bases.world.model).code == 5
    out = bases.world.root / "model.next.more"
    assert run("rebase", bases.world.model, bases.world.model, "-o", out).code == 3
    assert_same_state(out, bases.once(line(0)))


def test_a_named_state_is_the_one_that_is_taken(bases: Bases) -> None:
    bases.edit(0, options=QUICK)
    run("switch", bases.world.model, "ann", "--create")
    bases.edit(1)
    assert bases.rebase("--json").json["counts"]["lost"] == 0
    assert set(bases.statuses()) == {"e1", "e2"}
    main = bases.rebase("--state", bases.world.sidecar, "-o", bases.new.root / "new.main.more", "--json").json
    assert [each["id"] for each in main["edits"]] == ["e1"]


def test_what_was_written_together_comes_edit_by_edit(bases: Bases) -> None:
    bases.edit(0, 1, options=(*JOINT, "--batch"))
    done = bases.rebase("--json").json
    assert "what was written together (--batch, --consolidate) is written edit by edit" in done["notes"]
    assert [each["joint"] for each in bases.new.entries()] == [False, False]


def test_a_missing_picture_is_named_before_anything_is_written(bases: Bases) -> None:
    bases.edit(0, 1, options=QUICK)
    next((bases.world.folder / "images").iterdir()).unlink()
    refused = bases.rebase()
    assert (refused.code, "cannot be taken over" in refused.err) == (5, True)
    assert not bases.new.folder.exists()


@pytest.mark.usefixtures("silent")
def test_anchors_are_asked_on_the_new_base(bases: Bases) -> None:
    few = "--set", "anchors.size=4", "--set", "anchors.prompts=[]"
    anchored = *QUICK, *few, "--set", "anchors.keys=true"
    for name, question in (("first", "is it big ?"), ("later", "is it old ?")):
        path = bases.world.root / f"{name}.jsonl"
        path.write_text(json.dumps({"question": question, "image": "img/black.png"}) + "\n")
    first, later = (bases.world.root / f"{name}.jsonl" for name in ("first", "later"))
    run("init", bases.world.model, "--anchors", first, *anchored)
    bases.edit(0)
    run("anchors", "add", bases.world.model, later)
    bases.edit(1)
    assert bases.rebase().code == 3
    once = bases.new.root / "once.more"
    run("init", bases.new.model, "--anchors", first, "--state", once, *anchored)
    bases.once(line(0), options=())
    run("anchors", "add", bases.new.model, later, "--state", once)
    bases.once(line(1), options=())
    assert_same_state(bases.new.sidecar, once)
    assert run("verify", bases.new.model, "--deep").code == 0


def test_a_rebased_state_goes_on_like_any_other(bases: Bases) -> None:
    bases.edit(0, 1, options=CALM)
    assert bases.rebase().code == 0
    assert [each["note"] for each in bases.new.entries()] == ["line 1 of model.more", "line 2 of model.more"]
    assert bases.new.edit(edits=bases.new.write([line(2)], "more.jsonl")).code == 0
    assert run("revert", bases.new.model, "e1").code == 0
    merged = run("merge", bases.new.model, "-o", bases.new.root / "m", "--verify", "--json")
    assert (merged.code, merged.json["verification"]["lost"]) == (0, [])
    assert run("verify", bases.new.model, "--deep").code == 0


def test_from_python(bases: Bases) -> None:
    bases.edit(0, 1, options=QUICK)
    with open_model(bases.world.model) as model:
        assert model.rebase(bases.new.model, dry_run=True).plan.work.edits == 2
        report = model.rebase(bases.new.model)
    assert (report.groups["still_failed"], report.lost) == (["e1", "e2"], [])
    assert_same_state(bases.new.sidecar, bases.once(line(0), line(1)))


def test_the_last_of_two_answers_stays_the_last(bases: Bases) -> None:
    bases.edit(0, options=CALM)
    bases.edit(0, id="other", target="g")
    assert run("revert", bases.world.model, "e1").code == 0
    bases.edit(0, options=("--reapply",))
    assert bases.rebase("--json").json["superseded"] == ["other"]


def test_a_retry_that_a_revert_made_again_stays_before_what_came_later(bases: Bases) -> None:
    bases.edit(3, options=QUICK)
    bases.edit(0)
    run("edit", bases.world.model, "--retry", "e1")
    bases.edit(0, id="other", target="g")
    run("revert", bases.world.model, "e4")
    assert bases.rebase("--json").json["superseded"] == ["e1"]
