"""Outputs of `eval --suite` and `compare`: gates, JUnit XML, HTML and Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markupsafe import escape
from PIL import Image

from more_cli.text import plain, verb
from support.helpers import QUESTION, Result, World, line, run
from support.pages import HOSTILE, Page

EVIL = "e<b>2"
"""An id that tries to be markup."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three edits, of which a few steps teach all but the second, whose question is hostile."""
    world = World(tmp_path_factory.mktemp("suite-reports") / "world")
    asked = [{"question": "what ?"}, {"question": QUESTION, "image": "img/white.png"}]
    never = line(1, id=EVIL, question=HOSTILE, target="@@@ ~~~")
    world.write([line(0, locality=asked, rephrases=["a colour ?"]), never, line(2, locality=asked)])
    return world


def suite(world: World, *options: object) -> Result:
    where = "--cache", world.root / "cache", "--dtype", "float32"
    settings = "--set", "max_steps=3", "--set", "halvings=0"
    return run("run", world.model, "--suite", world.root / "edits.jsonl", *where, *settings, *options)


@pytest.fixture(scope="module")
def scored(world: World) -> Result:
    """One run with every outlet, gates that are met and two that are not."""
    gates = ["rel.gen_exact>=0.3", "rel.gen_exact@online@1>=1", "rel.gen_exact@online.low>=0.99"]
    options = [word for text in gates for word in ("--gate", text)]
    for name in ("out.html", "out.md"):
        options += ["--report", str(world.root / name)]
    return suite(world, *options, "--junit", world.root / "out.xml", "--json")


def text(world: World, name: str) -> str:
    return (world.root / name).read_text(encoding="utf-8")


def values(result: dict[str, Any], readout: str) -> float:
    return result["protocols"][readout]["rel.gen_exact"]["value"]


# --- gates ---


def test_gates_hold_on_the_headline_or_on_the_protocol_they_name(scored: Result) -> None:
    assert scored.code == 6
    gates = {gate["metric"]: gate for gate in scored.json["gates"]}
    assert [gate["met"] for gate in gates.values()] == [True, True, False]
    assert gates["rel.gen_exact"]["actual"] == values(scored.json, "final@3")
    assert gates["rel.gen_exact@online@1"]["actual"] == values(scored.json, "online@1")
    low = scored.json["protocols"]["online@3"]["rel.gen_exact"]["low"]
    assert gates["rel.gen_exact@online"]["actual"] == low
    (missed,) = [row for row in scored.err.splitlines() if row.startswith("error: ")]
    assert missed.startswith("error: gate missed: rel.gen_exact@online.low>=0.99: ")


@pytest.mark.parametrize(
    ("gate", "said", "hint"),
    [
        ("rel.gen_exact@online@7>=0.9", "no metric `rel.gen_exact@online@7`", "`rel.gen_exact@online"),
        ("rel.gen_exact@single>=0.9", "no metric `rel.gen_exact@single`", "`rel.gen_exact@final`"),
        ("accuracy>=0.9", "no metric `accuracy`", "for example `rel.gen_exact`, "),
    ],
)
def test_a_gate_on_what_is_not_measured_is_refused_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, gate: str, said: str, hint: str
) -> None:
    monkeypatch.setattr("more_cli.runner.run.load_runtime", None)
    refused = suite(world, "--gate", gate)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert hint in refused.err.split("hint: ")[1]


def test_a_state_has_no_protocols_to_gate_on(world: World) -> None:
    refused = run("eval", world.model, "--gate", "rel.gen_exact@online>=0.9")
    assert refused.code == 2
    assert "did you mean `rel.gen_exact`" in refused.err


def test_met_gates_are_shown_and_exit_with_0(world: World, scored: Result) -> None:
    met = suite(world, "--gate", "rel.gen_exact@final@3>=0.3")
    assert met.code == 0, met.err
    assert re.search(r"rel\.gen_exact@final@3>=0\.3 +met", met.out)


# --- files ---


def test_junit_has_a_case_per_edit_and_per_gate(world: World, scored: Result) -> None:
    edits, gates = ElementTree.fromstring(text(world, "out.xml"))
    assert (edits.get("tests"), gates.get("tests"), gates.get("failures")) == ("3", "3", "1")
    bad = [edit["id"] for edit in scored.json["per_edit"] if edit["verdict"] != "holds"]
    assert EVIL in bad
    assert int(edits.get("failures")) == len(bad)
    (failure,) = [failure for failure in edits.findall("testcase/failure") if HOSTILE in failure.text]
    assert "wanted: @@@ ~~~" in failure.text
    assert "base: " in failure.text
    properties = {item.get("name"): item.get("value") for item in edits.iter("property")}
    assert (properties["editor"], properties["protocol"], properties["source"]) == ("more", "final", "edits")


def test_html_has_every_protocol_plots_and_the_edits(world: World, scored: Result) -> None:
    raw = text(world, "out.html")
    page = Page(raw)
    assert [title for title in re.findall("<h2>([^<]*)</h2>", raw)] == [
        *("Gates", "Metrics, final@3", "During the stream", "Protocols by checkpoint", "Gallery"),
    ]
    assert len(page.all("svg")) == 2
    assert len(page.all("circle")) == 2, "final@1 and final@3"
    assert len(page.all("article")) == 3
    assert not re.search("<script|<b>", raw)
    for edit in scored.json["per_edit"]:
        assert f"<dd>{escape(plain(edit['before']))}</dd>" in raw


