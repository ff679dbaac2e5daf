"""What the page shows and does: lists, asks, drafts, applies and reverts, through the same ledger as the commands."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from more_cli.files import sha256_bytes
from more_cli.inputs.images import ImageSource
from more_cli.ops import ask
from more_cli.store.lock import writer_lock
from more_cli.text import plain
from review.conftest import HOST, Page
from support.helpers import QUESTION, World, assert_same_state, run


def digest(world: World, colour: str) -> str:
    return sha256_bytes((world.root / "img" / f"{colour}.png").read_bytes())


def ids(text: str) -> list[str]:
    return re.findall(r'<td class="id"><a href="/edit\?id=[^"]*">([^<]*)</a>', text)


def statuses(world: World) -> dict[str, str]:
    lines = run("log", world.model, "--json").json["lines"]
    return {line["id"]: line["now"] for line in lines if line["kind"] == "edit"}


# --- reading ---


def test_the_list_shows_every_edit_newest_first(page: Page) -> None:
    text = page.get("/").text
    assert ids(text) == ["better", "e2", "e1"]
    assert '<span class="status gone">superseded</span>' in text
    assert f'src="/image/small/{digest(page.world, "red")}"' in text
    assert "what &amp; &lt;b&gt;which&lt;/b&gt; ?" in text
    assert "<b>" not in text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"status": "superseded"}, ["e1"]),
        ({"text": "WHICH"}, ["e2"]),
        ({"text": "better"}, ["better"]),
        ({"status": "learnt", "text": "colour"}, ["better"]),
        ({"text": "nowhere"}, []),
        ({"number": "-3"}, ["better", "e2", "e1"]),
    ],
)
def test_the_list_is_filtered(page: Page, query: dict[str, str], expected: list[str]) -> None:
    assert ids(page.get("/", **query).text) == expected


def test_a_long_list_has_pages_and_needs_neither_pictures_nor_model(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = page.world.folder / "ledger.jsonl"
    many(path, 1_000)

    def read(*_: Any) -> Any:
        raise AssertionError("the list reads no picture and loads no model")

    monkeypatch.setattr(ImageSource, "read", read)
    monkeypatch.setattr(ask, "load_runtime", read)
    first = page.get("/").text
    assert (len(ids(first)), ids(first)[0], "page 1 of 21" in first) == (50, "many-1000", True)
    assert ids(page.get("/", number=21).text) == ["better", "e2", "e1"]
    assert 'href="/?text=many-10&amp;number=2"' not in page.get("/", text="many-10").text
    assert ids(page.get("/", text="many-99", number=2).text) == ids(page.get("/", text="many-99").text)
    assert not page.worker._jobs


def many(path: Path, count: int) -> None:
    """Append copies of the last line, each another edit, to a ledger."""
    from more_cli.store.ledger import Ledger

    with Ledger(path.parent) as ledger:
        fields = ledger.entries[-1].fields()
        rows = [fields | {"id": f"many-{number}", "subject": f"{number:064x}"} for number in range(1, count + 1)]
        ledger.append_all(rows)


def test_a_model_without_a_state_has_an_empty_list(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    page = Page(World(tmp_path, text_layers=1), tmp_path_factory.mktemp("uploads"))
    assert "Nothing was edited yet" in page.get("/").text


def test_an_edit_is_shown_with_all_that_the_ledger_holds(page: Page) -> None:
    text = page.get("/edit", id="e1").text
    assert 'Superseded by <a href="/edit?id=better">better</a>' in text
    for shown in ("which colour ?", "must stay", "what ?", "as the base", "on another picture"):
        assert shown in text
    assert f"/image/large/{digest(page.world, 'red')}" in text
    assert f"/image/small/{digest(page.world, 'orange')}" in text
    missing = page.get("/edit", id="../e1")
    assert (missing.status_code, "no edit `../e1`" in missing.text) == (404, True)


def test_pictures_are_small_copies(page: Page) -> None:
    answer = page.get(f"/image/small/{digest(page.world, 'red')}")
    assert (answer.headers["content-type"], answer.content[:3]) == ("image/jpeg", b"\xff\xd8\xff")


def test_a_damaged_ledger_is_a_sentence(page: Page) -> None:
    (page.world.folder / "ledger.jsonl").write_bytes(
        page.ledger.replace(b"red", b"rod").replace(b'"seq":2', b'"seq":9')
    )
    answer = page.get("/")
    assert (answer.status_code, "ledger.jsonl:" in answer.text) == (409, True)


def test_the_export_is_one_file_that_loads_nothing(page: Page) -> None:
    answer = page.get("/export", text="what")
    assert answer.headers["content-disposition"] == 'attachment; filename="edits.html"'
    assert answer.text.count("data:image/jpeg;base64,") == 3
    assert not re.search(r'(src|href|action)="(?!data:)', answer.text)
    assert "what &amp; &lt;b&gt;which&lt;/b&gt; ?" in answer.text


def test_the_list_shows_what_the_base_says_and_what_the_model_said_before_the_edit(page: Page) -> None:
    """`better` corrects the question of `e1`: before it, the model gave that target."""
    first, last = page.world.entries()[0], page.world.entries()[2]
    assert last["greedy_base"] == first["greedy_base"] != last["greedy_before"] == "r"
    row = page.get("/", text="better").text.partition('<td class="id">')[2].partition("</tr>")[0]
    said = re.findall(r'data-label="(base|after)">(.*?)</td>', row, re.DOTALL)
    assert [name for name, _ in said] == ["base", "after"]
    assert plain(last["greedy_base"])[:3] in said[0][1]
    assert re.sub(r"<[^>]*>|\s+", " ", said[1][1]).split() == ["b", "before", "this", "edit:", "r"]
    assert "before this edit" not in page.get("/", text="e1").text, "nothing was written before it"


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("target", ["better", "e2", "e1"]),
        ("-target", ["e1", "e2", "better"]),
        ("id", ["better", "e1", "e2"]),
        ("nonsense", ["better", "e2", "e1"]),
    ],
)
def test_the_list_is_sorted_by_its_columns(page: Page, sort: str, expected: list[str]) -> None:
    shown = page.get("/", sort=sort)
    assert ids(shown.text) == expected
    if sort == "target":
        assert 'aria-sort="ascending"><a href="/?sort=-target">' in shown.text, "a second click turns it round"
        assert ids(page.get("/", sort=sort, status="learnt").text) == ["better", "e2"]
        exported = page.get("/export", sort="-target").text
        assert re.findall(r'<td class="id">([^<]*)</td>', exported) == ["e1", "e2", "better"]


def test_what_is_not_there_is_not_found(page: Page) -> None:
    answer = page.get("/nowhere")
    assert (answer.status_code, "<h1>Page not found</h1>" in answer.text) == (404, True)


# --- asking ---


def test_both_models_are_asked(page: Page) -> None:
    answer = page.result(page.post("/ask", picture=digest(page.world, "green"), question="what & <b>which</b> ?"))
    assert re.search(r'<article class="voice edited">\s*<h3>edited</h3>\s*<p class="lead">\s*g\s*</p>', answer.text)
    assert '<article class="voice base">' in answer.text
    assert answer.text.count("the base model") == answer.text.count("the edited model") == 2
    assert re.search(r'>\d+ %</td><td data-label="NLL, nats per token">\d\.\d{3}</td>', answer.text)


def test_an_uploaded_picture_is_asked_about_and_stored_nowhere(page: Page) -> None:
    upload = ("../../mine.png", (page.world.root / "img" / "yellow.png").read_bytes(), "image/png")
    before = sorted(page.world.folder.rglob("*"))
    answer = page.result(page.post("/ask", picture="", question=QUESTION, upload=upload))
    assert f"/image/large/{digest(page.world, 'yellow')}" in answer.text
    assert [path.name for path in page.uploads.iterdir()] == [digest(page.world, "yellow")]
    assert sorted(page.world.folder.rglob("*")) == before


def test_a_question_that_cannot_be_asked_is_a_sentence(page: Page) -> None:
    empty = page.result(page.post("/ask", picture="", question=" ")).text
    assert "the question is empty" in empty
    assert "in quotes" not in empty, "nothing is typed in a shell"
    bad = page.post("/ask", picture="", question=QUESTION, upload=("x.png", b"not a picture", "image/png"))
    assert (bad.status_code, "`x.png` is not a readable image" in bad.text) == (422, True)


def test_all_questions_of_an_edit_are_asked(page: Page) -> None:
    text = page.result(page.post("/probe", id="e1")).text
    rows = re.findall(r'<td class="id">([^<]*)</td>', text)
    assert rows == ["the correction", "in other words", "on another picture", "must stay", "must stay"]


def test_every_stored_picture_can_be_chosen(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that only probes show; a form with more pictures than fit has buttons, which keep what was typed."""
    stored = {path.name for path in (page.world.folder / "images").iterdir()}
    assert set(offered(page.get("/draft").text)) == stored == set(offered(page.get("/ask").text))
    assert digest(page.world, "orange") in stored, "a picture of a probe"
    monkeypatch.setattr("more_cli.review.app.SHOWN", 3)
    monkeypatch.setattr("more_cli.review.app.Choice.step", 3)
    first = page.get("/draft").text
    assert 'value="pictures-3"' in first
    typed = {"question": "typed ?", "target": "r", "picture": digest(page.world, "red")}
    more = page.post("/draft", do="pictures-3", **typed)
    assert (more.status_code, "\ntyped ?</textarea>" in more.text) == (200, True)
    assert offered(more.text)[0] == digest(page.world, "red"), "the chosen one stays"
    rest = offered(page.post("/draft", do="pictures-3", picture="").text)
    assert set(offered(first)) | set(rest) == stored
    assert not page.worker._jobs


