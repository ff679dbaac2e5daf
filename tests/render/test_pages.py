"""The renderers alone: any text, number or amount of edits in HTML, Markdown and JUnit XML."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from more_cli.cli.evaluate import eval_values
from more_cli.cli.output import finite
from more_cli.evaluation.gates import judge, parse_gate
from more_cli.evaluation.metrics import Estimate
from more_cli.evaluation.names import Kind
from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.inputs.images import locate_image
from more_cli.model.batches import Query
from more_cli.ops.evaluate import EvalReport
from more_cli.render.html import GALLERY, html
from more_cli.render.junit import junit_xml
from more_cli.render.markdown import code, markdown
from more_cli.render.pages import of_state
from more_cli.render.thumbnails import Thumbnails
from more_cli.store.entry import FailedEdit, Status
from more_cli.store.target import Target
from more_cli.text import plain
from support.pages import CODE, HOSTILE, NINETEEN_OF_TWENTY, Page


def made_up(folder: Path, scores: list[ProbeScore], **fields: Any) -> EvalReport:
    return EvalReport(Target(folder / "m", folder / "m.more"), "state", scores=scores, edits=len(scores), **fields)


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


def test_a_card_shows_what_moved_and_folds_away_what_did_not(tmp_path: Path) -> None:
    others = [
        *(asked("gen_text", "e1", False, "moved ?", "b"), asked("gen_text", "e1", True, "kept ?")),
        *(asked("loc_text", "e1", True, "same ?"), asked("loc_text", "e1", None, "not asked ?", None)),
    ]
    raw = html(of_state(made_up(tmp_path, [score("e1", True), *others])))
    before, after = raw.split("<summary>2 other answers as expected</summary>")
    assert "<td>moved ?</td>" in before
    assert "<td>kept ?</td>" not in before
    assert re.findall(r"<td>(\w+ \?)</td>", after) == ["kept ?", "kept ?", "same ?", "same ?"], "question and expected"
    assert "not asked ?" not in raw
    later = [score("e0", True), asked("gen_text", "e0", True)]
    assert re.findall("<h3>(e.)", html(of_state(made_up(tmp_path, [*later, score("e1", True), *others])))) == [
        "e1",
        "e0",
    ]
    one = html(of_state(made_up(tmp_path, [score("e1", True), others[1]])))
    assert "<summary>1 other answer as expected</summary>" in one
    assert "<details><summary>0" not in html(of_state(made_up(tmp_path, [score("e1", True), others[0]])))


def test_a_long_list_of_what_moved_is_cut(tmp_path: Path) -> None:
    moved = [asked("gen_text", "e1", False, f"question {number} ?", "b") for number in range(25)]
    raw = markdown(of_state(made_up(tmp_path, [score("e1", True), *moved])))
    assert raw.count("other words |") == 20
    assert raw.endswith("\n\nand 5 more\n")


def test_refused_edits_come_last_among_what_moved(tmp_path: Path) -> None:
    failed = [FailedEdit("e1", Status.REFUSED, "no")]
    scores = [score("e1", False), asked("gen_text", "e1", False), score("e2", True), asked("gen_text", "e2", False)]
    rows = markdown(of_state(made_up(tmp_path, scores, failed=failed))).splitlines()[-2:]
    assert [row.split(" | ")[:2] for row in rows] == [["| `e2`", "other words"], ["| `e1`", "other words, refused"]]


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
    assert "| `rel.target_nll` | nan | nan to nan | bootstrap | 1 |" in markdown(of_state(report))
    values = json.loads(json.dumps(finite(eval_values(report)), allow_nan=False))
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
    lines = markdown(of_state(report)).splitlines()
    failed, bad, moved = lines[4], lines[8], lines[-1]
    assert not CODE.sub("", failed)
    assert [len(re.split(r"(?<!\\)\|", row)) for row in (bad, moved)] == [8, 7]
    assert not set(CODE.sub("", bad)) - {"|", " "}
    assert not set(CODE.sub("", moved).replace("other words", "")) - {"|", " "}


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
        ("two\nlines\x1b[0m", "`two lines [0m`"),
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
