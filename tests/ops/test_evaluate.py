"""Outputs of `more eval`: gates with their exit code, JSON, JUnit XML, HTML and Markdown."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from more_cli.evaluation.metrics import estimate
from more_cli.evaluation.names import full_names
from support.helpers import QUESTION, Result, World, line, run
from support.pages import CODE, HOSTILE, Page

EVIL = '<e&2 " onload="x">'
"""An id that tries to end an attribute."""
NEVER = "@@@ <b>~~~</b>"
"""A target that the tiny model does not learn in four steps."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two edits: one that holds, with probes of every kind, and a hostile one that does not."""
    world = World(tmp_path_factory.mktemp("reports"))
    probes: dict[str, Any] = {
        "rephrases": ["a colour ?", "colour ?"],
        "portability": [{"question": "what ?", "answer": "r", "image": "img/red.png", "hop": n} for n in (1, 2, 5)],
        "image_rephrases": ["img/orange.png"],
        "locality": [{"question": "what ?"}, {"question": QUESTION, "image": "img/white.png"}],
    }
    world.write([line(0, **probes), line(1, id=EVIL, question=HOSTILE, target=NEVER)])
    done = world.edit("--set", "max_steps=4", "--set", "guard=false", "--json")
    assert done.json["counts"] == {"learnt": 1, "not-learnt": 1}
    return world


@pytest.fixture(scope="module")
def scored(world: World) -> Result:
    """One run with every outlet, a gate that is met and two that are not."""
    gates = ["rel.gen_exact>=0.5", "rel.gen_exact.low>=0.9", "loc_text.loc_gen_same>1"]
    options = [word for text in gates for word in ("--gate", text)]
    for name in ("out.html", "out.md"):
        options += ["--report", str(world.root / name)]
    return run("eval", world.model, *options, "--junit", world.root / "out.xml", "--json")


def text(world: World, name: str) -> str:
    return (world.root / name).read_text(encoding="utf-8")


# --- gates ---


def test_a_missed_gate_is_exit_code_6_and_is_named(scored: Result) -> None:
    assert scored.code == 6
    missed = [text for text in scored.err.splitlines() if text.startswith("error: ")]
    assert [text.split(": ")[2] for text in missed] == ["rel.gen_exact.low>=0.9", "loc_text.loc_gen_same>1"]
    assert "0.5, 95 % interval 0.0945" in missed[0]
    assert [gate["met"] for gate in scored.json["gates"]] == [True, False, False]


def test_gates_that_are_met_are_exit_code_0_also_with_probes(world: World) -> None:
    world.write([{"question": QUESTION, "image": "img/red.png", "answer": "r"}, {"question": "why ?"}], "probes.jsonl")
    probes = ("eval", world.model, "--probes", world.root / "probes.jsonl")
    met = run(*probes, "--gate", "rel.gen_exact>=1", "--gate", "loc_text.loc_expkl_answer>=0")
    assert met.code == 0
    assert re.search(r"rel\.gen_exact>=1 +met", met.out)
    missed = run(*probes, "--gate", "gen_image.gen_exact>=0", "-q", "--json", "--junit", world.root / "probes.xml")
    assert missed.code == 6
    assert missed.err == (
        "error: gate missed: gen_image.gen_exact>=0: nothing was measured: there are no `gen_image` probes\n"
    )
    assert [edit["target"] for edit in missed.json["per_edit"]] == ["r", None]
    assert missed.json["per_edit"][1]["verdict"] in ("changed", "unchanged")
    assert missed.json["reproduce"]["probes"]
    assert ElementTree.parse(world.root / "probes.xml").getroot()[0].get("tests") == "2"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--gate", "rel.gen_exat>=0.9"], "there is no metric", "`rel.gen_exact`"),
        (["--gate", "rel.gen_exact"], "is not a metric, one of", "quotes"),
        (["--report", "report.pdf"], "a report is .html or .md", "report.html"),
        (["--report", "nowhere/report.md"], "there is no folder", "create it"),
        (["--junit", "."], "is not a file", "another"),
        (["--junit", "a.html", "--report", "a.html"], "is named twice", "its own name"),
    ],
)
def test_what_cannot_work_is_refused_before_the_model_is_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str, hint: str
) -> None:
    monkeypatch.setattr("more_cli.ops.session.load_runtime", None)
    refused = run("eval", world.model, *options)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err
    assert hint in refused.err.split("hint: ")[1]


