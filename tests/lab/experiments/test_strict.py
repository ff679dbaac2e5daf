"""`more:strict`: targets without an end, MMEdit's prompts, and keys of locality questions that never score an edit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.core import recursion
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.more.rehearsal import EncodedEdits
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.inputs.images import ImageCache
from more_cli.model.batches import Query
from more_cli.model.loading import load_prompter, load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import ask_anchors, identity
from more_cli.runner.anchors import choose_anchors
from more_cli.store.state import load_state
from more_cli.suites.load import EditSuite, load_suite
from support.helpers import World, line, run
from support.tiny_families import tiny_family

QUESTION = "what colour is it ?"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A copy of E-VQA whose calibration pool asks about another picture than the edits do, but once."""
    world = World(tmp_path_factory.mktemp("strict") / "world", text_layers=4)
    root = world.mmedit(4)
    train = json.loads((root / "vqa_train.json").read_text())
    for record in train[1:]:
        record["m_loc"] = "img/white.png"
    (root / "vqa_train.json").write_text(json.dumps(train))
    (root / "img").symlink_to(world.root / "img")
    return world


@pytest.fixture(scope="module")
def runtime(world: World) -> Runtime:
    return load_runtime(open_checkpoint(world.model), Machine(dtype="float32"), prompts="mmedit")


@pytest.fixture
def suite(world: World) -> EditSuite:
    found = load_suite("e-vqa", world.root / "mmedit")
    assert isinstance(found, EditSuite)
    return found


def made(world: World, *settings: str) -> MoreEditor:
    editor = entry_of("more:strict").make(EditorOptions(world.model, settings=settings))
    assert isinstance(editor, MoreEditor)
    return editor


def request(world: World, target: str = "r") -> EditRequest:
    image = ImageCache(world.root / "img").locate("red.png")
    return EditRequest("e1", Query((image,), QUESTION), target)


def test_the_target_of_an_edit_has_no_end(world: World, runtime: Runtime) -> None:
    edit, context = request(world), EditContext()
    ended, bare = EncodedEdits(runtime), EncodedEdits(runtime, ended=False)
    for edits in (ended, bare):
        edits.put(1, edit)
    whole, shorter = ended.get(1, context), bare.get(1, context)
    assert whole.target_ids == [*shorter.target_ids, runtime.prompter.eos]
    assert shorter.input_ids.tolist() == whole.input_ids.tolist()[:-1]
    assert shorter.unended.unended.target_ids == shorter.target_ids[:1], "something has to be trained"


def test_an_end_changes_what_is_written(world: World, runtime: Runtime) -> None:
    written = []
    for end in ("true", "false"):
        editor = made(world, f"end_of_sequence={end}", "max_steps=1")
        with editor.attach(runtime):
            outcome = editor.edit(request(world), EditContext())
        written.append(editor.state_dict())
        expected = runtime.encode(request(world).query, "r")
        scored = expected if end == "true" else expected.unended
        with editor.attach(runtime), runtime.base():
            nll = float(runtime.score(runtime.batch([scored])).nll()[0])
        assert outcome.before.nll == pytest.approx(nll, abs=1e-5)
    assert any(not torch.equal(written[0][name], written[1][name]) for name in written[0] if name.endswith(".B"))


def test_a_question_about_a_picture_is_worded_as_in_mmedits_code(world: World, runtime: Runtime) -> None:
    images, prompter = request(world).query.images, runtime.prompter
    own = load_prompter(open_checkpoint(world.model))
    worded = f"Question: {QUESTION} Short answer:"
    assert prompter.render(Query(images, QUESTION)) == own.render(Query(images, worded))
    for query in (Query(images, "a photo of"), Query((), QUESTION)):
        assert prompter.render(query) == own.render(query), "captions and text-only questions are bare"
    assert prompter.template == own.template


@pytest.mark.parametrize(
    ("family", "prompt"),
    [("blip-2", "Question: {} Short answer:"), ("paligemma", "<image>Question: {} Short answer:")],
)
def test_it_takes_the_place_of_a_phrasing(world: World, tmp_path: Path, family: str, prompt: str) -> None:
    checkpoint = open_checkpoint(tiny_family(tmp_path / "model", family=family))
    prompter, images = load_prompter(checkpoint, prompts="mmedit"), request(world).query.images
    assert prompter.render(Query(images, QUESTION)) == prompt.format(QUESTION)
    assert prompter.render(Query(images, "a photo of")) == prompt.replace("Question: {} Short answer:", "a photo of")
    encoded = prompter.encode(Query(images, QUESTION), "r")
    assert prompter.text(encoded.target_ids) == "r"


