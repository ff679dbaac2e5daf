"""`init --anchors auto`: anchors from pictures that the user has, none of them about an edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from more_cli.editors.more.editor import MoreEditor
from more_cli.files import sha256_file
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.inputs.wording import words_of
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.ops import auto_anchors as auto_anchors_module
from more_cli.ops.about import alike
from more_cli.ops.auto_anchors import NEUTRAL, PER_PICTURE, PICTURED, SIZE, TEXT, of_edits, with_prompts
from more_cli.recipe.files import load_recipe
from support.helpers import COLOURS, Result, World, line, run
from support.refused import assert_refused

QUESTIONS = ("what colour is it ?", "is it a dog ?", "how old is the fox ?", "where is the chair ?", "who sits there ?")
FEW = ("--set", 'anchors.prompts=["what is 2 plus 3 ?"]', "--set", "anchors.questions=[]")
NEUTRAL_QUESTION = ("--set", 'anchors.questions=["What is in the picture?"]', "--set", "anchors.prompts=[]")
LOOP = ("--set", "max_steps=2", "--set", "rehearsal.size=0")

pytestmark = pytest.mark.usefixtures("silent")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Five edits that ask different things of different pictures."""
    world = World(tmp_path / "world", text_layers=2)
    world.write([line(number, question=question) for number, question in enumerate(QUESTIONS)])
    return world


def auto(world: World, *options: object, source: object = None) -> Result:
    return run("init", world.model, "--anchors", "auto", source or world.root / "edits.jsonl", *LOOP, *options)


def asked(world: World, *state: object) -> set[tuple[str, str]]:
    """Picture, by its name, and question of every anchor."""
    names = {sha256_file(path): path.stem for path in (world.root / "img").iterdir()}
    listed = run("anchors", "list", world.model, *state, "--json").json["anchors"]
    assert all(anchor["answer"] is None for anchor in listed)
    pairs = [(names.get(anchor["image"] or "", ""), anchor["question"]) for anchor in listed]
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def made(world: World, lines: list[dict[str, Any]], *options: object) -> set[tuple[str, str]]:
    world.write(lines)
    done = auto(world, *options)
    assert done.code == 0, done.err
    return asked(world)


def test_every_picture_is_asked_the_questions_of_the_other_edits(world: World) -> None:
    done = auto(world, *FEW)
    assert done.code == 0, done.err
    assert f"21 anchors: 20 about pictures of {world.root / 'edits.jsonl'}, 1 text only" in done.out
    pairs = {(colour, question) for colour in COLOURS[:5] for question in QUESTIONS}
    own = set(zip(COLOURS, QUESTIONS, strict=False))
    assert asked(world) == pairs - own | {("", "what is 2 plus 3 ?")}


def test_what_the_base_answers_as_it_answers_the_corrected_question_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = QUESTIONS[:2]

    def said(_: Runtime, queries: Sequence[Query], limit: int) -> list[list[int]]:
        return [[20 if query.question in alike else 20 + len(query.question.split("o"))] for query in queries]

    monkeypatch.setattr(Runtime, "generate", said)
    assert auto(world, *FEW).code == 0
    pairs = {(colour, question) for colour in COLOURS[:5] for question in QUESTIONS}
    own = set(zip(COLOURS, QUESTIONS, strict=False))
    assert pairs - own - asked(world) == {(COLOURS[0], alike[1]), (COLOURS[1], alike[0])}
    again = auto(world, *FEW)
    assert (again.code, "already exists, unchanged" in again.out) == (0, True)


def test_edit_makes_none_where_it_is_told_so_or_the_recipe_takes_none(world: World) -> None:
    done = world.edit("--no-anchors", *LOOP)
    assert run("anchors", "list", world.model, "--json").json["anchors"] == []
    assert "anchors" not in done.err
    paper = "--state", world.root / "paper.more"
    assert world.edit("--anchors", "--recipe", "paper-llava", "--set", "last=1", *paper).code in (0, 3)
    assert run("anchors", "list", world.model, *paper, "--json").json["anchors"] == []