def offered(text: str) -> list[str]:
    return re.findall(r'type="radio" name="picture" value="(\w+)"', text)


# --- scoring and merging ---


def test_all_edits_are_scored_and_the_report_is_saved(page: Page) -> None:
    asked = page.post("/eval")
    scored = page.result(asked)
    assert re.search(r'<p class="lead">\d of 2 hold', scored.text)
    assert "In plain measures" in scored.text
    assert "under 10 samples" in scored.text, "two edits have no interval"
    link = re.search(r'href="(/report\?job=\d+)"', scored.text)
    assert link
    saved = page.get(link[1])
    assert saved.headers["content-disposition"] == 'attachment; filename="report.html"'
    assert "<h2>Gallery</h2>" in saved.text
    assert page.get("/report", job=99).status_code == 404


def test_the_edits_are_merged_into_a_folder_beside_the_state(page: Page) -> None:
    shown = page.get("/merge").text
    name = f"{page.world.model.name}-edited"
    assert f'name="name" value="{name}"' in shown
    merged = page.result(page.post("/merge", name=name, verify="on"))
    assert "merged into" in merged.text
    assert "Checked: " in merged.text
    assert (page.world.sidecar.parent / name / "more.json").is_file()
    again = page.result(page.post("/merge", name=name)).text
    assert "choose “Replace what an earlier merge wrote”" in again
    assert "--force" not in again
    assert "merged into" in page.result(page.post("/merge", name=name, force="on")).text


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "..", "a/b"])
def test_a_merge_goes_nowhere_else(page: Page, name: str) -> None:
    before = sorted(page.world.root.parent.iterdir())
    assert "is not a name of a folder" in page.result(page.post("/merge", name=name)).text
    assert sorted(page.world.root.parent.iterdir()) == before


