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
from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.inputs.images import locate_image
from more_cli.model.batches import Query
from more_cli.ops.evaluate import EvalReport
from more_cli.render.html import GALLERY, html
from more_cli.render.junit import junit_xml
from more_cli.render.markdown import code, markdown
from more_cli.render.pages import of_state
from more_cli.render.thumbnails import Thumbnails
from more_cli.store.target import Target
from more_cli.text import plain
from support.pages import CODE, HOSTILE, NINETEEN_OF_TWENTY, Page


def made_up(folder: Path, scores: list[ProbeScore], **fields: Any) -> EvalReport:
    return EvalReport(Target(folder / "m", folder / "m.more"), "state", scores=scores, edits=len(scores), **fields)


def score(id: str, holds: bool, question: str = "what ?", answer: str = "a") -> ProbeScore:
    return ProbeScore(Probe(id, "rel", Query((), question), "a"), {"gen_exact": float(holds)}, answer)


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
    report = made_up(Path("nowhere"), [score(id, False, question, answer)], base_answers={id: answer})
    usual = made_up(Path("nowhere"), [score("x", False)], base_answers={"x": "y"})
    assert Page(html(of_state(report))).shape() == Page(html(of_state(usual))).shape()
    (case,) = ElementTree.fromstring(junit_xml(of_state(report))).iter("testcase")
    assert case.find("failure").text.startswith(f"question: {plain(question)}\n".rstrip("\n"))
    (row,) = markdown(of_state(report)).splitlines()[-1:]
    assert len(re.split(r"(?<!\\)\|", row)) == 7
    assert not set(CODE.sub("", row)) - {"|", " "}


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