def test_an_anchor_that_an_edit_corrects_is_held_no_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held = list[set[str]]()
    edit = MoreEditor.edit

    def watched(editor: MoreEditor, *args: Any) -> Any:
        anchors = [*editor._held.values(), *(editor._watched.anchors.values() if editor._watched else ())]
        held.append({anchor.question for anchor in anchors})
        return edit(editor, *args)

    monkeypatch.setattr(MoreEditor, "edit", watched)
    prompts = 'anchors.prompts=["2 plus 3 ?", "3 plus 3 ?"]'
    done = auto(world, "--set", prompts, "--set", "anchors.questions=[]", "--set", "anchors.watched=1")
    assert (done.code, "22 anchors" in done.out) == (0, True)
    world.write([line(0), {"id": "sum", "question": "3  PLUS 3 ?", "target": "b"}, line(1)])
    assert world.edit().code in (0, 3)
    before, after = {*QUESTIONS, "2 plus 3 ?", "3 plus 3 ?"}, {*QUESTIONS, "2 plus 3 ?"}
    assert held == [before, after, after]

    listed = run("anchors", "list", world.model, "--json").json["anchors"]
    corrected = {(anchor["question"], anchor["corrected_by"]) for anchor in listed if anchor["corrected_by"]}
    assert corrected == {("3 plus 3 ?", "sum"), (line(1)["question"], "e2")}
    shown = run("anchors", "list", world.model).out
    assert "corrected by sum" in shown
    assert f"holds {len(listed) - 2} anchors; edits correct 2 others, held no longer" in shown
    status = run("status", world.model, "--json").json
    assert (status["anchors"], status["drift"]["watched"]) == (len(listed) - 2, len(listed) - 2)
    known = world.write([{"question": "2 plus 3 ?"}], "known.jsonl")
    again = run("anchors", "add", world.model, known, "--json").json
    assert (again["added"], again["repeated"], again["anchors"]) == (0, 1, len(listed) - 2)
    world.write([line(2)])
    assert world.edit().code in (0, 3)  # a new process
    assert held[3:] == [after]
    assert run("verify", world.model, "--deep").code == 0  # it replays the ledger and finds the same bytes
    assert run("revert", world.model, "sum").code in (0, 3)
    assert run("status", world.model, "--json").json["anchors"] == len(listed) - 2  # e2 and e3 remain
    world.write([line(3)])
    assert world.edit().code in (0, 3)
    assert held[-1] == before


def test_the_state_is_like_one_with_a_file_of_anchors(world: World) -> None:
    world.write([line(number, question=question) for number, question in enumerate(QUESTIONS[:3])])
    done = auto(world, *FEW, "--json")
    assert (done.json["anchors"], done.json["pictured"]) == (7, 6)
    assert run("status", world.model, "--json").json["anchors"] == 7
    again = auto(world, *FEW)
    assert (again.code, "already exists, unchanged" in again.out) == (0, True)
    assert world.edit().code in (0, 3)
    for colour in COLOURS:  # the state has its own copies
        (world.root / "img" / f"{colour}.png").unlink()
    assert run("revert", world.model, "e2").code in (0, 3)
    assert run("gc", world.model).code == 0
    assert run("verify", world.model, "--deep").code == 0


def test_the_same_file_and_seed_give_the_same_anchors_in_any_order_of_lines(world: World) -> None:
    lines = [line(number, question=question) for number, question in enumerate(QUESTIONS[:3])]
    world.write(lines)

    def drawn(*options: object) -> list[dict[str, Any]]:
        state = "--state", world.root / f"{len(list(world.root.glob('*.more')))}.more"
        assert auto(world, *FEW, *state, *options).code == 0
        return run("anchors", "list", world.model, *state, "--json").json["anchors"]

    first, again, other = drawn(), drawn(), drawn("--set", "seed=7")
    assert first == again
    assert first != other
    world.write(lines[::-1])
    assert drawn() == first


def test_nothing_that_could_be_about_an_edit_is_asked(world: World) -> None:
    red, green, blue = (f"img/{colour}.png" for colour in COLOURS[:3])
    lines = [
        line(0, question="which animal is shown ?", rephrases=["what beast is that ?"], image_rephrases=[green]),
        line(
            1, question="is the beast old ?", portability=[{"image": red, "question": "does it bark ?", "answer": "y"}]
        ),
        line(2, question="what is that beast called ?"),
        line(3, question="does it bark loudly ?", locality=[{"image": blue, "question": "is the beast OLD ?"}]),
    ]
    pairs = made(world, lines, *FEW)
    corrected = {  # on the picture itself or a further one of the same thing; in other words; what follows; a probe
        ("red", "which animal is shown ?"),
        ("red", "is the beast old ?"),
        ("red", "what is that beast called ?"),
        ("green", "which animal is shown ?"),
        ("green", "what is that beast called ?"),
        ("red", "does it bark loudly ?"),
        ("blue", "is the beast old ?"),
    }
    assert not pairs & corrected
    assert {
        ("green", "does it bark loudly ?"),
        ("yellow", "is the beast old ?"),
        ("yellow", lines[0]["question"]),
    } < pairs


def test_the_target_counts_among_the_words(world: World) -> None:
    """`is the ring blue ?` is about a correction of `what colour is the ring ?` to blue, and not about one to 9."""
    ring = line(0, question="what colour is the ring ?", target="blue")
    lines = [ring, line(1, question="is the ring blue ?"), ring | {"id": "e3", "image": "img/blue.png", "target": "9"}]
    pairs = made(world, lines, *FEW)
    assert ("red", "is the ring blue ?") not in pairs
    assert ("blue", "is the ring blue ?") in pairs


