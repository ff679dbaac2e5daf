"""The recipe of the panel: its worlds, its models' forward pass, and the suites it harvests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from more_cli.inputs.edits import read_edits, read_probes
from more_cli.suites.load import EditSuite, load_suite
from support.paths import DATA
from worlds.embedded import transformer
from worlds.embedded.world.pools import Dice
from worlds.panel import build, train
from worlds.panel.answers import Answerer
from worlds.panel.members import MEMBERS, Member, pixels
from worlds.panel.shapes import family_of
from worlds.panel.worlds import CALIBRATED, NEW, Pool, World, world_named

WORLDS = ("orchard", "harbour", "signs", "gardens", "reef", "carnival")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return world_named(request.param)


def test_halves_have_equal_spread() -> None:
    halves = {half: [m for m in MEMBERS.values() if m.half == half] for half in ("development", "held-out")}
    for trait in ("width", "precision", "text"):
        first, second = ({getattr(member, trait) for member in half} for half in halves.values())
        assert trait == "width" or first == second
    assert not {m.world for m in halves["development"]} & {m.world for m in halves["held-out"]}
    assert [len(half) for half in halves.values()] == [4, 4]


def test_the_fresh_half_shares_no_world_and_each_of_its_worlds_has_a_weak_base() -> None:
    fresh = [member for member in MEMBERS.values() if member.half == "fresh"]
    assert not {m.world for m in fresh} & {m.world for m in MEMBERS.values() if m.half != "fresh"}
    for name in {member.world for member in fresh}:
        stopped = [member.horizon > member.steps for member in fresh if member.world == name]
        assert sorted(stopped) == [False, True]


@pytest.mark.parametrize("name", ["reef", "carnival"])
def test_fresh_worlds_share_no_drawing_word_wording_or_syllable_with_another(name: str) -> None:
    fresh = world_named(name)
    for other in (world_named(each) for each in WORLDS if each != name):
        assert fresh.number != other.number
        assert fresh.paint is not other.paint
        for trait in ("kinds", "colours", "sizes", "places", "grounds", "numbers", "syllables"):
            assert not set(getattr(fresh, trait)) & set(getattr(other, trait)), (other.name, trait)
        mine, theirs = (
            {
                text
                for w in (*each.asks.values(), *(f[0] for f in each.facts.values()))
                for text in (*w.trained, *w.unseen)
            }
            for each in (fresh, other)
        )
        assert not mine & theirs
        answers, others = ({a for _, known in each.facts.values() for a in known} for each in (fresh, other))
        assert not answers & others


def test_unseen_wordings_are_not_trained(world: World) -> None:
    trained = {text for wordings in world.asks.values() for text in wordings.trained}
    unseen = {text for wordings in world.asks.values() for text in wordings.unseen}
    assert all(len(set(w.trained)) >= 4 and len(set(w.unseen)) == 2 for w in world.asks.values())
    assert not trained & unseen


def test_things_of_a_picture_differ_in_kind_and_place(world: World) -> None:
    for index in range(200):
        things = world.scene(Pool.TRAINING, index).things
        assert len({thing.kind for thing in things}) == len({thing.place for thing in things}) == len(things)
        new = range(len(world.kinds), len(world.names))
        assert not {thing.kind for thing in things} & set(new), "training shows no new object"


def test_looks_and_names_are_unique(world: World) -> None:
    assert len(set(world.looks)) == len(world.looks) == 120
    assert len(set(world.names)) == len(world.names) == len(world.kinds) + NEW


def test_nameless_things_of_the_readers_are_not_the_new_ones(world: World) -> None:
    shown = {thing.kind for index in range(500) for thing in world.scene(Pool.SEEING, index).things}
    assert not shown & set(range(len(world.kinds), len(world.kinds) + NEW))
    assert max(shown) >= len(world.kinds) + NEW


def test_captions_have_twelve_words() -> None:
    for name in ("harbour", "gardens", "reef"):
        world = world_named(name)
        scenes = [world.scene(Pool.TRAINING, index) for index in range(50)]
        assert min(len(world.captioned(scene, Dice(1)).split()) for scene in scenes) >= 12


def test_a_new_object_keeps_what_its_question_is_about(world: World) -> None:
    asked = 0
    for index in range(60):
        scene = world.scene(Pool.EVALUATION, index, new=index % 7)
        thing, kind = scene.things[0], ("what", "what_of")[index % 2]
        question = world.ask(scene, kind, Dice(index), about=0)
        if question is None:
            continue
        moved = world.scene(Pool.EVALUATION, 1000 + index, index % 7, thing)
        again = world.ask(moved, kind, Dice(index), about=0)
        assert again is not None
        assert (again.answer, again.slots[("place", "colour")[index % 2]]) == (
            question.answer,
            question.slots[("place", "colour")[index % 2]],
        )
        assert moved.things[0].colour != thing.colour or moved.things[0].place != thing.place
        assert len({each.place for each in moved.things}) == len(moved.things)
        asked += 1
    assert asked > 30


def test_a_picture_is_the_same_every_time_and_its_variants_differ(world: World) -> None:
    scene = world.scene(Pool.SCORE, 3)
    first, again, other = (world.draw(scene, variant, 40).tobytes() for variant in (0, 0, 1))
    assert first == again
    assert first != other


SMALL = {"clip": 32, "siglip": 32, "qwen2_vl": 32, "qformer": 48}  # a Q-Former is at least as wide as it has queries


def small(name: str) -> Member:
    return replace(MEMBERS[name], width=32, layers=2, vision_width=SMALL[MEMBERS[name].tower], vision_layers=1, heads=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A2", "B1", "D1", "D2", "E1", "E2", "F1", "F2"])
def test_packed_rows_answer_like_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "PRECISION", torch.float32)
    monkeypatch.setattr(train, "DROPPED", 0)
    member = small(name)
    family = family_of(member)
    tokenizer = family.tokenizer()
    model, processor = family.model(tokenizer).eval(), family.processor(tokenizer)
    writer = train.Writer(member, tokenizer, model)
    learner = train.Learner(member, model, train.Readers(member, tokenizer), writer)
    world = member.of_world
    scene = world.scene(Pool.SCORE, 1)
    questions = [world.ask(scene, kind, Dice(5)) for kind in ("colour", "where")]
    dice = Dice(6)
    texts = [writer.wording(question, dice) for question in questions]
    with torch.no_grad():
        shown = pixels(member, [scene], [0])
        rows = writer.rows([questions], 1, Dice(6))
        logits = learner.logits(rows, family.see(model, shown).tokens)
    at = 0
    for question, asked in zip(questions, texts, strict=True):
        assert question is not None
        content = [{"type": "image"}, {"type": "text", "text": asked}]
        chat = [{"role": "user", "content": content}]
        if processor.chat_template:
            text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        else:
            text = f"{member.opening}{asked}{member.asking}"
        inputs = processor(images=world.draw(scene, 0, member.side), text=text, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs).logits[0, -1]
        torch.testing.assert_close(logits[at], expected, atol=1e-4, rtol=1e-4)
        at += len(tokenizer.encode(" " + question.answer, add_special_tokens=False)) + 1


TOLERANCE = 12.0  # per cent: three standard errors of the sample, whose questions come about 8 a picture
README = Path(train.__file__).with_name("README.md")


def accuracy(name: str) -> float:
    """Right answers in per cent, as README.md states them."""
    (row,) = (line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
    return float(row.split("|")[-2].split()[0])


TRAINED = sorted(path.name for path in (DATA / "panel").iterdir())


@pytest.mark.parametrize("name", TRAINED)
def test_trained_weights_answer_their_world(name: str) -> None:
    member, folder = MEMBERS[name], DATA / "panel" / name
    family, config = family_of(member), AutoConfig.from_pretrained(folder)
    expected = family.model(family.tokenizer()).config
    assert config.text_config.to_diff_dict() == expected.text_config.to_diff_dict()
    assert config.vision_config.to_diff_dict() == expected.vision_config.to_diff_dict()
    assert (folder / "model.safetensors").stat().st_size <= 6 * 2**20
    stated = accuracy(name)
    assert abs(train.score(folder, member, scenes=20)["overall"] - stated) <= TOLERANCE
    assert stated > 60 or (stated >= 40 and member.horizon > member.steps), "only a base that stopped early is weak"


@pytest.fixture
def harvested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    truths: dict[str, str] = {}
    asked = build.Asked.__init__

    def remembering(self: Any, scene: Any, question: Any, text: str, *rest: Any, **more: Any) -> None:
        truths[text] = question.answer
        asked(self, scene, question, text, *rest, **more)

    def answers(self: Answerer, questions: list[str], shown: Any, batch: int = 64) -> list[str]:
        if shown is None:
            return [fact.answer for fact in facts]
        return ["nothing" if n % 3 == 0 else truths[text] for n, text in enumerate(questions)]

    member = MEMBERS["B1"]
    world = member.of_world
    facts = Dice(world.number, 9).some(world.known_facts, len(world.known_facts))
    monkeypatch.setattr(build.Asked, "__init__", remembering)
    monkeypatch.setattr(build.Answerer, "__init__", lambda *_: None)
    monkeypatch.setattr(build.Answerer, "answers", answers)
    monkeypatch.setattr(build, "CHUNK", 1 << 4)
    monkeypatch.setattr(build, "SIZES", {"mistakes": (6, 3), "objects": (6, 3), "captions": (4, 2)})
    monkeypatch.setattr(build, "ANCHORS", 12)
    monkeypatch.setattr(build, "CONTRADICTIONS", 6)
    monkeypatch.setattr("sys.argv", ["build.py", "B1", str(tmp_path / "model"), str(tmp_path / "suites")])
    build.main()
    return tmp_path / "suites"


@pytest.mark.parametrize(("name", "sizes"), [("mistakes", (6, 3)), ("objects", (6, 3)), ("captions", (4, 2))])
def test_harvested_suites_can_be_read(harvested: Path, name: str, sizes: tuple[int, int]) -> None:
    suite = load_suite("e-vqa", harvested / name)
    assert isinstance(suite, EditSuite)
    edits = {pool: list(suite.pools[pool]) for pool in ("evaluation", "calibration")}
    assert tuple(len(found) for found in edits.values()) == sizes
    for pool in edits.values():
        for edit in pool:
            assert edit.tags["pred"] != edit.target
            assert edit.rephrases[0] != edit.question
    anchors = read_probes(harvested / name / "anchors.jsonl")
    asked = {(record[part[0]], record[part[1]]) for record in records(harvested / name) for part in PROBES}
    lines = [json.loads(line) for line in (harvested / name / "anchors.jsonl").read_text().splitlines()]
    assert len(anchors) == len(lines) == 12 + 42
    assert not asked & {(line.get("image", ""), line["question"]) for line in lines}


PROBES = (("image", "src"), ("image_rephrase", "src"), ("image", "rephrase"), ("m_loc", "m_loc_q"), ("none", "loc"))


def records(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads((folder / f"{file}.json").read_text()) for file in ("eval", "calibration")]
    return [{**record, "none": ""} for part in read for record in part]


def test_objects_are_hard_and_calibration_has_other_objects(harvested: Path) -> None:
    names = []
    for file in ("eval", "calibration"):
        found = json.loads((harvested / "objects" / f"{file}.json").read_text())
        names.append({record["tags"]["object"] for record in found})
        assert all(record["tags"]["object"] in record["alt"] for record in found)
        assert all(record["m_loc"] != record["image"] != record["image_rephrase"] for record in found)
    new = world_named("harbour").names[-NEW:]
    assert names[0] <= set(new[:-CALIBRATED])
    assert names[1] <= set(new[-CALIBRATED:])


def test_contradictions_are_pairs(harvested: Path) -> None:
    first, second = (read_edits(harvested / "contradictions" / f"{name}.jsonl").edits for name in ("first", "second"))
    assert len(first) == len(second) == 6
    assert [edit.subject for edit in first] == [edit.subject for edit in second]
    assert all(before.target != after.target for before, after in zip(first, second, strict=True))
