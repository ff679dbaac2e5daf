"""The synthetic world, and the suites and samples that are built from it."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from more_cli.demo.files import demo_model_dir
from more_cli.suites.embedded import ARCHIVES, suite_folder
from support.paths import DATA, ROOT
from worlds.embedded import draw
from worlds.embedded.world.emblems import KNOWN, emblems, new_emblems
from worlds.embedded.world.episodes import KINDS, episode, episode_dice
from worlds.embedded.world.facts import fact_share, facts
from worlds.embedded.world.language import Question, ask, kinds_for, plural, posed, with_article
from worlds.embedded.world.phrases import FACT_KINDS, PICTURE_KINDS, WORDINGS
from worlds.embedded.world.pictures import Picture, emblem_picture, picture_named
from worlds.embedded.world.pools import Dice, Pool, Purpose
from worlds.embedded.world.scenes import COLOURS, PLACES, SHAPES, SIZES, Scene, Thing, scene

SUITES = ("e-vqa-mini", "e-ic-mini", "mme-mini")
SAMPLES = ROOT / "sample_edits"
MMEDIT_KEYS = {
    "src", "pred", "alt", "rephrase", "image", "image_rephrase", "loc", "loc_ans", "m_loc", "m_loc_q", "m_loc_a",
}  # fmt: skip
OTHERS = DATA / "suites"  # those of the other families
RECORD_FILES = [
    pytest.param(family, suite, file, pool, at_least, id=f"{family}-{suite}-{file}")
    for family in ("llava", *sorted({suite.parent.name for suite in draw.suites()}))
    for suite, file, pool, at_least in (
        ("e-vqa-mini", "eval.json", Pool.EVALUATION, 300),
        ("e-vqa-mini", "calibration.json", Pool.CALIBRATION, 100),
        ("e-ic-mini", "eval.json", Pool.EVALUATION, 200),
        ("e-ic-mini", "calibration.json", Pool.CALIBRATION, 50),
    )
]


def record_folder(family: str, suite: str) -> Path:
    return suite_folder(suite) if family == "llava" else OTHERS / family / suite


def records(folder: Path, file: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((folder / file).read_text(encoding="utf-8"))
    return loaded


def sample_lines(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLES / file).read_text(encoding="utf-8").splitlines()]


def shipped_images() -> list[Path]:
    """The pictures of the package and of the sample stream."""
    return sorted(path for root in (*map(suite_folder, SUITES), SAMPLES) for path in root.rglob("*.png"))


def all_images() -> list[Path]:
    """Those, and the pictures of the other families' suites."""
    return shipped_images() + sorted(path for s in draw.suites() for path in draw.with_pictures(s).rglob("*.png"))


def decoded(path: Path) -> Any:
    return np.asarray(Image.open(path).convert("RGB"))


def some_questions(pool: Pool, n: int) -> list[tuple[Scene, Question]]:
    found = []
    for index in range(n):
        about, dice = scene(pool, index), Dice(Purpose.QUESTIONS, pool, index)
        for kind in kinds_for(about):
            question = ask(about, kind, dice)
            if question is not None:
                found.append((about, question))
    return found


# --- the world ---------------------------------------------------------------------------------------------------


def test_everything_is_a_function_of_its_seed() -> None:
    np.random.seed(1)
    first = [Picture(scene(Pool.TRAIN, index), index % 3).bytes for index in range(40)]
    np.random.seed(2)
    again = [Picture(scene(Pool.TRAIN, index), index % 3).bytes for index in reversed(range(40))]
    assert first == again[::-1]


def test_the_dice_are_the_ones_the_files_were_made_with() -> None:
    dice = Dice(Purpose.SCENE, Pool.TRAIN, 0)
    assert [dice.below(1000) for _ in range(4)] == DICE_GOLDEN
    assert hashlib.sha256(Picture(scene(Pool.TRAIN, 5)).pixels.tobytes()).hexdigest()[:16] == PICTURE_GOLDEN