def test_gates_on_a_state_without_edits_are_missed(tmp_path: Path) -> None:
    world = World(tmp_path)
    run("init", world.model)
    options = [word for name in ("empty.html", "empty.md") for word in ("--report", tmp_path / name)]
    missed = run("eval", world.model, "--gate", "rel.gen_exact>=0", *options, "--junit", tmp_path / "empty.xml")
    assert missed.code == 6
    assert "nothing to score" in missed.out
    assert "0 of 0 hold" in text(world, "empty.html")
    assert "0 of 0 hold" in text(world, "empty.md")
    assert [suite.get("failures") for suite in ElementTree.parse(tmp_path / "empty.xml").getroot()] == ["0", "1"]


# --- JSON ---


def test_json_has_everything_to_reproduce_the_numbers(world: World, scored: Result) -> None:
    result = scored.json
    assert result["schema"] == "more.eval/1"
    reproduce = result["reproduce"]
    assert reproduce["ledger_head"]
    assert reproduce["ledger_head"] != world.entries()[-1]["prev"]
    assert {"base", "recipe", "template", "digest", "edits", "anchors", "intervals"} <= reproduce.keys()
    assert {"more", "torch", "transformers", "device", "dtype", "threads"} <= reproduce["versions"].keys()
    assert reproduce["recipe"] == run("status", world.model, "--json").json["recipe"]
    expected = {
        name for name in full_names() if not name.endswith("_all") and not name.startswith(("port_3", "port_4"))
    }
    assert set(result["metrics"]) == expected
    assert {"mask", "baseline", "protocol", "n", "interval"} <= result["metrics"]["rel.tf_exact"].keys()
    assert result["metrics"]["loc_text.loc_flip"]["baseline"] == "base"


def test_portability_is_reported_by_hop(world: World, scored: Result) -> None:
    """Three questions follow from the edit, of one, two and five steps; the last counts in `portability` only."""
    result = scored.json["metrics"]
    ns = {group: result[f"{group}.gen_exact"]["n"] for group in ("portability", "port_1", "port_2")}
    assert ns == {"portability": 3, "port_1": 1, "port_2": 1}
    met = run("eval", world.model, "--gate", "port_1.tf_token_acc>=0", "--gate", "port_4.gen_exact>=0")
    assert met.code == 6
    assert (
        met.err.strip() == "error: gate missed: port_4.gen_exact>=0: nothing was measured: there are no `port_4` probes"
    )
    assert "portability " in text(world, "out.html")
    assert "portability.gen_exact" in text(world, "out.md")
    assert "loc_flip" not in text(world, "out.md"), "1 - loc_gen_same is listed once"


def test_the_values_of_each_edit_give_the_metrics(scored: Result) -> None:
    result = scored.json
    for name, value in result["metrics"].items():
        values = [one for edit in result["per_edit"] for one in edit["values"].get(name, [])]
        assert estimate(values).value == pytest.approx(value["value"])
        assert len(values) == value["n"]
    first, second = result["per_edit"]
    assert (first["id"], first["verdict"], first["answer"], first["target"]) == ("e1", "holds", "r", "r")
    assert (second["id"], second["verdict"]) == (EVIL, "does not hold")
    assert first["before"] != "r"
    assert first["probes"] != second["probes"]


def test_the_same_state_gives_the_same_json(world: World, scored: Result) -> None:
    again = run("eval", world.model, "--json").json
    kept = scored.json
    for result in (again, kept):
        del result["gates"]
        for edit in result["per_edit"]:
            del edit["before"]  # asked of the base for a report only
    assert again == kept


# --- JUnit ---


