"""The renderers alone: any text, number or amount of edits in HTML, Markdown and JUnit XML."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from generator.outputs import example as example_of
from more_cli.cli.output import finite
from more_cli.evaluation.gates import judge, parse_gate
from more_cli.evaluation.metrics import Estimate
from more_cli.evaluation.names import Kind, full_names
from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.inputs.images import locate_image
from more_cli.model.batches import Query
from more_cli.ops.drift import Drift, DriftAfter
from more_cli.ops.evaluate import EvalReport
from more_cli.outputs.evaluations import EvalOutput
from more_cli.render.html import GALLERY, html
from more_cli.render.junit import junit_xml
from more_cli.render.markdown import LINES, markdown
from more_cli.render.page import Page as Content
from more_cli.render.page import Sentence, Table
from more_cli.render.pages import of_state
from more_cli.render.plots import Bars, Course, Curve, Picture
from more_cli.render.templates import Quoted
from more_cli.render.thumbnails import Thumbnails
from more_cli.store.entry import FailedEdit
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.text import code, plain
from support.pages import CODE, HOSTILE, NINETEEN_OF_TWENTY, Page


def made_up(folder: Path, scores: list[ProbeScore], **fields: Any) -> EvalReport:
    """A report with these fields; estimates and retention are those of the scores unless they are given."""
    given = {name: fields.pop(name) for name in ("estimates", "retention") if name in fields}
    report = EvalReport(Target(folder / "m", folder / "m.more"), "state", scores=scores, **fields)
    vars(report).update(given)
    return report


def score(id: str, holds: bool, question: str = "what ?", answer: str = "a") -> ProbeScore:
    return ProbeScore(Probe(id, "rel", Query((), question), "a"), {"gen_exact": float(holds)}, answer)


def asked(kind: Kind, id: str, holds: bool | None, text: str = "what ?", said: str | None = "a") -> ProbeScore:
    """A score of another question of an edit."""
    locality = kind.startswith("loc")
    name = "loc_gen_same" if locality else "gen_exact"
    probe = Probe(id, kind, Query((), text), None if locality else text)
    return ProbeScore(probe, {} if holds is None else {name: float(holds)}, said, text if locality else "")


def test_the_headline_never_leaves_out_variants_that_were_measured(tmp_path: Path) -> None:
    """Two edits; of the second's questions one about what is unrelated could not be asked, and counts nowhere."""
    alone = [score("e1", True), score("e2", True)]
    assert made_up(tmp_path, alone).headline == "2 of 2 hold"
    others = [
        *(asked("gen_text", "e1", True), asked("gen_text", "e2", False), asked("gen_image", "e1", False)),
        *(asked("portability", "e1", True), asked("loc_text", "e1", True), asked("loc_image", "e2", False)),
        asked("loc_text", "e2", None, said=None),
    ]
    whole = (
        "2 of 2 hold; 1 of 2 in other words, 0 of 1 with other pictures, 1 of 1 that follow, "
        "1 of 2 unrelated answers changed"
    )
    report = made_up(tmp_path, alone + others)
    assert report.headline == whole
    assert f">{whole}</p>" in html(of_state(report))
    assert markdown(of_state(report)).startswith(f"### more eval: {whole}\n")
    unanswered = [asked("loc_text", "q1", True), asked("loc_text", "q2", False)]
    assert made_up(tmp_path, unanswered).headline == "1 of 2 unrelated answers changed"


def said(page: str) -> list[str]:
    """The bold and plain sentences of a report in Markdown, without what they name."""
    blocks = page.split("\n\n")[1:]
    return [
        block.splitlines()[0].strip("*") for block in blocks[: next(i for i, b in enumerate(blocks) if "Base" in b)]
    ]


def test_the_first_screen_says_that_all_is_well(tmp_path: Path) -> None:
    scores = [score("e1", True), score("e2", True), asked("gen_text", "e1", True), asked("loc_text", "e1", True)]
    report = made_up(tmp_path, scores, gates=judge([parse_gate("rel.gen_exact>=0.9")], NINETEEN_OF_TWENTY))
    sentences = [
        "All 2 corrections hold.",
        "Rephrasings 1/1.",
        "None of 1 unrelated answer changed.",
        "The gate is met.",
    ]
    text, page = markdown(of_state(report)), html(of_state(report))
    assert said(text) == sentences
    assert [page.count(f"<p>{sentence}</p>") for sentence in sentences] == [1] * 4
    assert "**" not in text
    assert 'class="bad"' not in page
    one = markdown(of_state(made_up(tmp_path, [score("e1", True)])))
    assert said(one) == [
        "The correction holds.",
        "No unrelated question was asked, so nothing is known about other answers.",
        "No gate was set.",
    ]
    assert "| `rephrasings` |  |  |  | Not measured: no correction has rephrases. |" in one
    assert "No correction was asked for.\n" in markdown(of_state(made_up(tmp_path, [])))


