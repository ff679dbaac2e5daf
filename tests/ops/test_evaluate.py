"""Outputs of `more eval`: gates with their exit code, JSON, JUnit XML, HTML and Markdown."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markupsafe import escape

from more_cli.evaluation.metrics import estimate
from more_cli.evaluation.names import SUCCESS_METRICS, full_names
from more_cli.files import sha256_file
from more_cli.inputs.edits import read_edits
from more_cli.render.markdown import LINES
from more_cli.store.ledger import Ledger
from more_cli.store.status import Status
from more_cli.text import plain, span
from support import tiny
from support.helpers import CALM, QUESTION, QUICK, REFUSING, Result, World, line, run
from support.pages import CODE, HOSTILE, Page
from support.refused import assert_refused

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
    done = world.edit("--set", "max_steps=4", "--set", "halvings=0", "--set", "conjugate=0", "--json")
    assert done.json["counts"] == {"learnt": 1, "not-learnt": 1}
    return world


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four edits: one is learnt, two are refused after their writes, and one does not fit into the context."""
    world = World(tmp_path_factory.mktemp("refused") / "world")
    config = json.loads((world.model / "config.json").read_text())["text_config"]
    tiny.set_config(world.model, text_config=config | {"max_position_embeddings": 100})
    world.write(
        [
            line(0, rephrases=["a colour ?"]),
            line(1, target="@@@ ~~~", rephrases=["colour ?"], locality=[{"question": "what ?"}]),
            line(2, target="zebra @@@ ~~~", rephrases=["is it ?"]),
            line(3, target="@" * 100, rephrases=["a colour ?", "colour ?"], locality=[{"question": "why ?"}]),
        ]
    )
    assert world.edit(*REFUSING, "--json").json["counts"] == {"refused": 4}
    assert run("edit", world.model, "--retry", "e1", *CALM).code == 0
    assert run("status", world.model, "--json").json["statuses"] == {"learnt": 1, "refused": 3}
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
        "error: gate missed: gen_image.gen_exact>=0: nothing was measured: "
        "a file of `--probes` gives rel, loc_text, loc_image only\n"
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
        (["--gate", "rel.gen_exact>=95"], "`95` is outside 0 to 1", "write 0.95 for 95 %"),
        (["--report", "report.pdf"], "a report is .html or .md", "report.html"),
        (["--report", "nowhere/report.md"], "there is no folder", "create it"),
        (["--junit", "."], "JUnit's report is .xml", "more.xml"),
        (["--junit", "model/config.json"], "JUnit's report is .xml", "more.xml"),
        (["--report", "a.html", "--report", "a.html"], "is named twice", "its own name"),
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


def test_a_gate_on_an_interval_over_few_samples_warns_and_is_missed_if_strict(world: World) -> None:
    warning = "an interval over 2 samples is unsure, at least 10 are needed"
    gated = ("eval", world.model, "--gate", "rel.gen_exact.high<=1", "--junit", world.root / "few.xml")
    warned = run(*gated, *[word for name in ("few.md", "few.html") for word in ("--report", world.root / name)])
    assert warned.code == 0
    assert f"warning: {warning}" in " ".join(warned.out.split())
    assert all(warning in text(world, name) for name in ("few.md", "few.html"))
    gates = ElementTree.parse(world.root / "few.xml").getroot()[1]
    assert (gates.get("failures"), warning in gates.find("system-out").text) == ("0", True)
    strict = run(*gated, "--strict-gates", "--json")
    assert (strict.code, f"warning: {warning}" in strict.err) == (6, True)
    assert [(gate["met"], gate["warning"]) for gate in strict.json["gates"]] == [(False, warning)]


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (
            ("--image-root", "img"),
            "`--image-root` needs `--probes` or `--suite`",
            "add --probes FILE or --suite NAME, or",
        ),
        (("--strict-paths",), "`--strict-paths` needs `--probes` or `--suite`", "or leave --strict-paths out"),
        (("--strict-gates",), "`--strict-gates` needs `--gate`", 'add --gate "METRIC>=NUMBER", or leave'),
        (("--strict-gates", "--suite", "e-vqa"), "`--strict-gates` needs `--gate`", "or leave --strict-gates out"),
    ],
)
def test_options_that_would_do_nothing_are_refused(world: World, words: tuple[str, ...], said: str, hint: str) -> None:
    assert_refused(run("eval", world.model, *words), 2, said, hint)