def test_keys_come_from_locality_questions_that_score_no_edit(world: World, suite: EditSuite) -> None:
    editor, scored = made(world), {identity(p) for edit in suite.pools["evaluation"] for p in edit.locality}
    questions = choose_anchors(editor, None, suite)
    assert [not question.images for question in questions] == [True, False, *[True] * 3], "in turn, while there are"
    assert not scored & set(map(identity, questions))
    pool = {identity(p) for edit in suite.pools["calibration"] for p in edit.locality}
    assert set(map(identity, questions)) == pool - scored != pool
    assert choose_anchors(made(world, "anchors.per_edit=0"), None, suite) == ()


def test_p_of_the_written_sites_absorbs_two_of_them_after_an_edit(
    world: World, runtime: Runtime, suite: EditSuite, tmp_path: Path
) -> None:
    """The written ones alone: keys and P are those without locality questions, then two Sherman-Morrison updates."""
    plain, ours = made(world, "anchors.per_edit=0", "top_k=2"), made(world, "top_k=2")
    questions = choose_anchors(ours, None, suite)
    with plain.attach(runtime):
        plain.edit(request(world), EditContext())
    with ours.attach(runtime):
        anchors = ask_anchors(runtime, questions, tmp_path / "answers")
        ours.hold(anchors, fresh=True)
        outcome = ours.edit(request(world), EditContext())
        expected = {record.name: plain.state_dict()[f"{record.name}.P"] for record in plain.records}
        for anchor in anchors[:2]:
            runtime.score(runtime.batch([anchor.encoded]), keys=True)
            for name, key in ours.sites.mean_keys().items():
                if name in outcome.sites:
                    expected[name] = recursion.absorb(expected[name], key, 2000.0, "unit")
    more = {a.name: a.keys - b.keys for a, b in zip(ours.records, plain.records, strict=True)}
    assert 0 < len(outcome.sites) < len(more)
    projector = {name for name in more if name.startswith("projector")}
    assert more == {name: (name in outcome.sites) * (1 if name in projector else 2) for name in more}
    for name, P in expected.items():
        torch.testing.assert_close(ours.state_dict()[f"{name}.P"], P)
    assert all(torch.equal(ours.state_dict()[f"{n}.B"], plain.state_dict()[f"{n}.B"]) for n in more)


def evaluated(world: World, editor: str, *options: object) -> dict[str, Any]:
    where = "--suite", "e-vqa", "--data-root", world.root / "mmedit", "--cache", world.root / "cache"
    result = run("run", world.model, *where, "--editor", editor, "--dtype", "float32", "--json", *options)
    assert result.code == 0, result.err
    return result.json


def test_it_runs_on_a_suite_with_five_writes_an_edit(world: World) -> None:
    result = evaluated(world, "more:strict")
    assert [edit["outcome"]["writes"] for edit in result["stream"]] == [5] * 4
    constants = result["reproduce"]["constants"]
    assert (constants["end_of_sequence"], constants["prompts"], constants["anchors"]["per_edit"]) == (
        False,
        "mmedit",
        2,
    )
    assert result["reproduce"]["anchors"]
    assert result["left_out"] == 0, "no probe is lost to the questions whose keys enter P"
    assert "strict" in result["notices"][0]
    authors = evaluated(world, "more:authors")
    assert authors["reproduce"]["anchors"] is None
    assert evaluated(world, "more:strict")["resumed"] == 4, "other prompts have another cache of the base's answers"
    assert evaluated(world, "more:strict", "--again")["metrics"] == result["metrics"]


def test_a_suite_without_such_questions_says_so(world: World) -> None:
    world.write([line(0)])
    where = "--suite", world.root / "edits.jsonl", "--cache", world.root / "cache", "--dtype", "float32"
    result = run("run", world.model, *where, "--editor", "more:strict", "--json")
    assert result.code == 0, result.err
    assert any("no calibration pool" in notice for notice in result.json["notices"])


def test_a_state_keeps_the_switches_and_verifies(tmp_path: Path) -> None:
    world = World(tmp_path / "world", text_layers=4)
    world.edits(2)
    assert run("init", world.model, "--recipe", "strict").code == 0
    edited = world.edit("--dtype", "float32")
    assert edited.code in (0, 1), edited.err
    recipe = load_state(world.sidecar).meta.recipe
    assert (recipe.end_of_sequence, recipe.prompts, recipe.anchors.per_edit) == (False, "mmedit", 2)
    verified = run("verify", world.model, "--dtype", "float32")
    assert verified.code == 0, verified.err