def test_junit_has_a_case_per_edit_and_per_gate(world: World, scored: Result) -> None:
    root = ElementTree.fromstring(text(world, "out.xml"))
    edits, gates = root
    assert [(suite.get("name"), suite.get("tests"), suite.get("failures")) for suite in root] == [
        ("edits", "2", "1"),
        ("gates", "3", "2"),
    ]
    for suite in root:
        failed = suite.findall("testcase/failure")
        assert (len(suite.findall("testcase")), len(failed)) == (int(suite.get("tests")), int(suite.get("failures")))
        total = sum(float(case.get("time")) for case in suite.findall("testcase"))
        assert total == pytest.approx(float(suite.get("time")), abs=0.01)
    assert [case.get("name") for case in gates.findall("testcase")] == [g["gate"] for g in scored.json["gates"]]
    failure = edits.find("testcase/failure")
    assert failure.get("type") == "does not hold"
    assert f"question: {HOSTILE}" in failure.text


def test_junit_escapes_markup_of_questions(world: World, scored: Result) -> None:
    raw = text(world, "out.xml")
    assert not re.search("<!|<script|<b>|CDATA", raw)
    assert raw.count("<testcase") == 5
    assert all(letter.isprintable() or letter == "\n" for letter in raw)


def test_junit_elements_come_in_the_order_of_the_schema(world: World, scored: Result) -> None:
    for suite in ElementTree.fromstring(text(world, "out.xml")):
        tags = [child.tag for child in suite]
        assert tags == ["properties", *["testcase"] * int(suite.get("tests")), "system-out", "system-err"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp"))


# --- HTML ---


def test_html_is_one_well_formed_file_that_fetches_and_runs_nothing(world: World, scored: Result) -> None:
    raw = text(world, "out.html")
    page = Page(raw)
    assert {tag for tag, _ in page.elements} <= {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "section", "div", "table"),
        *(
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "code",
            "span",
            "figure",
            "figcaption",
            "svg",
            "text",
            "rect",
            "path",
            "article",
        ),
        *("img", "dl", "dt", "dd", "details", "summary", "pre"),
    }
    assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not any({"href", "srcset", "action"} & attributes.keys() for _, attributes in page.elements)
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert [image["alt"] for image in page.all("img")] == [f"image of {EVIL}", "image of e1"]
    assert "url(" not in raw
    assert "default-src 'none'" in next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in raw


def test_html_shows_numbers_gates_plots_and_the_gallery(world: World, scored: Result) -> None:
    raw = text(world, "out.html")
    page = Page(raw)
    assert "1 of 2 hold" in raw
    assert len(page.all("svg")) == 1, "two edits are of one age"
    assert "rel.gen_exact.low&gt;=0.9" in raw
    cards = [attributes["class"] for attributes in page.all("article")]
    assert cards == ["bad", "good"]
    assert len(page.all("img")) == 2
    assert "rephrases" in raw
    assert scored.json["reproduce"]["ledger_head"] in raw


# --- Markdown ---


def test_markdown_is_compact_and_shows_texts_of_records_as_code(world: World, scored: Result) -> None:
    raw = text(world, "out.md")
    assert raw.startswith("### more eval: 1 of 2 hold\n")
    assert "| `rel.gen_exact.low>=0.9` | **missed** | 0.5, 95 %" in raw
    assert len(raw) < 4000
    assert CODE.sub("", raw).isascii()
    tables = [block.splitlines() for block in raw.split("\n\n") if block.startswith("|")]
    for table in tables:
        assert len({len(re.split(r"(?<!\\)\|", row)) for row in table}) == 1, table
    (row,) = [row for row in raw.splitlines() if EVIL in row]
    assert not set(CODE.sub("", row)) - {"|", " "}


# --- files ---


def test_a_report_that_cannot_be_finished_leaves_the_old_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.root / "kept"
    place.mkdir()
    old = place / "r.html"
    old.write_text("old")

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", broken)
    failed = run("eval", world.model, "--report", old)
    assert failed.code == 7
    assert "rel.gen_exact" in failed.out, "the numbers are shown before files are written"
    monkeypatch.undo()
    assert old.read_text() == "old"
    assert [path.name for path in place.iterdir()] == ["r.html"]
    shutil.rmtree(place)


def test_a_folder_that_is_not_writable_is_refused_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.ops.session.load_runtime", None)
    monkeypatch.setattr("os.access", lambda _path, mode, **_: mode != os.W_OK)
    refused = run("eval", world.model, "--report", world.root / "a.md")
    assert (refused.code, "is not writable" in refused.err) == (5, True)