def test_prompts_that_an_edit_is_about_are_left_out(world: World) -> None:
    fact = {"id": "f", "question": "Is the capital of France Lyon ?", "target": "yes"}
    prompts = '["What is the capital of France?", "what is 2 plus 3 ?", "who is it ?"]'
    lines = [*(line(number) for number in range(2)), fact, line(3, locality=[{"question": "Who is it ?"}])]
    assert made(world, lines, "--set", f"anchors.prompts={prompts}", "--set", "anchors.questions=[]") == {
        ("", "what is 2 plus 3 ?")
    }


def test_neutral_questions_are_not_asked_of_pictures_that_are_corrected_as_a_whole(world: World) -> None:
    lines = [line(0, question="a photo of"), line(1, question="is the fox old ?"), line(2, question="What is it ?")]
    pairs = made(world, lines, *NEUTRAL_QUESTION)
    assert pairs == {
        ("red", "is the fox old ?"),
        ("blue", "is the fox old ?"),
        ("green", "a photo of"),
        ("green", "What is it ?"),
        ("green", "What is in the picture?"),
    }


def test_a_file_without_pictures_gives_text_alone_and_says_so(world: World) -> None:
    world.write([{"question": "who wrote it ?", "target": "a"}])
    done = auto(world)
    assert done.code == 0, done.err
    assert f"{TEXT} anchors: {TEXT} text only" in done.out
    assert "note: all anchors are text only" in done.err
    assert "--anchors auto FOLDER" in done.err


def test_pictures_of_a_folder_are_asked_neutral_questions(world: World) -> None:
    (world.root / "img" / "notes.txt").write_text("no picture")
    (world.root / "img" / ".red.png").write_bytes(b"no picture either")
    (world.root / "img" / "same.png").write_bytes((world.root / "img" / "red.png").read_bytes())
    done = auto(world, *NEUTRAL_QUESTION, source=world.root / "img")
    assert done.code == 0, done.err
    assert f"8 anchors: 8 about pictures of {world.root / 'img'}, 0 text only" in done.out
    assert len({picture for picture, _ in asked(world)}) == 8


def test_a_model_that_takes_no_text_alone_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_anchors_module, "OWN", 12)  # nor any that it would ask itself
    world = World(tmp_path / "world", family="mllama")
    world.write([line(number, question=question) for number, question in enumerate(QUESTIONS[:2])])
    done = auto(world, "--set", "anchors.questions=[]")
    assert done.code == 0, done.err
    assert "2 anchors: 2 about pictures" in done.out
    world.write([line(0)])
    state = "--state", tmp_path / "other.more"
    refused = auto(world, "--set", "anchors.questions=[]", *state)
    assert_refused(refused, 4, "no anchors can be made from", "--anchors auto FOLDER")


def test_mistakes(world: World) -> None:
    (world.root / "empty").mkdir()
    assert_refused(auto(world, source=world.root / "empty"), 4, "empty` holds no pictures", "readable are PNG")
    assert_refused(auto(world, source=world.root / "none.jsonl"), 4, "none.jsonl")
    (world.root / "img" / "damaged.png").write_bytes(b"damaged")
    assert_refused(auto(world, source=world.root / "img"), 4, "`damaged.png` is not a readable image")
    bare = run("init", world.model, "--anchors", "auto")
    assert_refused(bare, 2, "none are named", f"more init {world.model} --anchors auto edits.jsonl")
    source = world.root / "edits.jsonl"
    for other in ((), ("--anchors", world.root / "anchors.jsonl")):
        refused = run("init", world.model, source, *other)
        assert_refused(refused, 2, "is read with `--anchors auto` only")
    paper = run("init", world.model, "--anchors", "auto", source, "--recipe", "paper-llava")
    assert_refused(paper, 2, "recipe `paper-llava` does not use anchors")
    assert not world.sidecar.exists()


def test_prompts_join_anchors_that_nearly_all_have_a_picture(world: World) -> None:
    about_pictures = [{"question": "who is it ?", "image": f"img/{colour}.png"} for colour in ("red", "blue")]
    prompts = load_recipe("default").anchors.prompts
    world.write([*about_pictures, {"question": prompts[3]}], "thin.jsonl")
    done = run("init", world.model, "--anchors", world.root / "thin.jsonl", *LOOP)
    assert done.code == 0, done.err
    assert "few anchors had no picture, so 39 text-only ones were added" in done.err
    questions = [question for _, question in asked(world)]
    assert sorted(question for question in questions if question != "who is it ?") == sorted(prompts)
    shown = run("status", world.model)
    assert "42: 2 about a picture, 40 text only" in shown.out
    found = run("status", world.model, "--json").json
    assert (found["anchors"], found["pictured"]) == (42, 2)
    again = run("init", world.model, "--anchors", world.root / "thin.jsonl", *LOOP)
    assert (again.code, "unchanged" in again.out) == (0, True)