def test_the_first_screen_says_why_an_edit_failed(tmp_path: Path) -> None:
    """One was refused, one is another by now though it was learnt, and one holds though it was not learnt."""
    failed = [FailedEdit("e1", Status.REFUSED, "too far"), FailedEdit("e3", Status.NOT_LEARNT, "")]
    scores = [score("e1", False), score("e2", False, answer=""), score("e3", True)]
    text = markdown(of_state(made_up(tmp_path, scores, failed=failed, base_answers={"e1": "z"})))
    assert (
        "**1 of 3 corrections holds. Failures:**\n"
        "- `e1` (refused), `too far`; `what ?`, wanted `a`, base `z`, now `a`\n"
        "- `e2`; `what ?`, wanted `a`, now `(nothing)`\n\n"
        "**1 of those that hold is recorded as not learnt:**\n- `e3`\n\n"
    ) in text
    none = markdown(of_state(made_up(tmp_path, scores[:2])))
    assert said(none)[0] == "0 of 2 corrections hold. Failures:"


def test_failures_come_first_each_with_its_picture(tmp_path: Path) -> None:
    """Two other pictures of one question get the same wrong answer: only the pictures tell them apart."""
    pictures = []
    for colour in ("red", "blue"):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{colour}.png")
        pictures.append(locate_image(f"{colour}.png", tmp_path))
    wrong = [
        replace(one, probe=replace(one.probe, query=Query((picture,), "what ?")))
        for one, picture in zip([asked("gen_image", "e1", False) for _ in pictures], pictures, strict=True)
    ]
    content = of_state(made_up(tmp_path, [score("e1", True), *wrong]))
    text, page = markdown(content), html(content)
    assert said(text)[:2] == ["Other pictures 0/2. Failures:", "The correction holds."]
    items = re.findall(r"^- picture (\w{8}), `e1`, other picture; ", text, re.MULTILINE)
    assert items == [picture.sha256[:8] for picture in pictures]
    shown = re.findall(r'<li><img src="(data:image/jpeg[^"]*)" alt="picture \w{8}"><code>e1</code>', page)
    assert len(set(shown)) == 2


def test_few_samples_have_neither_share_nor_interval(tmp_path: Path) -> None:
    """3 of 3 is not 100 %, wherever it is shown."""
    few = of_state(made_up(tmp_path, [score(f"e{number}", True) for number in range(3)]))
    assert "| `own questions` | 3 of 3 |  | under 10 samples | Corrected" in markdown(few)
    assert "100.0%" not in html(few)
    many = of_state(made_up(tmp_path, [score(f"e{number}", True) for number in range(10)]))
    assert "| `own questions` | 10 of 10 | 100.0% | 72.2% to 100.0% | Corrected" in markdown(many)


@pytest.mark.parametrize(("columns", "rows", "pieces"), [(4, 16, 1), (4, 31, 2), (4, 40, 3), (8, 31, 1)])
def test_a_long_narrow_table_stands_in_equal_pieces(columns: int, rows: int, pieces: int) -> None:
    table = Table("Metrics", ["c"] * columns, [[f"row {row}", *["0"] * (columns - 1)] for row in range(rows)])
    raw = html(Content(command="", subject="", headline="", scope="", reading="", tables=[table]))
    lengths = [part.count("<code>row ") for part in raw.split("<table")[1:]]
    assert (len(lengths), sum(lengths)) == (pieces, rows)
    assert max(lengths) - min(lengths) <= pieces
    assert re.findall("<code>(row [0-9]+)", raw) == [f"row {row}" for row in range(rows)]


def test_a_bar_of_few_samples_has_no_whisker() -> None:
    few, many = (Estimate(1.0, 0.5, 1.0, n, "wilson") for n in (9, 10))
    tables = [Table("t", ("c",), [], plots=[Bars("b", {"few": few, "many": many})])]
    raw = html(Content(command="", subject="", headline="", scope="", reading="", tables=tables))
    assert raw.partition("few</text>")[2].partition("many</text>")[0].count('class="whisker"') == 0
    assert raw.partition("many</text>")[2].count('class="whisker"') == 1


