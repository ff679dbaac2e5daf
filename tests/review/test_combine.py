"""The page that combines the state with another one in its folder."""

from __future__ import annotations

import re
import shutil

import pytest

from review.conftest import Page
from support.helpers import World, line, run


@pytest.fixture
def ann(world: World) -> World:
    """A second state beside the first: an edit of its own, and one that contradicts."""
    for suffix in ("", ".d"):
        copy = shutil.copytree if suffix else shutil.copyfile
        copy(f"{world.sidecar}{suffix}", world.root / f"model.ann.more{suffix}")
    for state, lines in ((world.root / "model.ann.more", [line(2), line(3, id="ours")]), (world.sidecar, [])):
        if lines:
            world.edit("--state", state, edits=world.write(lines, "ann.jsonl"))
    return world


def test_what_would_come_in_is_shown_and_written_to_a_new_state(ann: World, page: Page) -> None:
    assert "model.ann.more</option>" in page.get("/combine").text
    before = page.ledger
    shown = page.get("/combine", other="model.ann.more").text
    rows = [row for row in re.findall(r"<tr><td.*?</tr>", shown, re.DOTALL) if "no edit" in row]
    assert [[id for id in ("e2", "ours", "e3") if f">{id}," in row] for row in rows] == [["ours"], ["e3"]], (
        "newest first"
    )
    assert all(row.index("no edit") < row.index("faint") for row in rows), "they are in the other state only"
    assert "2 edits are applied again" not in shown  # they go on where this state ends
    done = page.result(page.post("/combine", other="model.ann.more", name="both"))
    assert "5 edits of both states are in" in done.text
    assert page.ledger == before
    made = run("verify", ann.model, "--state", ann.root / "both.more", "--deep")
    assert made.code == 0, made.out
    again = page.result(page.post("/combine", other="model.ann.more", name="both.more"))
    assert "5 edits of both states were already in" in again.text


def test_contradictions_are_shown_and_need_a_decision(ann: World, page: Page) -> None:
    page.world.edit(edits=page.world.write([line(2, id="other", target="z")], "more.jsonl"))
    shown = page.get("/combine", other="model.ann.more").text
    assert "has two targets" in shown
    first = re.findall(r"<tr><td.*?</tr>", shown, re.DOTALL)[0]
    here, there = re.findall(r"<strong>(\w+)</strong> <span", first)
    assert ("two targets" in first, here) == (True, "z")
    assert there != "z"
    refused = page.result(page.post("/combine", other="model.ann.more", name="both")).text
    assert "let the later one count, or revert one of them" in refused
    assert not (ann.root / "both.more").exists()
    done = page.result(page.post("/combine", other="model.ann.more", name="both", theirs="on")).text
    assert "6 edits of both states are in" in done


@pytest.mark.parametrize(("other", "name"), [("../x.more", "y"), ("model.ann.more", "../y"), ("model.ann.more", "a/b")])
def test_nothing_is_read_or_written_elsewhere(ann: World, page: Page, other: str, name: str) -> None:
    refused = page.result(page.post("/combine", other=other, name=name)).text
    assert "is not a name of a state" in refused
    assert not (ann.root.parent / "y.more").exists()


def test_without_another_state_the_page_says_so(page: Page) -> None:
    assert "There is no other state in" in page.get("/combine").text
    assert page.get("/combine", other="nowhere.more").status_code == 200