def test_a_folder_that_no_disk_can_hold_is_no_bug(page: Page) -> None:
    assert "a path holds the character U+0000" in page.result(page.post("/merge", name="a\0b")).text


# --- changing ---


def test_failed_edits_are_tried_again(page: Page) -> None:
    """One by its page, with the settings that its reason advises, and all by the list."""
    page.world.write([{"id": "hard", "question": "q ?", "target": "b w g r"}])
    assert page.world.edit().code in (0, 3)
    fail(page.world, "hard")
    shown = page.get("/edit", id="hard").text
    assert "“Retry” with max_steps=60 may help" in shown
    assert "--" not in re.sub(r"<!--.*?-->", "", shown)
    assert 'name="settings" value="max_steps=60"' in shown
    assert ">Retry 1 failed edit</button>" in page.get("/").text
    one = page.result(page.post("/retry", id="hard", settings="max_steps=60"))
    assert "tried again: " in one.text
    assert page.world.entries()[-1]["settings"] == ["max_steps=60"]
    fail(page.world, "hard")
    every = page.result(page.post("/retry"))
    assert "1 edit tried again: " in every.text
    assert len(page.world.entries()) == 8
    assert "edit `e2` is learnt" in page.result(page.post("/retry", id="e2")).text


def fail(world: World, id: str) -> None:
    """Append a line that says that an edit was tried again and is not learnt."""
    from more_cli.store.ledger import Ledger
    from more_cli.store.status import Status

    with Ledger(world.folder) as ledger:
        fields = ledger.by_id[id].fields() | {"status": Status.NOT_LEARNT, "retry": True}
        ledger.append(fields | {"reason": "still wrong after 30 writes; `--retry` with `--set max_steps=60` may help"})