def test_the_line_of_the_plot_is_online_so_far(world: World, scored: Result) -> None:
    """Read back from the plot: after t edits the mean of S[1, 1] to S[t, t]."""
    raw = text(world, "out.html")
    (path,) = [path for path in Page(raw).all("path") if path["class"] == "line"]
    height = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path["d"])]
    online = {
        row["edit"]: row["scores"][0]["values"]["gen_exact"]
        for row in scored.json["matrix"]
        if row["after"] == row["edit"]
    }
    means = [sum(online[i] for i in range(1, t + 1)) / t for t in (1, 2, 3)]
    assert height == pytest.approx([8 + 150 * (1 - mean) for mean in means], abs=0.1)
    assert means[2] == pytest.approx(values(scored.json, "online@3"))


def test_markdown_has_the_protocols_and_what_does_not_hold(world: World, scored: Result) -> None:
    raw = text(world, "out.md")
    holding = sum(edit["verdict"] == "holds" for edit in scored.json["per_edit"])
    said = [said for edit in scored.json["per_edit"] for said in edit["answers"]]
    changed = sum(one["holds"] is False for one in said if one["kind"].startswith("loc"))
    words = sum(one["holds"] for one in said if one["kind"] == "gen_text")
    held = f"{holding} of 3 {verb(holding, 'holds', 'hold')}"
    assert raw.startswith(
        f"### more run: {held}; {words} of 1 in other words, {changed} of 4 unrelated answers changed\n"
    )
    assert scored.json["schema"] == "more.eval/1"
    protocols = raw.split("#### Protocols by checkpoint")[1]
    (row,) = [row for row in protocols.splitlines() if row.startswith("| `rel.gen_exact` |")]
    assert [float(cell) for cell in row.split("|")[2:-1]] == pytest.approx(
        [values(scored.json, name) for name in ("final@3", "final@1", "online@3", "online@1")], abs=5e-4
    )
    assert f"`{EVIL}`" in raw


def test_a_comparison_has_its_files_too(world: World) -> None:
    files = [world.root / "compared.html", world.root / "compared.md"]
    where = "--model", world.model, "--cache", world.root / "cache", "--dtype", "float32"
    options = [word for path in files for word in ("--report", path)]
    result = run("compare", "none", "ft-l", "--suite", world.root / "edits.jsonl", *where, *options, "--json")
    assert result.code == 0, result.err
    page = Page(text(world, "compared.html"))
    assert len(page.all("svg")) == 8, "one per metric in the tables, with a bar per editor"
    raw = text(world, "compared.md")
    measured = result.json["differences"]["ft-l"]["rel.gen_exact"]
    assert f"| `rel.gen_exact` | ft-l | {measured['difference']:+.3f} | under 10 samples |" in raw
    assert "#### `online@3`" in raw


# --- capability ---


@pytest.fixture
def asked(tmp_path: Path) -> World:
    """A tiny model with one edit, and an MME of one category."""
    world = World(tmp_path / "world")
    folder = tmp_path / "world" / "mme" / "color"
    folder.mkdir(parents=True)
    for colour in ("red", "green"):
        Image.new("RGB", (28, 28), colour).save(folder / f"{colour}.png")
        (folder / f"{colour}.txt").write_text(f"is it {colour} ?\tYes\nis it black ?\tNo\n")
    world.write([{"image": "mme/color/red.png", "question": "is it red ?", "target": "yes"}])
    return world


def capability(world: World, *options: object) -> Result:
    return run("eval", world.model, "--suite", "mme", "--data-root", world.root / "mme", *options)


def test_a_capability_is_gated_on_its_change(asked: World) -> None:
    early = capability(asked, "--gate", "mme.accuracy_change>=-0.02")
    assert early.code == 2
    assert "needs a state: there is no" in early.err
    asked.edit("--set", "max_steps=60")
    files = [asked.root / "mme.html", asked.root / "mme.md"]
    options = [word for path in files for word in ("--report", path)]
    gates = "--gate", "mme.accuracy_change>=-0.02", "--gate", "mme.color.accuracy_change>0.9"
    result = capability(asked, *gates, *options, "--junit", asked.root / "mme.xml", "--json")
    assert result.code == 6
    assert [gate["met"] for gate in result.json["gates"]] == [True, False]
    assert result.json["gates"][0]["actual"] == result.json["change"]["all"]["value"] > 0
    assert "gate missed: mme.color.accuracy_change>0.9" in result.err
    edits, judged = ElementTree.fromstring(text(asked, "mme.xml"))
    assert (edits.get("tests"), judged.get("tests"), judged.get("failures")) == ("0", "2", "1")
    page = Page(text(asked, "mme.html"))
    assert not page.all("img"), "the licence asks to keep outputs to scores"
    assert "color, edited" in text(asked, "mme.html")
    assert "#### Change of accuracy" in text(asked, "mme.md")
    wrong = capability(asked, "--gate", "mme.accuracy>=0.9")
    assert (wrong.code, "did you mean `mme.accuracy_change`" in wrong.err) == (2, True)