# --- edits that do not stand ---


def reasons(world: World) -> dict[str, str]:
    found = {entry["id"]: entry["reason"] for entry in world.entries()[1:] if entry["status"] == "refused"}
    assert list(found) == ["e2", "e3", "e4"]
    assert all(found.values())
    return found


def test_refused_edits_fail_and_are_named_in_every_output(refusing: World) -> None:
    options = [word for name in ("x.html", "x.md") for word in ("--report", refusing.root / name)]
    gate = "--gate", "rel.gen_exact>=0.95"
    shown = run("eval", refusing.model, *gate, *options, "--junit", refusing.root / "x.xml")
    assert shown.code == 6
    assert "error: gate missed: rel.gen_exact>=0.95: 0.25" in shown.err
    lines = shown.out.splitlines()
    assert lines[0].startswith("1 of 4 holds; ")
    assert lines[-1] == "3 of 4 edits do not stand: e2 (refused), e3 (refused), e4 (refused)"
    pages = {name: text(refusing, name) for name in ("x.html", "x.md", "x.xml")}
    for name in ("x.html", "x.md"):
        assert "1 of 4 corrections holds. Failures:" in pages[name]
        assert "1 of 4 holds; " in pages[name]
    failures = ElementTree.fromstring(pages["x.xml"])[0].findall("testcase/failure")
    assert [failure.get("type") for failure in failures] == ["refused"] * 3
    for failure, (id, reason) in zip(failures, reasons(refusing).items(), strict=True):
        assert failure.get("message").endswith(f"; refused: {reason}")
        assert f"refused: {escape(reason)}" in pages["x.html"]
        assert re.search(
            rf"^- (picture \w{{8}}, )?`{id}` \(refused\), `+ ?{re.escape(reason)} ?`+; `", pages["x.md"], re.MULTILINE
        )
        place = next(number for number, row in enumerate(lines) if re.match(rf"{id} +refused +", row))
        assert lines[place + 1].strip() == reason
    assert [row.split("  ")[0] for row in lines if "other words, refused" in row] == ["e2", "e3", "e4", "e4"]


def test_refused_edits_are_zeros_in_every_score_of_success(refusing: World) -> None:
    """What the model happens to say counts nowhere; what is no success stays as measured, where it was."""
    result = run("eval", refusing.model, "--json").json
    assert (result["schema"], result["edits"], result["first_forgotten"]) == ("more.eval/2", 4, "e2")
    assert result["failed"] == [
        {"id": id, "status": "refused", "reason": reason} for id, reason in reasons(refusing).items()
    ]
    assert [(row["id"], row["status"], row["reason"]) for row in result["failing"]] == [
        (id, "refused", reason) for id, reason in reasons(refusing).items()
    ]
    measured = {name: (value["value"], value["n"]) for name, value in result["metrics"].items()}
    assert [measured[f"rel.{name}"] for name in SUCCESS_METRICS] == [(0.25, 4)] * len(SUCCESS_METRICS)
    assert measured["gen_text.gen_exact"][1] == 5
    assert measured["rel.target_nll"][1] == measured["rel.gen_stops"][1] == 3, "one could not be asked"
    assert result["retention"]["0-3"]["value"] == 0.25
    edits = {edit["id"]: edit for edit in result["per_edit"]}
    unasked = edits["e4"]
    locality = {name: values for name, values in unasked["values"].items() if name.startswith("loc_text.")}
    zeros = {f"rel.{name}": [0.0] for name in SUCCESS_METRICS}
    zeros |= {f"gen_text.{name}": [0.0, 0.0] for name in SUCCESS_METRICS}
    assert locality
    assert unasked["values"] == zeros | locality
    assert [(said["answer"], said["holds"]) for said in unasked["answers"][:3]] == [(None, False)] * 3
    verdicts = {"e1": "holds", "e2": "refused", "e3": "refused", "e4": "refused"}
    assert {id: edit["verdict"] for id, edit in edits.items()} == verdicts


