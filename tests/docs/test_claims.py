"""The page of claims: its counts are those of its rows, and what it says about the paper's own numbers is so."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

import pytest

from more_lab.experiments.published import Printed, table
from support.paths import ROOT

PAGE = (ROOT / "docs" / "research" / "claims.md").read_text(encoding="utf-8")
VERDICTS = "confirmed", "refuted", "undecided", "not measured"
FIVE = "Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc"
CELLS = list(product(("BLIP2-OPT", "LLaVA-v1.5"), ("e-vqa", "e-ic")))


def claims() -> list[list[str]]:
    """Return the cells of every row that has a number."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_rows_are_numbered_and_say_claim_place_print_verdict_and_command() -> None:
    rows = claims()
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    for number, claim, place, printed, measured, verdict, command in rows:
        assert all((claim, place, printed, command)), number
        assert verdict.startswith(VERDICTS), number
        assert measured or verdict == "not measured", number


def test_the_counts_are_those_of_the_rows() -> None:
    counts = Counter(next(word for word in VERDICTS if row[5].startswith(word)) for row in claims())
    said = ", ".join(f"{counts[word]} {word}" for word in VERDICTS)
    assert f"{sum(counts.values())} claims of the M-ORE paper: **{said}.**" in PAGE


def after_100(editor: str, backbone: str, suite: str) -> Printed:
    rows = [row for row in table("table-1") if (row.name, row.backbone, row.suite) == (editor, backbone, suite)]
    return next(row for row in rows if row.edits == 100)


def lead(column: str) -> list[float]:
    """Return by how much M-ORE is printed ahead of LiveEdit after 100 edits, in the four cells of the main table."""
    pairs = [(after_100("M-ORE", *cell), after_100("LiveEdit", *cell)) for cell in CELLS]
    return [round(ours.values[column] - other.values[column], 2) for ours, other in pairs]


def test_printed_means_are_those_of_the_columns() -> None:
    rows = table("table-1")
    assert len(rows) == 96
    for row in rows:
        mean = sum(row.values[column] for column in FIVE) / 5
        assert row.values["Avg"] == pytest.approx(mean, abs=0.0101), row


def test_liveedit_is_printed_ahead_in_locality() -> None:
    assert lead("Avg") == [0.54, 1.89, 1.79, 7.07]
    behind = {column: [-gap for gap in lead(column) if gap < 0] for column in FIVE}
    assert {column: len(gaps) for column, gaps in behind.items() if gaps} == {"M-Gen": 1, "T-Loc": 4, "M-Loc": 3}
    assert (min(behind["T-Loc"]), max(behind["T-Loc"])) == (1.26, 7.54)
    assert (min(behind["M-Loc"]), max(behind["M-Loc"])) == (3.37, 7.05)


def test_printed_scores_of_one_edit_are_shares_of_17_tokens() -> None:
    one = {value for row in [*table("table-1"), *table("basis")] if row.edits == 1 for value in row.values.values()}
    for tokens, value in ((16, 94.12), (13, 76.47), (9, 52.94), (8, 47.06), (1, 5.88)):
        assert value in one
        assert value == pytest.approx(100 * tokens / 17, abs=0.005)


def test_printed_deviations_of_the_seeds_follow_two_rules() -> None:
    others, all_five = {}, {}
    for suite in ("e-vqa", "e-ic"):
        average = {row.name: row.values["Avg"] for row in table("seeds") if row.suite == suite}
        total = sum(abs(value - average["42"]) for value in average.values())
        others[suite], all_five[suite] = total / 4, total / 5
    assert others == {"e-vqa": pytest.approx(0.065), "e-ic": pytest.approx(0.1625)}
    assert all_five == {"e-vqa": pytest.approx(0.052), "e-ic": pytest.approx(0.13)}