def test_other_pictures_are_dropped_kept_and_applied(page: Page) -> None:
    uploads = [
        ("others", (f"{colour}.png", (page.world.root / "img" / f"{colour}.png").read_bytes(), "image/png"))
        for colour in ("yellow", "blue")
    ]
    fields = {"question": "q ?", "target": "r", "id": "many", "picture": digest(page.world, "red")}
    sent = page.tab.post("/draft", data=fields | {"do": "check"}, files=uploads, headers={"Origin": HOST})
    checked = page.result(sent).text
    others = [f"other-{digest(page.world, colour)}" for colour in ("yellow", "blue")]
    assert re.findall(r'type="checkbox" name="(other-\w+)" checked', checked) == others
    assert "applied: " in page.result(page.post("/draft", do="apply", **fields, **dict.fromkeys(others, "on"))).text
    assert page.world.entries()[-1]["image_rephrases"] == [name.removeprefix("other-") for name in others]
    again = page.get("/draft", like="many").text
    assert re.findall(r'type="checkbox" name="(other-\w+)" checked', again) == others
    unknown = page.post("/draft", do="apply", **fields, **{f"other-{'0' * 64}": "on"})
    assert unknown.status_code == 404


def near(**fields: str) -> dict[str, str]:
    return {f"near-{name}-0": value for name, value in fields.items()}