def test_the_base_asks_itself_questions_that_join_what_is_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_anchors_module, "OWN", 12)
    done = auto(world, *FEW)
    assert done.code == 0, done.err
    alone = [question for picture, question in asked(world) if not picture]
    assert "what is 2 plus 3 ?" in alone
    assert 2 <= len(alone) <= 13
    first = world.sidecar.read_bytes()
    assert "unchanged" in auto(world, *FEW).out
    state = world.root / "again.more"
    assert auto(world, *FEW, "--state", state).code == 0
    assert state.read_bytes() == first, "the same seed asks the same"
    assert asked(world, "--state", state) == asked(world)
    none = auto(world, *FEW[2:], "--set", "anchors.prompts=[]", "--state", world.root / "none.more")
    assert "0 text only" in none.out


def test_prompts_join_only_where_one_write_would_draw_more_text(world: World) -> None:
    recipe = load_recipe("default")
    alone = [Probe(f"who is {n} ?") for n in range(8)]
    assert with_prompts(alone, recipe) == tuple(alone)
    assert with_prompts(alone[:7], recipe)[:7] == tuple(alone[:7])
    assert len(with_prompts(alone[:7], recipe)) == 40
    assert with_prompts((), recipe) == ()
    none = load_recipe("default", ["anchors.prompts=[]"])
    assert with_prompts(alone[:1], none) == (alone[0],)


def test_a_file_that_is_called_auto_is_named_by_its_path(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    world.write([{"question": "who is it ?"}], "auto")
    done = run("init", world.model, "--anchors", "./auto", *LOOP)
    assert done.code == 0, done.err
    assert ("", "who is it ?") in asked(world)


def picture(number: int) -> ImageSource:
    return ImageSource(f"{number}.png", None, f"{number:064}")


def test_a_long_file_gives_a_full_set_spread_over_pictures_and_questions() -> None:
    subjects = [f"thing{number}" for number in range(40)]
    edits = [Edit(f"e{n}", (picture(n),), f"where is the {subjects[n % 40]} ?", "here") for n in range(2000)]
    anchors = of_edits(edits, load_recipe("default")).anchors
    pictured = [anchor for anchor in anchors if anchor.images]
    assert (len(anchors), len(pictured)) == (SIZE, PICTURED)
    neutral = Counter(anchor.question for anchor in pictured if "thing" not in anchor.question)
    others = Counter(anchor.question for anchor in pictured if "thing" in anchor.question)
    assert sum(neutral.values()) == NEUTRAL
    assert (len(others), max(others.values()) - min(others.values())) == (40, 1)
    assert max(neutral.values()) - min(neutral.values()) <= 1
    assert max(Counter(anchor.images for anchor in pictured).values()) <= 2


def test_where_all_edits_ask_the_same_neutral_questions_fill_up() -> None:
    edits = [Edit(f"e{number}", (picture(number),), "what shape is it ?", "ring") for number in range(100)]
    anchors = of_edits(edits, load_recipe("default")).anchors
    assert len([anchor for anchor in anchors if anchor.images]) == PICTURED
    few = of_edits(edits[:5], load_recipe("default")).anchors
    assert len([anchor for anchor in few if anchor.images]) == 5 * PER_PICTURE
    assert len([anchor for anchor in few if not anchor.images]) == TEXT


def test_edits_about_several_pictures_give_pictures_and_no_question() -> None:
    edits = [Edit("e1", (picture(1), picture(2)), "which fox is older ?", "x"), Edit("e2", (picture(3),), "why ?", "y")]
    anchors = of_edits(edits, load_recipe("default", ["anchors.questions=[]", "anchors.prompts=[]"])).anchors
    assert {(*anchor.images, anchor.question) for anchor in anchors} == {(picture(1), "why ?"), (picture(2), "why ?")}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What colour is the CAR?", "what colours are the cars ?", True),
        ("what colour is the car ?", "what shape is the boat ?", False),
        ("what is it ?", "Describe the picture.", True),
        ("what is it ?", "what colour is the car ?", False),
        ("is the ring on the left ?", "is the ring on the right ?", False),
    ],
)
def test_questions_are_compared_by_the_words_that_name_something(one: str, other: str, same: bool) -> None:
    assert alike(words_of(one), words_of(other)) is same


def test_the_recipe_of_a_state_does_not_repeat_the_questions() -> None:
    """So a state of an older version has the recipe that its name has now."""
    recipe = load_recipe("default")
    assert len(recipe.anchors.prompts) == TEXT
    assert not {"prompts", "questions"} & recipe.canonical()["anchors"].keys()
    assert not [Probe(text) for text in recipe.anchors.questions if len(words_of(text)) > 2]
