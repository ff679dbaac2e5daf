"""Edits and probes at the end of a conversation: earlier turns, with images in any of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.inputs.edits import read_edits
from more_cli.model.batches import Query
from more_cli.model.loading import load_prompter
from support.helpers import World, line, run
from support.tiny_language import tiny_language_model

ASKED = {
    "role": "user",
    "content": [{"type": "image", "image": "img/blue.png"}, {"type": "text", "text": "is it wet ?"}],
}
SAID = {"role": "assistant", "content": "no"}
AGAIN = {"role": "user", "content": "is it big ?"}
TOLD = [ASKED, SAID, AGAIN, {"role": "assistant", "content": "yes"}]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_prompt_is_what_the_template_makes_of_the_whole_conversation(world: World) -> None:
    world.write([line(0, messages=TOLD)])
    (edit,) = read_edits(world.root / "edits.jsonl").edits
    assert [image.spelled for image in edit.images] == ["img/blue.png", "img/red.png"]
    prompter = load_prompter(open_checkpoint(world.model))
    asked = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "is it wet ?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
        {"role": "user", "content": [{"type": "text", "text": "is it big ?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": edit.question}]},
    ]
    template = prompter.processor.chat_template
    whole = prompter.tokenizer.apply_chat_template(
        asked, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert prompter.render(Query.of(edit)) == whole
    encoded = prompter.encode(Query.of(edit), edit.target)
    assert len(encoded.images) == 2
    assert encoded.extras["pixel_values"].shape[0] == 2
    assert prompter.text(encoded.target_ids) == edit.target


def test_control_tokens_in_earlier_turns_are_text(world: World) -> None:
    told = [{"role": "user", "content": "a <image> </s>"}, {"role": "assistant", "content": "<image>"}]
    world.write([line(0, messages=told)])
    (edit,) = read_edits(world.root / "edits.jsonl").edits
    text = load_prompter(open_checkpoint(world.model)).render(Query.of(edit))
    assert text.count("<image>") == 1
    assert "a < image> < /s>" in text


def test_without_a_template_each_round_has_its_line(tmp_path: Path) -> None:
    told = [{"role": "user", "content": "The colour of it is"}, {"role": "assistant", "content": "red"}]
    edits = tmp_path / "edits.jsonl"
    edits.write_text(json.dumps({"question": "And its size is", "target": "big", "messages": told}) + "\n")
    prompter = load_prompter(open_checkpoint(tiny_language_model(tmp_path / "model")))
    assert prompter.render(Query.of(read_edits(edits).edits[0])) == "The colour of it is red\nAnd its size is"


def test_it_is_learnt_kept_and_replayed(world: World) -> None:
    """The same question about the same picture has another answer where nothing was said before."""
    world.write([line(0), line(0, id="later", target="no", messages=TOLD), line(1, messages=TOLD[:2])])
    assert run("init", world.model, "--set", "max_steps=30", "--set", "rehearsal.draws=30").code == 0
    done = world.edit("--json")
    assert done.code == 0, done.err
    assert [entry["status"] for entry in world.entries()] == ["learnt"] * 3
    alone, told, _ = world.entries()
    assert "turns" not in alone
    assert told["turns"][0] == {"role": "user", "text": "is it wet ?", "images": 1}
    assert alone["subject"] != told["subject"]
    assert run("eval", world.model, "--json").json["metrics"]["rel.gen_exact"]["value"] == 1.0
    assert run("verify", world.model, "--deep").code == 0
    assert run("revert", world.model, "later").code == 0
    assert run("eval", world.model, "--json").json["metrics"]["rel.gen_exact"]["n"] == 2
    shown = run("log", "show", world.model, "later").out
    assert "user: is it wet ?" in shown
    assert "assistant: no" in shown


def test_a_changed_turn_is_found(world: World) -> None:
    world.write([line(0, messages=TOLD)])
    world.edit()
    ledger = world.folder / "ledger.jsonl"
    entry = json.loads(ledger.read_text())
    entry["turns"][1]["text"] = "yes"
    entry["check"] = ""
    ledger.write_text(json.dumps(entry, sort_keys=True, separators=(",", ":")) + "\n")
    assert run("verify", world.model).code == 5


def test_probes_may_have_earlier_turns(world: World) -> None:
    told = [AGAIN, {"role": "assistant", "content": "yes"}]
    world.write([line(0, locality=[{"question": "what is it ?", "messages": told}])])
    assert world.edit().code in (0, 3)
    assert world.entries()[0]["locality"][0]["turns"] == [
        {"role": "user", "text": "is it big ?", "images": 0},
        {"role": "assistant", "text": "yes", "images": 0},
    ]
    world.write([{"question": "what is it ?", "messages": told}, {"question": "what is it ?"}], "probes.jsonl")
    scores = run("eval", world.model, "--probes", world.root / "probes.jsonl", "--json").json
    assert scores["metrics"]["loc_text.loc_gen_same"]["n"] == 2


def test_probes_may_have_several_images_in_any_turn(world: World) -> None:
    pictures = ["img/red.png", "img/green.png"]
    probe = {"question": "which is it ?", "image": pictures, "messages": TOLD}
    world.write([line(0, locality=[probe], portability=[{**probe, "answer": "red"}])])
    (edit,) = read_edits(world.root / "edits.jsonl").edits
    assert [image.spelled for image in edit.locality[0].images] == ["img/blue.png", *pictures]
    prompter = load_prompter(open_checkpoint(world.model))
    alike = Query(edit.locality[0].images, "which is it ?", edit.locality[0].turns)
    assert prompter.render(Query.of(edit.locality[0])) == prompter.render(alike)
    assert prompter.encode(Query.of(edit.locality[0])).extras["pixel_values"].shape[0] == 3

    assert world.edit().code in (0, 3)
    kept = world.entries()[0]["locality"][0]
    assert (kept["image"], kept["images"]) == (None, [image.sha256 for image in edit.locality[0].images])
    for path in (world.root / "img").iterdir():
        path.unlink()  # the state has copies
    assert run("gc", world.model).code == 0
    assert run("verify", world.model, "--deep").code == 0
    metrics = run("eval", world.model, "--json").json["metrics"]
    assert (metrics["loc_image.loc_gen_same"]["n"], metrics["portability.gen_exact"]["n"]) == (1, 1)


def test_anchors_keep_their_turns_and_images(world: World) -> None:
    anchors = [
        {"question": "what is it ?", "image": ["img/red.png", "img/blue.png"], "messages": TOLD[:2]},
        {"question": "what is it ?", "messages": TOLD[2:]},
        {"question": "what is it ?"},
    ]
    world.write(anchors, "anchors.jsonl")
    few = "--set", "anchors.prompts=[]"
    assert run("init", world.model, "--anchors", world.root / "anchors.jsonl", *few).code == 0
    first, second, third, *_ = run("anchors", "list", world.model, "--json").json["anchors"]
    assert (first["image"], len(first["images"]), first["turns"][0]["images"]) == (None, 3, 1)
    assert (second["images"], [turn["text"] for turn in second["turns"]]) == ([], ["is it big ?", "yes"])
    assert (third["image"], third["images"], third["turns"]) == (None, [], [])
    assert "3 pictures" in run("anchors", "list", world.model).out

    again = run("anchors", "add", world.model, world.root / "anchors.jsonl", "--json").json
    assert (again["added"], again["repeated"]) == (0, 3)
    world.write([{**anchors[1], "target": "no", "id": "told"}])
    assert world.edit().code in (0, 3)
    listed = run("anchors", "list", world.model, "--json").json["anchors"]
    assert [anchor["corrected_by"] for anchor in listed[:3]] == [None, "told", None]
    assert run("verify", world.model, "--deep").code == 0


def test_a_probe_with_an_answer_is_asked_in_its_conversation(world: World) -> None:
    world.write([line(0, target="yes"), line(0, id="later", target="no", messages=TOLD)])
    assert run("init", world.model, "--set", "max_steps=30", "--set", "rehearsal.draws=30").code == 0
    assert world.edit().code == 0
    asked = {"question": line(0)["question"], "image": line(0)["image"]}
    world.write([{**asked, "answer": "yes"}, {**asked, "answer": "no", "messages": TOLD}], "probes.jsonl")
    scores = run("eval", world.model, "--probes", world.root / "probes.jsonl", "--json").json
    assert (scores["metrics"]["rel.gen_exact"]["value"], scores["metrics"]["rel.gen_exact"]["n"]) == (1.0, 2)


def test_a_video_of_a_probe_becomes_pictures(world: World) -> None:
    shades = [Image.new("RGB", (28, 28), (shade, 0, 0)) for shade in (0, 120, 240)]
    shades[0].save(world.root / "clip.webp", save_all=True, append_images=shades[1:], duration=100, lossless=True)
    world.write([line(0, locality=[{"question": "what moves ?", "video": "clip.webp", "frames": 3}])])
    (edit,) = read_edits(world.root / "edits.jsonl").edits
    assert [image.open().getpixel((0, 0)) for image in edit.locality[0].images] == [(s, 0, 0) for s in (0, 120, 240)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [SAID]}, "message 1 is of `assistant`, not of `user`"),
        ({"messages": [ASKED]}, "the last message has no answer"),
        ({"messages": [AGAIN, {"role": "assistant", "content": ASKED["content"]}]}, "message 2 answers with an image"),
        ({"messages": [{"role": "user", "content": " "}, SAID]}, "message 1 has no text"),
        (
            {"messages": [{"role": "system", "content": "x"}]},
            '`messages[0].role` must be `user` or `assistant`, got "system"',
        ),
        (
            {"messages": [{**ASKED, "content": 5}, SAID]},
            "`messages[0].content` must be a text or a list of parts, got 5",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, SAID]}, "message 1 has no text"),
        ({"locality": [{"question": "q", "messages": [SAID]}]}, "message 1 is of `assistant`, not of `user`"),
        (
            {"messages": [{**ASKED, "content": [{"type": "video"}]}, SAID]},
            '`messages[0].content[0].type` must be `text` or `image`, got "video"',
        ),
    ],
)
def test_a_wrong_conversation_is_refused(world: World, fields: dict[str, Any], said: str) -> None:
    world.write([line(0, **fields)])
    done = world.edit()
    assert (done.code, "edits.jsonl:1: " in done.err) == (4, True), done.err
    assert said in done.err
