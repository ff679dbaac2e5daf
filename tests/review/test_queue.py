"""The queue of mistakes, one after the other, also in a second session; and conversations in the form."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from more_cli.inputs.ratings import read_ratings
from more_cli.review.queue import done_file
from more_cli.store.target import locate
from review.conftest import Page
from support.helpers import REFUSING, World, run

TURNS = [
    {
        "role": "user",
        "content": [{"type": "image", "image": "img/green.png"}, {"type": "text", "text": "what is it ?"}],
    },
    {"role": "assistant", "content": "x"},
]


def fields(text: str) -> dict[str, str]:
    """What the correction's form would send, without its buttons."""
    form = text[text.index('action="/draft"') :]
    found = dict(re.findall(r'<input type="hidden" name="([\w-]+)" value="([^"]*)"', form))
    found |= {
        name: body.strip() for name, body in re.findall(r'<textarea name="([\w-]+)"[^>]*>(.*?)</textarea>', form, re.S)
    }
    checked = re.search(r'name="picture" value="(\w*)" checked', form)
    assert checked
    return found | {"picture": checked[1]}


@pytest.fixture
def opened(world: World, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Page]:
    """Starts a page with three mistakes among five answers."""
    lines: list[dict[str, Any]] = [
        {"question": "what colour ?", "image": "img/red.png", "answer": "<b>y</b>", "rating": "down", "comment": "no"},
        {"question": "good ?", "answer": "yes", "rating": "up"},
        {"question": "is it z ?", "answer": "no", "rating": -1, "target": "z"},
        {"question": "and now ?", "image": "img/black.png", "messages": TURNS, "answer": "y", "rating": False},
        {"question": "unseen ?", "answer": "y"},
    ]
    path = world.write(lines, "answers.jsonl")
    pages: list[Page] = []

    def start(**options: Any) -> Page:
        pages.append(Page(world, tmp_path_factory.mktemp("uploads"), ratings=read_ratings(path), **options))
        return pages[-1]

    yield start
    for page in pages:
        page.worker.stop()


def test_each_mistake_opens_the_form_until_none_is_left(opened: Callable[..., Page], world: World) -> None:
    page = opened()
    first = page.get("/queue")
    assert first.status_code == 200
    assert "Queue (3)" in first.text
    assert "&lt;b&gt;y&lt;/b&gt;" in first.text, "what a log holds is text"
    assert "autofocus" in first.text
    sent = fields(first.text)
    assert (sent["question"], sent["target"]) == ("what colour ?", "")
    assert page.get(f"/image/small/{sent['picture']}").status_code == 200
    wrong = page.result(page.post("/draft", **sent, do="apply"))
    assert "target" in wrong.text
    assert "Queue (3)" in wrong.text, "nothing was applied"
    done = page.result(page.post("/draft", **(fields(wrong.text) | {"target": "z"}), do="apply"))
    assert "Next mistake (2 left)" in done.text
    second = page.get("/queue").text
    assert fields(second)["target"] == "z", "somebody wrote what it should have said"
    assert page.post("/queue", queued=fields(second)["queued"]).headers["location"] == "/queue"
    again = opened()
    third = again.get("/queue").text
    assert "Queue (1)" in third, "a second session goes on"
    assert fields(third)["question"] == "and now ?"
    assert again.post("/queue", queued=fields(third)["queued"]).status_code == 303
    assert "1 is corrected and 2 skipped" in again.get("/queue").text
    assert len(done_file(locate(world.model, None)).read_text().splitlines()) == 3


def test_a_refused_correction_leaves_its_mistake_in_the_queue(opened: Callable[..., Page], world: World) -> None:
    world.sidecar.unlink()
    shutil.rmtree(world.folder)
    page = opened(settings=REFUSING)
    sent = fields(page.get("/queue").text) | {"target": "z"}
    done = page.result(page.post("/draft", **sent, do="apply"))
    assert "applied: refused" in done.text
    assert "Queue (3)" in page.get("/queue").text
    assert not done_file(locate(world.model, None)).exists(), "nothing is corrected"
    assert page.post("/queue", queued=sent["queued"]).headers["location"] == "/queue"
    assert "Queue (2)" in page.get("/queue").text, "it can be skipped"