def test_variants_show_the_same_scene_in_another_picture() -> None:
    about = scene(Pool.TRAIN, 3)
    pictures = [Picture(about, variant).pixels for variant in range(4)]
    assert len({picture.tobytes() for picture in pictures}) == 4


def test_pools_share_no_picture() -> None:
    owners: dict[bytes, Pool] = {}
    for pool in Pool:
        for index in range(150):
            digest = hashlib.sha256(Picture(scene(pool, index)).pixels.tobytes()).digest()
            assert owners.setdefault(digest, pool) is pool


def test_pools_share_no_new_emblem_and_no_fact() -> None:
    for share in (new_emblems, fact_share):
        taken: Counter[int] = Counter()
        for pool in Pool:
            try:
                taken.update(share(pool))
            except KeyError:
                continue
        assert max(taken.values()) == 1
    assert all(index >= KNOWN for pool in (Pool.SAMPLE, Pool.EVALUATION) for index in new_emblems(pool))


def test_emblems_differ_in_glyph_and_name() -> None:
    glyphs = [emblem.bits for emblem in emblems()]
    assert min((a ^ b).bit_count() for i, a in enumerate(glyphs) for b in glyphs[:i]) >= 4
    assert len({emblem.name for emblem in emblems()}) == len(emblems())


def test_a_hundred_facts_each_asked_once() -> None:
    assert len(facts()) == 100
    assert len({fact.trained(0) for fact in facts()}) == 100


def test_every_kind_has_five_wordings_and_some_kept_unseen() -> None:
    for kind in (*PICTURE_KINDS, *FACT_KINDS):
        assert len(set(WORDINGS[kind].trained)) >= 5
        assert len(WORDINGS[kind].unseen) >= 1
        assert not set(WORDINGS[kind].trained) & set(WORDINGS[kind].unseen)


def test_training_text_holds_no_unseen_wording_and_no_new_emblem() -> None:
    texts = [question.wording(Dice(Purpose.QUESTIONS, Pool.TRAIN, i)) for i, (_, question) in enumerate(TRAINING)]
    texts += [question.answer for _, question in TRAINING]
    for index in range(400):
        shown = scene(Pool.TRAIN, index) if index % 2 else None
        item = episode(episode_dice(Pool.TRAIN, index), Pool.TRAIN, KINDS[index % 3], shown, index % 4)
        texts.append(f"{item.prompt}\n{item.answer}")
    whole = "\n".join(texts)
    unseen = {question.unseen(number) for _, question in TRAINING for number in (0, 1)}
    unseen |= {fact.unseen(number) for fact in facts() for number in (0, 1)}
    assert not [text for text in unseen if text in whole]
    assert not {emblem.name for emblem in emblems()[KNOWN:]} & set(re.findall(r"\w+", whole))


def test_captions_have_a_caption_s_length() -> None:
    lengths = [len(question.answer.split()) for _, question in TRAINING if question.kind == "caption"]
    assert min(lengths) >= 6
    assert max(lengths) <= 13


def value(thing: Thing, kind: str) -> str:
    attributes = {"shape": SHAPES[thing.shape], "color": COLOURS[thing.colour], "size": SIZES[thing.size]}
    return {**attributes, "place": PLACES[thing.place]}[kind]


def pointed_at(about: Scene, reference: str) -> list[Thing]:
    """Things that fit every word of a reference; independent of the code that makes references."""
    words = reference.removeprefix("the ")
    if words.startswith("object at the "):
        return [t for t in about.things if PLACES[t.place] == words.removeprefix("object at the ")]
    return [t for t in about.things if described(t, words)]


def described(thing: Thing, noun: str) -> bool:
    return set(noun.split()) <= {SHAPES[thing.shape], COLOURS[thing.colour], "object"}