def test_a_refused_edit_that_the_model_answers_by_itself_still_fails(refusing: World, tmp_path: Path) -> None:
    """The learnt edit makes the model say `r`; another one wants `R` for the same question and was refused."""
    shutil.copytree(refusing.root, tmp_path / "world")
    world = World.at(tmp_path / "world")
    with Ledger(world.folder) as ledger:
        (edit,) = read_edits(world.write([line(0, id="right", target="R")], "right.jsonl")).edits
        ledger.append({**ledger.describe(edit), "status": Status.REFUSED, "reason": "by hand"})
    result = run("eval", world.model, "--json").json
    right = result["per_edit"][-1]
    assert (right["id"], right["answer"], right["target"], right["verdict"]) == ("right", "r", "R", "refused")
    assert right["values"]["rel.gen_exact"] == right["values"]["rel.gen_contains"] == [0.0]
    assert right["answers"][0]["holds"] is False
    measured = result["metrics"]["rel.gen_exact"]
    assert (result["edits"], measured["n"], measured["value"]) == (5, 5, 0.2)


def test_a_not_learnt_edit_counts_as_measured_and_is_named(world: World, scored: Result) -> None:
    assert scored.json["failed"] == [{"id": EVIL, "status": "not-learnt", "reason": world.entries()[1]["reason"]}]
    assert scored.json["per_edit"][1]["verdict"] == "does not hold"
    assert scored.json["metrics"]["rel.target_nll"]["n"] == 2
    last = run("eval", world.model).out.splitlines()[-1]
    assert last == f"1 of 2 edits does not stand: {EVIL} (not-learnt)"


# --- what moved ---


def test_every_probe_is_listed_with_what_was_expected_and_what_is_said(world: World, scored: Result) -> None:
    """In the order in which they were scored: the edit, its variants, what follows from it, and locality."""
    first, second = scored.json["per_edit"]
    assert [said["kind"] for said in first["answers"]] == [
        *("rel", "gen_text", "gen_text", "gen_image", "portability", "portability", "portability"),
        *("loc_text", "loc_image"),
    ]
    for said in first["answers"]:
        group, metric = said["kind"], "loc_gen_same" if said["kind"].startswith("loc") else "gen_exact"
        assert said["holds"] in [value == 1 for value in first["values"][f"{group}.{metric}"]]
        assert said["holds"] == (said["answer"] == said["expected"])
    orange = sha256_file(world.root / "img" / "orange.png")
    assert [said["images"] for said in first["answers"] if said["kind"] == "gen_image"] == [[orange]]
    assert first["answers"][1] == {
        "kind": "gen_text",
        "question": "a colour ?",
        "images": [sha256_file(world.root / "img" / "red.png")],
        "expected": "r",
        "answer": "r",
        "holds": True,
    }
    assert [said["expected"] for said in second["answers"]] == [NEVER]


def test_what_is_not_as_expected_is_shown_on_a_narrow_terminal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("eval", world.model).out.splitlines()
    assert lines[0].startswith("1 of 2 holds; 2 of 2 in other words, 1 of 1 with other pictures")
    first = lines.index("2 other answers not as expected:")
    head, *rows = lines[first + 1 : first + 4]
    assert head.split() == ["edit", "asked", "question", "expected", "answer"]
    assert [re.split("  +", row)[:3] for row in rows] == [
        ["e1", "unrelated", "what ?"],
        ["e1", "unrelated, picture", "what colour is i…"],
    ]
    assert all(len(row) <= 80 for row in rows)