@pytest.mark.parametrize("edits", [1, 12, 300])
def test_markdown_has_at_most_sixty_lines(tmp_path: Path, edits: int) -> None:
    """Whatever the size: every list is long, every gate is missed, and the full tables do not fit."""
    kinds: list[Kind] = ["gen_text", "gen_image", "portability", "loc_text", "loc_image"]
    scores = [score(f"e{number}", number < edits // 3) for number in range(edits)]
    scores += [asked(kind, f"e{number}", False) for kind in kinds for number in range(edits)]
    failed = [FailedEdit(f"e{number}", Status.NOT_LEARNT, "no") for number in range(edits)]
    gates = judge([parse_gate(f"rel.gen_exact>0.{number}") for number in range(95, 99)] * edits, NINETEEN_OF_TWENTY)
    curve = [DriftAfter(number, 0.1, 0.2) for number in range(1, edits + 1)]
    report = made_up(
        tmp_path,
        scores,
        failed=failed,
        gates=gates,
        left_out=edits,
        estimates=dict.fromkeys(full_names(), NINETEEN_OF_TWENTY["rel.gen_exact"]),
        retention=dict.fromkeys(["0-9", "10-99", "100-299"], NINETEEN_OF_TWENTY["rel.gen_exact"]),
        drift=Drift(dict.fromkeys(range(edits), "q ?"), dict.fromkeys(range(edits), 0.2), curve, 0.1),
    )
    text = markdown(of_state(report))
    assert len(text.splitlines()) <= LINES
    if edits == 300:
        assert "100 of 300 corrections hold. Failures:" in text
        assert "\n- and 197 more\n" in text
        assert "600 of 600 unrelated answers changed:" in text
        assert "1,200 of 1,200 gates are missed." in text
        assert len(re.findall(r"<li>and \d+ more</li>", html(of_state(report)))) == 5, "HTML shows twenty of each"


def test_a_card_shows_what_moved_and_folds_away_what_did_not(tmp_path: Path) -> None:
    others = [
        *(asked("gen_text", "e1", False, "moved ?", "b"), asked("gen_text", "e1", True, "kept ?")),
        *(asked("loc_text", "e1", True, "same ?"), asked("loc_text", "e1", None, "not asked ?", None)),
    ]
    raw = html(of_state(made_up(tmp_path, [score("e1", True), *others])))
    before, after = raw.split("<summary>2 other answers as expected</summary>")
    assert ">moved ?</td>" in before
    assert ">kept ?</td>" not in before
    assert re.findall(r">(\w+ \?)</td>", after) == ["kept ?", "kept ?", "same ?", "same ?"], "question and expected"
    assert "not asked ?" not in raw
    later = [score("e0", True), asked("gen_text", "e0", True)]
    assert re.findall("<h3><bdi>(e.)", html(of_state(made_up(tmp_path, [*later, score("e1", True), *others])))) == [
        "e1",
        "e0",
    ]
    one = html(of_state(made_up(tmp_path, [score("e1", True), others[1]])))
    assert "<summary>1 other answer as expected</summary>" in one
    assert "<details><summary>0" not in html(of_state(made_up(tmp_path, [score("e1", True), others[0]])))


def test_a_long_list_of_what_moved_is_cut(tmp_path: Path) -> None:
    moved = [asked("gen_text", "e1", False, f"question {number} ?", "b") for number in range(25)]
    raw = markdown(of_state(made_up(tmp_path, [score("e1", True), *moved])))
    assert raw.count("`e1`, other words; `question ") == 20
    assert "\n- and 5 more\n" in raw


def test_refused_edits_come_last_among_what_moved(tmp_path: Path) -> None:
    failed = [FailedEdit("e1", Status.REFUSED, "no")]
    scores = [score("e1", False), asked("gen_text", "e1", False), score("e2", True), asked("gen_text", "e2", False)]
    lines = markdown(of_state(made_up(tmp_path, scores, failed=failed))).splitlines()
    named = [line.partition(";")[0] for line in lines if "other words" in line and line.startswith("- ")]
    assert named == ["- `e2`, other words", "- `e1`, other words, refused"]


def test_a_report_without_edits_is_whole(tmp_path: Path) -> None:
    report = made_up(tmp_path, [], gates=judge([parse_gate("rel.gen_exact>=0.95")], NINETEEN_OF_TWENTY))
    assert "0 of 0 hold" in html(of_state(report))
    Page(html(of_state(report)))
    edits, gates = ElementTree.fromstring(junit_xml(of_state(report)))
    assert (edits.get("tests"), gates.get("tests"), gates.get("failures")) == ("0", "1", "0")


def test_a_long_gallery_is_cut_after_what_does_not_hold(tmp_path: Path) -> None:
    report = made_up(tmp_path, [score(f"e{number}", number != GALLERY) for number in range(GALLERY + 5)])
    raw = html(of_state(report))
    cards = [attributes["class"] for attributes in Page(raw).all("article")]
    assert cards == ["bad", *["good"] * (GALLERY - 1)]
    assert f"{GALLERY} of {GALLERY + 5}, edits that do not hold first" in raw
    assert raw.count("no image") == GALLERY
    assert "and 5 more" in markdown(of_state(made_up(tmp_path, [score(f"e{number}", False) for number in range(25)])))


def test_numbers_that_are_not_finite_stay_readable(tmp_path: Path) -> None:
    nan = Estimate(math.nan, math.nan, math.nan, 1, "bootstrap")
    broken = score("e1", False)
    broken.values["target_nll"] = math.inf
    report = made_up(
        tmp_path,
        [broken],
        estimates={"rel.gen_exact": nan, "rel.target_nll": nan},
        retention={"0-9": nan, "10-99": nan},
    )
    Page(html(of_state(report)))
    assert "| `rel.target_nll` | nan | under 10 samples | bootstrap | 1 |" in markdown(of_state(report))
    report.reproduce = example_of("eval")["reproduce"]
    values = json.loads(json.dumps(finite(EvalOutput.of_report(report).values()), allow_nan=False))
    assert values["metrics"]["rel.gen_exact"]["value"] is None
    assert values["per_edit"][0]["values"]["rel.target_nll"] == [None]


ANYTHING = st.text(min_size=1) | st.text(alphabet="|\\`<>&;\"'[]()! \na", min_size=1)


@example(HOSTILE, HOSTILE, HOSTILE)
@example("a\\|![](http://e/)", '"><img src=x onerror=y>', "' onload='x")
@given(ANYTHING, ANYTHING, ANYTHING)
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_out(question: str, answer: str, id: str) -> None:
    def with_text(id: str, question: str, answer: str) -> EvalReport:
        others = [asked("gen_text", id, False, question, answer), asked("loc_text", id, True, question, answer)]
        failed = [FailedEdit(id, Status.NOT_LEARNT, answer)]
        scores = [score(id, False, question, answer), *others]
        return made_up(Path("nowhere"), scores, base_answers={id: answer}, failed=failed)

    report, usual = with_text(id, question, answer), with_text("x", "what ?", "a")
    assert Page(html(of_state(report))).shape() == Page(html(of_state(usual))).shape()
    (case,) = ElementTree.fromstring(junit_xml(of_state(report))).iter("testcase")
    assert case.find("failure").text.startswith(f"question: {plain(question)}\n".rstrip("\n"))
    bad, varied = [line for line in markdown(of_state(report)).splitlines() if line.startswith("- ")]
    assert CODE.sub("", bad) == "-  (not-learnt), ; , wanted , base , now "
    assert CODE.sub("", varied) == "- , other words; , wanted , now "


def test_no_text_of_any_page_breaks_out() -> None:
    """Every field that may hold names of users, models, editors and trials, whatever the kind of the page."""

    def shape(text: str) -> list[tuple[str, list[str]]]:
        value = NINETEEN_OF_TWENTY["rel.gen_exact"]
        plots = [
            Bars(text, {text: value}),
            Curve(text, [1.0, 0.5], {2: value}),
            Course(text, [(1, 0.1, 0.2)], 1.0),
            Picture(text, b"png"),
        ]
        table = Table(text, (text, text), [(text, text)], text, plots)
        found = Sentence((text, Quoted(text)), [(Quoted(text), text)], good=False)
        words = {"command": text, "subject": text, "headline": text, "scope": text, "reading": text, "left_out": text}
        tables = [table, replace(table, folded=True)]
        raw = html(Content(**words, sentences=[found], tables=tables, reproduce={text: text}))
        page = Page(raw)
        assert [attributes["alt"] for attributes in page.all("img")] == [plain(text)] * 2
        return page.shape()

    assert shape(HOSTILE) == shape('\'" onload="x" &amp;') == shape("x")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain", "`plain`"),
        ("", ""),
        (" \n", ""),
        ("a|b", "`a\\|b`"),
        ("a\\|b", "`a\\ \\|b`"),
        ("`", "`` ` ``"),
        ("``a`", "``` ``a` ```"),
        ("two\nlines\x1b[0m", "`two lines\\u001b[0m`"),
    ],
)
def test_a_code_span_holds_anything(said: str, shown: str) -> None:
    assert code(said) == shown


def test_thumbnails_are_small_and_end_with_the_budget(tmp_path: Path) -> None:
    Image.effect_noise((1200, 900), 90).convert("RGB").save(tmp_path / "big.png")
    image = locate_image("big.png", tmp_path)
    thumbnails = Thumbnails(budget=40_000)
    uri = thumbnails.uri(image)
    assert uri is not None
    pixels = Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))))
    assert pixels.size == (256, 192)
    shown = 1
    while thumbnails.uri(image):
        shown += 1
    assert shown == 40_000 // len(uri)