def truth(about: Scene, question: Question) -> str:
    """The answer, computed in another way than by the generator."""
    slots, kind = question.slots, question.kind
    attribute = kind.removeprefix("is_")
    if "ref" in slots:
        (thing,) = pointed_at(about, slots["ref"])
        real = value(thing, attribute)
        return real if attribute == kind else "yes" if slots[attribute] == real else "no"
    if kind == "exist":
        nouns = {f"{COLOURS[t.colour]} {SHAPES[t.shape]}" for t in about.things} | {
            SHAPES[t.shape] for t in about.things
        }
        return "yes" if slots["what"] in {with_article(noun) for noun in nouns} else "no"
    if attribute == "count":
        singular = [
            noun for noun in (*SHAPES, *(f"{c} object" for c in COLOURS), "object") if plural(noun) == slots["what"]
        ]
        n = str(sum(described(thing, singular[0]) for thing in about.things))
        return n if attribute == kind else "yes" if slots["n"] == n else "no"
    if kind == "read" or kind == "is_text":
        return about.text if kind == "read" else "yes" if slots["word"] == about.text else "no"
    if kind == "add" or kind == "is_sum":
        n = str(eval(about.text))  # a sum of two digits, made by us
        return n if kind == "add" else "yes" if slots["n"] == n else "no"
    name = emblems()[about.emblem].name
    return name if kind == "emblem" else "yes" if slots["name"] == name else "no"


def test_answers_are_the_only_right_ones() -> None:
    checked = [(about, question) for about, question in TRAINING if question.kind != "caption"]
    assert {question.kind for _, question in checked} == set(PICTURE_KINDS) - {"caption"}
    for about, question in checked:
        assert truth(about, question) == question.answer, (about, question)


def test_yes_and_no_are_about_equally_often() -> None:
    for kind in ("exist", "is_place", "is_color", "is_count", "is_text", "is_sum", "is_emblem"):
        answers = [question.answer for _, question in TRAINING if question.kind == kind]
        assert 0.3 < answers.count("yes") / len(answers) < 0.7


# --- shipped files -----------------------------------------------------------------------------------------------


def test_shipped_pictures_can_be_drawn_again() -> None:
    paths = shipped_images()
    assert len(paths) > 1500
    for path in paths[::4]:
        assert np.array_equal(decoded(path), picture_named(path.name).pixels), path.name


def test_shipped_pictures_are_small() -> None:
    sizes = [path.stat().st_size for path in shipped_images()]
    assert max(sizes) <= 2048
    assert sum(path.stat().st_size for path in ARCHIVES.iterdir()) <= 6 * 2**20


@pytest.mark.slow
def test_pictures_that_git_does_not_track_have_the_bytes_their_suites_were_made_with() -> None:
    assert list(draw.hashes()) == (OTHERS / "pictures.sha256").read_text(encoding="utf-8").splitlines()


def test_missing_pictures_are_drawn_and_others_kept(tmp_path: Path) -> None:
    records = [{"image": f"images/evaluation-scene{number}-v0.png"} for number in (1, 2)]
    (tmp_path / "eval.json").write_text(json.dumps(records), encoding="utf-8")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "evaluation-scene1-v0.png").write_bytes(b"mine")
    draw.with_pictures(tmp_path)
    files = {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()}
    drawn = picture_named("evaluation-scene2-v0.png").bytes
    assert files == {"evaluation-scene1-v0.png": b"mine", "evaluation-scene2-v0.png": drawn}


def test_png_bytes_are_those_of_the_builder() -> None:
    path = shipped_images()[0]
    redrawn = Image.open(io.BytesIO(picture_named(path.name).bytes)).convert("RGB")
    assert np.array_equal(np.asarray(redrawn), decoded(path))