def test_a_long_list_of_what_moved_is_cut(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.write([line(0, rephrases=[f"colour {number} ?" for number in range(23)])])
    world.edit(*QUICK)
    lines = run("eval", world.model).out.splitlines()
    assert sum("other words" in row for row in lines) == 1 + 20, "the headline and twenty rows"
    assert "and 3 more: --json has all" in lines


def test_a_question_without_an_answer_that_changed_is_shown(world: World) -> None:
    file = world.write(
        [{"question": "what ?"}, {"question": QUESTION, "image": "img/red.png", "answer": "r"}], "p.jsonl"
    )
    shown = run("eval", world.model, "--probes", file, "--report", world.root / "p.md").out.splitlines()
    report = text(world, "p.md").split("\n\n")
    assert report[2] == "The answer holds."
    assert re.match(r"\*\*1 of 1 unrelated answer changed:\*\*\n- `\w+`, unrelated; `what \?`, base `", report[1])
    assert "Not measured" not in "".join(report), "a file of questions has no corrections that could lack fields"
    assert shown[0] == "1 of 1 holds; 1 of 1 unrelated answer changed"
    assert shown[1].endswith("2 questions of p.jsonl")
    assert "1 of 2 does not hold:" in shown
    (row,) = [row for row in shown if re.search(r" changed +what \? ", row)]
    result = run("eval", world.model, "--probes", file, "--json").json
    (said,) = result["per_edit"][0]["answers"]
    assert (result["schema"], result["failed"], said["holds"]) == ("more.eval/2", [], False)
    assert plain(said["expected"])[:20] in row
    assert plain(said["answer"])[:20].rstrip() in row


# --- JSON ---


def test_json_has_everything_to_reproduce_the_numbers(world: World, scored: Result) -> None:
    result = scored.json
    assert result["schema"] == "more.eval/2"
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
        met.err.strip()
        == 'error: gate missed: port_4.gen_exact>=0: nothing was measured: no edit has `portability` with `"hop": 4`'
    )
    assert "3 of 3 that follow" in text(world, "out.html")
    assert "<code>portability.gen_exact</code>" in text(world, "out.html")
    assert "loc_flip" not in text(world, "out.html"), "1 - loc_gen_same is listed once"


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
            del edit["base"], edit["before"]  # asked of the base for a report only
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
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "bdi",
            "main",
            "h1",
            "h2",
            "h3",
            "p",
            "section",
            "div",
            "table",
        ),
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
            "g",
            "text",
            "rect",
            "path",
            "article",
            "bdi",
        ),
        *("bdi", "img", "dl", "dt", "dd", "ul", "li", "details", "summary", "pre"),
    }
    assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not any({"href", "srcset", "action"} & attributes.keys() for _, attributes in page.elements)
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.all("img"))
    assert {image["alt"] for image in page.all("img") if not image["alt"].startswith("picture ")} == {
        f"image of {EVIL}",
        "image of e1",
    }
    assert "url(" not in raw
    assert "default-src 'none'" in next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in raw


def test_html_shows_numbers_gates_plots_and_the_gallery(world: World, scored: Result) -> None:
    raw = text(world, "out.html")
    page = Page(raw)
    first, rest = raw.split("<summary>All 36 metrics</summary>")
    for sentence in ("1 of 2 corrections holds. Failures:", "2 of 2 unrelated answers changed:"):
        assert raw.count(f'<p class="bad">{sentence}</p><ul class="named"><li>') == 1
        assert sentence in first
    assert "<h2>In plain measures</h2>" in first
    assert not re.search("<svg|<article|<code>rel.tf_exact</code>", first), "the full metrics have to be opened"
    assert "<code>rel.tf_exact</code>" in rest
    assert "1 of 2 holds" in raw
    assert len(page.all("svg")) == 1, "two edits are of one age"
    assert "rel.gen_exact.low&gt;=0.9" in raw
    cards = [attributes["class"] for attributes in page.all("article")]
    assert cards == ["bad", "good"]
    moved = [said for said in scored.json["per_edit"][0]["answers"] if said["holds"] is False]
    assert [said["kind"] for said in moved] == ["loc_text", "loc_image"]
    named = re.findall(r'<li><img src="data:[^"]*" alt="picture \w{8}">', raw)
    assert len(named) == 2, "the edit that does not hold, and the locality question that has a picture"
    assert len(page.all("img")) == 2 + 2 + 1, "also one per edit, and the locality question again in its card"
    assert "<summary>6 other answers as expected</summary>" in raw
    for said in moved:
        cells = [said["question"], said["expected"], said["answer"]]
        row = "".join(f'<td data-label="[^"]+">{re.escape(escape(plain(cell)))}</td>' for cell in cells)
        assert re.search(row, raw)
    assert scored.json["reproduce"]["ledger_head"] in raw