def test_a_conversation_is_corrected_as_an_edits_file_would(opened: Callable[..., Page], world: World) -> None:
    page = opened()
    for _ in range(2):
        page.post("/queue", queued=fields(page.get("/queue").text)["queued"])
    sent = fields(page.get("/queue").text)
    assert (sent["said-0"], sent["said-1"], sent["said-0-pictures"]) == ("what is it ?", "x", "1")
    done = page.result(page.post("/draft", **(sent | {"target": "z", "id": "talk"}), do="apply"))
    assert "asked before" in done.text
    (entry,) = [line for line in world.entries() if line.get("id") == "talk"]
    assert [(turn["role"], turn["text"]) for turn in entry["turns"]] == [("user", "what is it ?"), ("assistant", "x")]
    assert len(entry["images"]) == 2
    like = fields(page.get("/draft", like="talk").text)
    assert (like["said-0"], like["question"], like["picture"]) == ("what is it ?", "and now ?", entry["images"][1])
    assert like["earlier-0"] == entry["images"][0]


def test_a_round_without_an_answer_is_a_problem_of_its_field(opened: Callable[..., Page]) -> None:
    page = opened()
    sent = {"question": "and now ?", "target": "z", "picture": "", "said-0": "what is it ?", "said-1": ""}
    checked = page.result(page.post("/draft", **sent, do="check"))
    assert checked.status_code == 422
    assert "message 2 has no text" in checked.text
    assert '<details class="turns" open>' in checked.text


def test_what_is_not_in_the_queue_is_not_found(opened: Callable[..., Page], page: Page) -> None:
    assert page.get("/queue").status_code == 404, "no queue was given"
    assert "Queue (" not in page.get("/").text
    assert opened().post("/queue", queued="0" * 64).status_code == 404
    forged = {"question": "q", "target": "z", "picture": "", "earlier-0": "../secret", "said-0": "a", "said-1": "b"}
    assert page.post("/draft", **forged, do="check").status_code == 404


def test_a_picture_that_cannot_be_had_is_named(opened: Callable[..., Page], world: World) -> None:
    (world.root / "img" / "red.png").unlink()
    shown = opened().get("/queue")
    assert shown.status_code == 422
    assert "img/red.png" in shown.text


def test_a_line_that_a_crash_cut_off_is_passed_over(opened: Callable[..., Page], world: World) -> None:
    page = opened()
    page.post("/queue", queued=fields(page.get("/queue").text)["queued"])
    path = done_file(locate(world.model, None))
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert "Queue (3)" in opened().get("/queue").text
    path.write_bytes(whole + b'{"key": 1\n' + b"[" * 100_000)
    assert "Queue (2)" in opened().get("/queue").text


def test_the_command_says_what_it_left_out_and_refuses_a_bad_file(world: World) -> None:
    path = world.write([{"question": "q", "answer": "a", "rating": "maybe"}], "bad.jsonl")
    refused = run("review", world.model, "--queue", path)
    assert refused.code == 4
    assert refused.err.startswith(f"error: {path}:1: `rating` must be down or up")
    missing = run("review", world.model, "--queue", world.root / "none.jsonl")
    assert missing.code == 4


def test_every_page_can_be_reached_by_a_key(page: Page) -> None:
    text = page.get("/draft").text
    keys = re.findall(r'accesskey="(\w)"', text)
    assert len(keys) == len(set(keys)), "no key leads to two places"
    assert {"e", "a", "d", "v", "c", "m", "t", "b", "k", "y"} == set(keys)
    shown = re.findall(r"<kbd>(\w)</kbd>", text)
    assert set(shown) == set(keys), "the page names them"


def test_the_log_of_done_mistakes_holds_keys_alone(opened: Callable[..., Page], world: World) -> None:
    page = opened()
    page.post("/queue", queued=fields(page.get("/queue").text)["queued"])
    (line,) = map(json.loads, done_file(locate(world.model, None)).read_text().splitlines())
    assert (set(line), line["what"], len(line["key"])) == ({"key", "what"}, "skipped", 64)


def test_a_line_that_a_crash_cut_off_costs_that_line_alone(opened: Callable[..., Page], world: World) -> None:
    done = done_file(locate(world.model, None))
    done.write_bytes(b'{"key":"abc","wh\xff')
    page = opened()
    assert page.post("/queue", queued=fields(page.get("/queue").text)["queued"]).status_code == 303
    assert "Queue (2)" in page.get("/queue").text
    assert "Queue (2)" in opened().get("/queue").text, "what was acknowledged is on disk"