@pytest.mark.parametrize(("family", "suite", "file", "pool", "at_least"), RECORD_FILES)
def test_records_follow_the_schema_and_can_be_rebuilt(
    family: str, suite: str, file: str, pool: Pool, at_least: int
) -> None:
    folder = record_folder(family, suite)
    loaded = records(folder, file)
    assert len(loaded) >= at_least
    known = {
        fact.trained(number): fact.answer
        for fact in (facts()[i] for i in fact_share(pool))
        for number in range(len(WORDINGS[fact.kind].trained))
    }
    for number, record in enumerate(loaded):
        assert set(record) == MMEDIT_KEYS | {"tags"}
        assert all(
            isinstance(text, str) and text.strip() == text and text for text in (record[key] for key in MMEDIT_KEYS)
        )
        edit, other = picture_named(Path(record["image"]).name), picture_named(Path(record["m_loc"]).name)
        assert edit.scene.pool is other.scene.pool is pool
        assert edit.scene.index != other.scene.index
        question, text = posed(edit.scene, record["tags"]["kind"].removeprefix("new-")) or pytest.fail(
            "no such question"
        )
        assert (record["src"], record["alt"]) == (text, question.answer)
        assert record["rephrase"] == question.unseen(number)
        assert record["pred"] != record["alt"]
        again = picture_named(Path(record["image_rephrase"]).name)
        assert again.scene == edit.scene
        assert again.variant != edit.variant
        assert known[record["loc"]] == record["loc_ans"]
        asked = [posed(other.scene, kind) for kind in kinds_for(other.scene)]
        assert (record["m_loc_q"], record["m_loc_a"]) in [(pair[1], pair[0].answer) for pair in asked if pair]
        for key in ("image", "image_rephrase", "m_loc"):
            assert folder.is_relative_to(OTHERS) or (folder / record[key]).is_file()
    assert len({(record["image"], record["src"]) for record in loaded}) == len(loaded)


def test_suites_hold_new_emblems_and_several_edits_on_a_picture() -> None:
    loaded = records(suite_folder("e-vqa-mini"), "eval.json")
    kinds = Counter(record["tags"]["kind"] for record in loaded)
    assert kinds["new-emblem"] >= 50
    assert len(kinds) >= 8
    assert max(Counter(record["image"] for record in loaded).values()) >= 2
    assert {record["src"] for record in records(suite_folder("e-ic-mini"), "eval.json")} == {"a photo of"}


def test_no_picture_is_in_two_pools_or_two_roles() -> None:
    owner: dict[str, Pool] = {}
    for path in all_images():
        digest = hashlib.sha256(decoded(path).tobytes()).hexdigest()
        pool = picture_named(path.name).scene.pool
        assert owner.setdefault(digest, pool) is pool
    edited, probed = set(), set()
    for family, suite, file, _, _ in (entry.values for entry in RECORD_FILES):
        folder = record_folder(family, suite)
        edited |= {picture_named(Path(record["image"]).name).scene for record in records(folder, file)}
        probed |= {picture_named(Path(record["m_loc"]).name).scene for record in records(folder, file)}
    assert not edited & probed


def test_mme_asks_every_picture_one_yes_and_one_no() -> None:
    categories = [path for path in suite_folder("mme-mini").iterdir() if path.is_dir()]
    assert {"existence", "count", "position", "color", "OCR", "numerical_calculation"} <= {c.name for c in categories}
    for category in categories:
        pictures = sorted(category.glob("*.png"))
        assert len(pictures) >= 20
        for path in pictures:
            lines = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
            pairs = [line.split("\t") for line in lines]
            assert sorted(answer for _, answer in pairs) == ["No", "Yes"]
            assert all(text.endswith("Please answer yes or no.") for text, _ in pairs)


def test_sample_stream_is_readable_and_its_own() -> None:
    lines = sample_lines("edits.jsonl")
    assert len(lines) == 24
    assert len({line["id"] for line in lines}) == 24
    assert sum(line["id"].startswith("emblem-") for line in lines) >= 8
    for line in lines:
        assert set(line) == {"id", "image", "question", "target", "rephrases", "image_rephrases", "locality"}
        pictures = [line["image"], *line["image_rephrases"], *[p["image"] for p in line["locality"] if "image" in p]]
        assert all((SAMPLES / picture).is_file() for picture in pictures)
        assert all(picture_named(Path(picture).name).scene.pool is Pool.SAMPLE for picture in pictures)