def test_a_correction_is_drafted_checked_applied_and_reverted(page: Page) -> None:
    upload = ("blue.png", (page.world.root / "img" / "blue.png").read_bytes(), "image/png")
    fields = {"question": QUESTION, "target": "b", "id": "mine", "rephrases": "which ?\r\n\r\nwhat is it ?\r\n"}
    fields |= near(question="what ?", pictured="on")
    before = page.ledger

    drafted = page.result(page.post("/draft", do="base", picture="", upload=upload, **fields)).text
    assert drafted.count("the base answers:") == 2
    assert 'name="near-answer-0" value=""' in drafted, "this model never ends, and half an answer is not expected"
    fields |= near(answer="r") | {"picture": digest(page.world, "blue")}

    checked = page.result(page.post("/draft", do="check", **fields))
    assert (checked.status_code, "no problems found" in checked.text) == (200, True)
    assert page.ledger == before

    applied = page.result(page.post("/draft", do="apply", **fields)).text
    assert "applied: learnt" in applied
    entry = page.world.entries()[-1]
    assert (entry["id"], entry["target"], entry["rephrases"]) == ("mine", "b", ["which ?", "what is it ?"])
    assert entry["locality"] == [
        {"question": "what ?", "image": digest(page.world, "blue"), "answer": "r", "hop": None}
    ]
    assert (page.world.folder / "images" / digest(page.world, "blue")).is_file()
    assert statuses(page.world)["mine"] == "learnt"

    reverted = page.result(page.post("/revert", id="mine", head=page.head)).text
    assert "reverted" in reverted
    assert statuses(page.world)["mine"] == "reverted"
    again = page.result(page.post("/draft", do="apply", **fields)).text
    assert "applied: learnt" in again
    assert "in the ledger already" in page.result(page.post("/draft", do="apply", **fields)).text


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no target": ({"target": ""}, "`target` is empty"),
    "a long target": ({"target": "x" * 2_001}, "`target` has 2,001 characters"),
    "no question": ({"question": ""}, "`question` is empty"),
    "an id in use": ({"id": "e1"}, "id `e1` is in the ledger with other content"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("do", ["check", "apply"])
def test_problems_stand_beside_their_fields(page: Page, name: str, do: str) -> None:
    fields, said = WRONG[name]
    before = page.ledger
    answer = page.result(page.post("/draft", **{"do": do, "picture": "", "question": "q ?", "target": "r", **fields}))
    assert answer.status_code == 422
    field = next(iter(fields))
    beside = answer.text.partition(f'name="{field}"')[2]
    assert beside.partition('<p class="problem">')[2].startswith(said)
    assert beside.index('class="problem"') < (beside + "<label").index("<label")
    assert page.ledger == before


def test_the_first_correction_makes_the_state(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    page = Page(World(tmp_path, text_layers=1), tmp_path_factory.mktemp("uploads"))
    text = page.result(page.post("/ask", picture="", question="what ?")).text
    assert "There is no state yet, so the base answers alone" in text
    text = page.result(page.post("/draft", do="apply", picture="", question="what ?", target="r", id="first")).text
    assert "applied: learnt" in text
    assert statuses(page.world) == {"first": "learnt"}
    page.worker.stop()


def test_a_draft_about_an_edit_takes_its_question_and_picture(page: Page) -> None:
    text = page.get("/draft", like="e1").text
    assert f'value="{digest(page.world, "red")}" checked' in text
    assert QUESTION in text
    assert re.findall(r'name="near-question-\d" value="([^"]*)"', text) == ["what ?", "", ""], (
        "the other: another picture"
    )


def test_a_picture_that_is_not_there_is_not_left_out(page: Page) -> None:
    before = page.ledger
    answer = page.post("/draft", do="apply", picture="0" * 64, question="q ?", target="r")
    assert (answer.status_code, page.ledger) == (404, before)


def test_what_another_process_holds_is_not_touched(page: Page) -> None:
    before = page.ledger
    with writer_lock(page.world.folder / "lock"):
        applied = page.result(page.post("/draft", do="apply", picture="", question="q ?", target="r")).text
        assert "is in use by process" in applied
        assert ">\nq ?</textarea>" in applied, "the draft is still there"
        assert "is in use by process" in page.result(page.post("/revert", id="e2", head=page.head)).text
    assert page.ledger == before


def test_the_button_says_how_many_edits_are_applied_again_and_how_long_that_takes(page: Page) -> None:
    shown = page.get("/edit", id="e2").text
    said = "2 edits are applied again, 1 of them since no snapshot has their result"
    assert re.search(rf"As if it had never been applied\. {said}: about \d+ s\.</p>", shown)
    assert "As if it had never been applied. No edit is applied again." in page.get("/edit", id="better").text
    assert page.result(page.post("/revert", id="better", head=page.head)).status_code == 200
    assert "As if it had never" not in page.get("/edit", id="better").text
    page.world.sidecar.write_bytes(b"damaged")
    assert "As if it had never been applied.</p>" in page.get("/edit", id="e2").text


def test_a_button_drawn_before_the_ledger_changed_reverts_nothing(page: Page) -> None:
    drawn = page.head
    assert page.result(page.post("/revert", id="e2", head=drawn)).status_code == 200
    before = page.ledger
    stale = page.post("/revert", id="better", head=drawn)
    assert (stale.status_code, "changed since this page was drawn" in stale.text) == (409, True)
    assert page.ledger == before
    assert statuses(page.world) == {"e1": "superseded", "e2": "reverted", "better": "learnt"}


def test_a_revert_that_waits_behind_an_edit_is_stale_too(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    free, load = threading.Event(), ask.load_runtime

    def slow(*args: Any, **kwargs: Any) -> Any:
        assert free.wait(60)
        return load(*args, **kwargs)

    monkeypatch.setattr(ask, "load_runtime", slow)
    applied = page.post("/draft", do="apply", picture="", id="first", question="q ?", target="r")
    reverted = page.post("/revert", id="e2", head=page.head)
    free.set()
    assert "applied: learnt" in page.result(applied).text
    assert "changed since this page was drawn" in page.result(reverted).text
    assert statuses(page.world) == {"e1": "superseded", "e2": "learnt", "better": "learnt", "first": "learnt"}


def test_two_tabs_see_each_others_edits(page: Page) -> None:
    other = page.stranger()
    other.cookies.update(page.tab.cookies)
    page.result(page.post("/draft", do="apply", picture="", id="fresh", question="q ?", target="r"))
    assert ids(other.get("/").text)[0] == "fresh"


def test_pages_can_be_read_while_the_model_works(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    free, load = threading.Event(), ask.load_runtime

    def slow(*args: Any, **kwargs: Any) -> Any:
        assert free.wait(60)
        return load(*args, **kwargs)

    monkeypatch.setattr(ask, "load_runtime", slow)
    asked = page.post("/ask", picture="", question="what ?")
    waiting = page.get(asked.headers["location"]).text
    assert 'http-equiv="refresh"' in waiting
    assert "<progress " in waiting
    assert "The result will appear here." in waiting
    listed = page.get("/").text
    assert "now: asking `what ?`" in listed
    assert ids(listed) == ["better", "e2", "e1"]
    free.set()
    assert '<article class="voice base">' in page.result(asked).text


def test_a_bug_leaves_the_page_running(
    page: Page, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(ask, "load_runtime", broken)
    assert "a bug: ZeroDivisionError" in page.result(page.post("/ask", picture="", question="what ?")).text
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.undo()
    assert '<article class="voice base">' in page.result(page.post("/ask", picture="", question="what ?")).text


def test_a_page_loads_nothing_from_elsewhere_and_runs_nothing(page: Page) -> None:
    for path in ("/", "/ask", "/draft", "/edit?id=e1", "/eval", "/combine", "/merge"):
        text = page.get(path).text
        assert not re.search(r"<script|<style|\sstyle=|\son[a-z]+=", text), path
        assert all(link.startswith("/") for link in re.findall(r'(?:src|href|action)="([^"]*)"', text)), path


def test_a_correction_gives_the_bytes_of_the_command(page: Page, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = World.at(tmp_path_factory.mktemp("other"))
    shutil.copytree(page.world.root, other.root, dirs_exist_ok=True)
    edit = {"question": QUESTION, "target": "o", "id": "same"}
    other.write([edit | {"image": "img/orange.png"}])
    assert other.edit().code == 0
    page.result(page.post("/draft", do="apply", picture=digest(page.world, "orange"), **edit))
    assert_same_state(page.world.sidecar, other.sidecar)


def test_the_ledger_is_the_one_of_the_commands(page: Page) -> None:
    page.result(page.post("/draft", do="apply", picture=digest(page.world, "green"), question=QUESTION, target="g"))
    assert run("verify", page.world.model).code == 0
    assert json.loads(page.ledger.splitlines()[-1])["images"] == [digest(page.world, "green")]
