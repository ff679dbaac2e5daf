"""The page in a real browser: a correction of the embedded model from the first question to the revert, in two tabs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `review` is not installed")

from more_cli.demo.files import demo_model_dir
from more_cli.recipe.files import data_folder
from support.browser import MISSING, Browser, chromium
from support.helpers import process, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

SAMPLES = data_folder("sample_edits")
PICTURE = SAMPLES / "images" / "sample-scene25-v0.png"
QUESTION = "What is the position of the moon?"
NEAR = "Can you name the national animal of Plulerland?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with two edits."""
    model = tmp_path_factory.mktemp("browser") / "llava"
    shutil.copytree(demo_model_dir(), model)
    assert run("edit", model, SAMPLES / "edits.jsonl", "--limit", 2, "-q").code == 0
    return model


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def now(model: Path) -> dict[str, str]:
    lines = run("log", model, "--json").json["lines"]
    return {line["id"]: line["now"] for line in lines if line["kind"] == "edit"}


def test_a_correction_from_question_to_revert(model: Path, browser: Browser) -> None:
    with process("review", model) as server:
        assert server.stdout is not None
        address = server.stdout.readline().decode().strip()
        home = address.partition("?")[0]
        browser.open(address)
        assert browser.address == home, "the token is not in the address any more"
        assert browser.texts("td.id") == ["emblem-01", "size-01"]
        browser.wait(lambda: browser.script("return document.querySelector('td img').naturalWidth > 0"))
        assert browser.script("return performance.getEntriesByType('resource').every(e => e.name.startsWith(origin))")

        browser.open(f"{home}ask")
        browser.type("[type=file]", str(PICTURE))
        browser.type("[name=question]", QUESTION)
        browser.click("form > .actions button")
        browser.wait(lambda: browser.texts("article"))
        assert browser.texts("article h3") == ["base", "edited"]
        base = browser.text("article.base .lead")
        assert base != "bottom center"
        assert len(browser.texts("article td:not(:first-child)")) == 8

        browser.click("section a.button")
        assert browser.script("return document.querySelector('[name=question]').value") == QUESTION
        browser.type("[name=id]", "from the page")
        browser.type("[name=near-question-0]", NEAR)
        browser.click(".actions [value=check]")
        browser.wait(lambda: browser.texts(".problem"))
        assert browser.texts(".problem") == ["`target` is empty"]
        browser.click("[value=base]")
        browser.wait(lambda: browser.texts(".said"))
        assert browser.texts(".said") == [f"the base answers: {base}", "the base answers: crow"]
        assert browser.script("return document.querySelector('[name=near-answer-0]').value") == "crow"
        browser.type("[name=target]", "bottom center")
        browser.click(".actions [value=check]")
        browser.wait(lambda: "no problems found" in browser.text())
        assert list(now(model)) == ["size-01", "emblem-01"], "nothing is applied yet"

        first, second = browser.tabs()[0], browser.new_tab()
        browser.switch(second)
        browser.open(f"{home}edit?id=size-01")
        browser.click("summary")
        browser.switch(first)
        browser.click("[value=apply]")
        browser.switch(second)
        assert browser.text("h1").startswith("size-01"), "the other tab can be read meanwhile"
        browser.switch(first)
        browser.wait(lambda: "applied: learnt" in browser.text())
        assert browser.text("h1") == "from the page learnt"
        assert "crow" in browser.text("table.answers")
        assert now(model) == {"size-01": "learnt", "emblem-01": "learnt", "from the page": "learnt"}

        browser.switch(second)
        browser.click("button.danger")
        browser.wait(lambda: "changed since this page was drawn" in browser.text())
        browser.open(home)
        assert browser.texts("td.id") == ["from the page", "emblem-01", "size-01"]
        assert set(now(model).values()) == {"learnt"}

        browser.switch(first)
        browser.click("summary")
        browser.click("button.danger")
        browser.wait(lambda: browser.text("h1") == "from the page reverted")
        browser.switch(second)
        browser.open(f"{home}?status=reverted")
        browser.wait(lambda: browser.texts("td.id") == ["from the page"], seconds=10)  # if not, it says what is there
        assert now(model) == {"size-01": "learnt", "emblem-01": "learnt", "from the page": "reverted"}
        assert run("verify", model).code == 0


def test_pictures_are_dropped_and_edits_sorted_scored_and_merged(model: Path, browser: Browser) -> None:
    others = [SAMPLES / "images" / f"sample-scene25-v{number}.png" for number in (1, 2)]
    with process("review", model) as server:
        assert server.stdout is not None
        browser.open(server.stdout.readline().decode().strip())
        home = browser.address
        browser.open(f"{home}draft")
        browser.drop("[name=upload]", PICTURE)
        browser.drop("[name=others]", *others)
        browser.type("[name=question]", QUESTION)
        browser.type("[name=target]", "bottom center")
        browser.click(".actions [value=check]")
        browser.wait(lambda: "no problems found" in browser.text())
        shown = "return document.querySelectorAll('[name^=other-]:checked').length"
        assert browser.script(shown) == len(others)
        assert browser.script("return document.querySelector('[name=picture]:checked').value") != ""

        browser.open(home)
        browser.resize(1400)
        browser.click("th.target a")
        targets = browser.texts("td[data-label=target]")
        browser.click("th.target a")
        assert browser.texts("td[data-label=target]") == targets[::-1] != targets

        browser.click("[action='/eval'] button")
        browser.wait(lambda: "In plain measures" in browser.text())
        browser.open(f"{home}merge")
        browser.type("[name=name]", "from-the-page")
        browser.click("[action='/merge'] button")
        browser.wait(lambda: "merged into" in browser.text())
    assert (model.parent / "from-the-page" / "more.json").is_file()


@pytest.mark.parametrize("path", ["", "edit?id=size-01", "draft", "ask", "eval", "combine", "merge", "nowhere"])
def test_no_page_is_wider_than_a_phone(model: Path, browser: Browser, path: str) -> None:
    with process("review", model) as server:
        assert server.stdout is not None
        browser.open(server.stdout.readline().decode().strip())
        browser.open(f"{browser.address}{path}")
        assert browser.width_needed(390) <= 390


def test_a_page_of_another_origin_can_neither_read_nor_change(model: Path, browser: Browser) -> None:
    """Another `more review`, on another port, is another origin: its pages try."""
    before = run("log", model, "--json").json["head"]
    with process("review", model) as server, process("review", model) as other:
        assert server.stdout is not None
        assert other.stdout is not None
        ours, theirs = (one.stdout.readline().decode().strip() for one in (server, other))  # type: ignore[union-attr]
        browser.open(ours)
        home = browser.address
        browser.open(theirs)
        read = f"""const answer = fetch('{home}').then(() => 'read', () => 'refused'); return answer"""
        assert browser.script(read) == "refused"
        send = f"""const form = document.createElement('form'); form.method = 'post'; form.action = '{home}revert';
            document.body.append(form);
            const stopped = new Promise(done =>
                addEventListener('securitypolicyviolation', event => done(event.violatedDirective)));
            form.submit(); return stopped"""
        assert browser.script(send) == "form-action"
        browser.open("data:text/html,<form method=post action=" + home + "revert><button>go</button></form>")
        browser.click("button")
        browser.wait(lambda: "refused:" in browser.text("body"))
        assert browser.text("body").startswith("refused: ")
    assert run("log", model, "--json").json["head"] == before