def test_anchors_come_from_their_own_pool() -> None:
    lines = sample_lines("anchors.jsonl")
    assert len(lines) == 40
    for line in lines:
        assert set(line) <= {"image", "question", "answer"}
        if "image" in line:
            assert picture_named(Path(line["image"]).name).scene.pool is Pool.ANCHORS
    probes = {
        probe["question"] for line in sample_lines("edits.jsonl") for probe in line["locality"] if "image" not in probe
    }
    assert not probes & {line["question"] for line in lines if "image" not in line}


def test_every_suite_is_unpacked_and_packed_again_to_the_same_bytes(tmp_path: Path) -> None:
    for name in SUITES:
        draw.pack(suite_folder(name), tmp_path / name)
        assert (tmp_path / name).read_bytes() == (ARCHIVES / f"{name}.zip").read_bytes()


def test_an_emblem_s_still_is_named_after_it() -> None:
    for about in (emblem_picture(Pool.SAMPLE, KNOWN + 3, 2), emblem_picture(Pool.SAMPLE, KNOWN + 3, 2, again=4)):
        assert picture_named(about.name) == about
        assert about.scene.emblem == KNOWN + 3
    with pytest.raises(ValueError, match="not the name of a drawn picture"):
        picture_named("photo.png")


# --- the model ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    loaded, info = AutoModelForImageTextToText.from_pretrained(
        demo_model_dir(), dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return loaded.eval()


@pytest.fixture(scope="module")
def processor() -> Any:
    return AutoProcessor.from_pretrained(demo_model_dir())


def answers(model: Any, processor: Any, asked: list[tuple[str | None, str]]) -> list[str]:
    """Greedy answers to questions, each about a picture of the samples or about none."""
    said = []
    for picture, question in asked:
        image = [{"type": "image"}] if picture else []
        message = {"role": "user", "content": [*image, {"type": "text", "text": question}]}
        prompt = processor.apply_chat_template([message], add_generation_prompt=True)
        images = [Image.open(SAMPLES / picture).convert("RGB")] if picture else None
        inputs = processor(images=images, text=[prompt], return_tensors="pt")
        with torch.no_grad():
            out = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert out[-1] == processor.tokenizer.eos_token_id
        said.append(processor.tokenizer.decode(out[:-1]).strip())
    return said


def test_no_sample_edit_is_right_before_and_its_probes_are(model: Any, processor: Any) -> None:
    lines = sample_lines("edits.jsonl")
    before = answers(model, processor, [(line["image"], line["question"]) for line in lines])
    assert not [line["id"] for line, answer in zip(lines, before, strict=True) if answer == line["target"]]
    probes = [probe for line in lines[::3] for probe in line["locality"]] + sample_lines("anchors.jsonl")[::4]
    said = answers(model, processor, [(probe.get("image"), probe["question"]) for probe in probes])
    assert said == [probe["answer"] for probe in probes]


def test_tokenizer_encodes_any_text_and_new_names_in_pieces(processor: Any) -> None:
    tokenizer = processor.tokenizer
    text = "Ärger, 漢字 and 🙂: <weird> {text}"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert min(len(tokenizer.encode(" " + e.name, add_special_tokens=False)) for e in emblems()[KNOWN:]) >= 2


def test_chat_template_takes_parts_and_plain_strings(processor: Any) -> None:
    def said(content: Any) -> str:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
        return str(processor.apply_chat_template(messages, add_generation_prompt=True))

    assert said("What?") == said([{"type": "text", "text": "What?"}]) == "Be brief. USER: What? ASSISTANT:"
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    assert said(parts) == "Be brief. USER: <image>\nWhat? ASSISTANT:"
    turn = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "red"}]
    assert processor.apply_chat_template(turn) == "USER: What? ASSISTANT: red</s>"


TRAINING = some_questions(Pool.TRAIN, 600)
DICE_GOLDEN = [221, 68, 780, 351]
PICTURE_GOLDEN = "a7d40c20e470ae87"