# --- Markdown ---


def test_markdown_is_compact_and_shows_texts_of_records_as_code(world: World, scored: Result) -> None:
    raw = text(world, "out.md")
    assert raw.startswith(
        "### more eval: 1 of 2 holds; 2 of 2 in other words, 1 of 1 with other pictures, 3 of 3 that follow, "
        "2 of 2 unrelated answers changed\n"
    )
    assert "**1 of 2 corrections holds. Failures:**\n" in raw
    assert "\n\nRephrasings 2/2, other pictures 1/1, what follows 3/3.\n" in raw
    assert "\n\n**2 of 3 gates are missed.**\n" in raw
    (changed,) = re.findall(r"\*\*2 of 2 unrelated answers changed:\*\*\n- (.*)\n- (.*)\n\n", raw)
    for item, said in zip(changed, scored.json["per_edit"][0]["answers"][-2:], strict=True):
        assert re.match(r"(picture \w{8}, )?`e1`, unrelated", item)
        assert item.endswith(f", base {span(said['expected'])}, now {span(said['answer'])}")
    recipe, changed_at = scored.json["reproduce"]["recipe"]["name"], world.entries()[-1]["time"]
    assert f", recipe `{recipe}`, last changed `{changed_at}`.\n" in raw
    assert "| `rel.gen_exact.low>=0.9` | **missed** | 0.5, 95 %" in raw
    assert len(raw) < 4000
    assert CODE.sub("", raw).isascii()
    tables = [block.splitlines() for block in raw.split("\n\n") if block.startswith("|")]
    for table in tables:
        assert len({len(re.split(r"(?<!\\)\|", row)) for row in table}) == 1, table
    (failed,) = [line for line in raw.splitlines() if EVIL in line]
    assert re.fullmatch(r"- picture \w{8},  \(not-learnt\), ; , wanted , base , now ", CODE.sub("", failed))
    assert [row.split(" | ")[1] for row in tables[-1][2:]] == ["1 of 2", "2 of 2", "1 of 1", "3 of 3", "0 of 2"]
    assert raw.endswith("Not shown here, but in the HTML report and `--json`: All 36 metrics.\n")
    assert len(raw.splitlines()) <= LINES


# --- files ---


def test_a_report_that_cannot_be_finished_leaves_the_old_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.root / "kept"
    place.mkdir()
    old = place / "r.html"
    old.write_text("old")

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", broken)
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


# --- questions that the model cannot be asked ---


def test_a_probe_that_does_not_fit_the_model_is_refused_with_its_edit(tmp_path: Path) -> None:
    world = World(tmp_path, text_layers=1)
    world.write([line(0), line(1, rephrases=["short ?", "what colour is it ? " * 300])])
    refused = world.edit(*QUICK)
    assert refused.code == 4
    assert re.search(r"edits\.jsonl:2: `rephrases`: question and target take [\d,]+ tokens", refused.err)
    assert not world.sidecar.exists()


def test_a_state_that_has_such_a_probe_is_scored_and_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, text_layers=1)
    world.write([line(0, rephrases=["what colour is it ? " * 300])])
    with monkeypatch.context() as patch:
        patch.setattr("more_cli.ops.edit.may_not_fit", lambda *_: False)
        assert world.edit(*QUICK).code == 3
    scored = run("eval", world.model, "--json")
    assert scored.code == 0, scored.err
    assert scored.json["metrics"]["gen_text.gen_exact"]["value"] == 0.0


def test_a_file_of_probes_that_do_not_fit_is_refused_by_name(world: World) -> None:
    lines = [{"id": "long", "question": "what colour is it ? " * 300}, {"question": "what ?", "answer": "r"}]
    refused = run("eval", world.model, "--probes", world.write(lines, "probes.jsonl"))
    assert refused.code == 4
    assert "error: probes.jsonl: `long`: question and target take " in refused.err
