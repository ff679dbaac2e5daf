"""The page of claims: every verdict follows from the intervals in its cell, every estimate from the results, and what
the page says about the paper's own numbers is so."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from generator.claims import CALIBRATED, COLUMNS, judged
from more_cli.evaluation.metrics import RESAMPLES, SEED
from more_lab.experiments.paired import compare
from more_lab.experiments.published import Printed, table
from more_lab.panel.table import FIVE, MEAN, RESULTS, per_edit, runs_of
from support.paths import ROOT

PAGE = (ROOT / "docs" / "research" / "claims.md").read_text(encoding="utf-8")
DATA = tomllib.loads((RESULTS / "claims.toml").read_text(encoding="utf-8"))
ESTIMATES = [estimate for claim in DATA["claim"] for estimate in claim.get("estimates", ())]
VERDICTS = "holds", "does not hold", "not decided"
SAID = re.compile(rf"\*\*({'|'.join(VERDICTS)}|not measured)\*\*")
INTERVAL = re.compile(r"[-+]?[\d.]+ \(([-+]?[\d.]+) to ([-+]?[\d.]+)\)(?:, claimed (>|<|within) (-?[\d.]+))?")
CELLS = list(product(("BLIP2-OPT", "LLaVA-v1.5"), ("e-vqa", "e-ic")))
LONGEST = 300
"""Characters of a cell."""


def rows() -> list[dict[str, str]]:
    """Return the cells of every row that has a number, by column."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    return [dict(zip(COLUMNS, split(line), strict=True)) for line in lines]


# --- verdicts


def supported(cell: str) -> str:
    """Return the verdict that the intervals of a cell support: that of all of them, if they agree."""
    head, _, body = cell.partition(": ")
    common = re.search(r"claimed (>|<|within) (-?[\d.]+)(?:, margin ([\d.]+))?", head)
    found = set()
    for low, high, side, bound in INTERVAL.findall(body):
        if common and not side:
            side, bound = common.groups()[:2]
        if side:
            margin = float((common and common[3]) or -1)
            found.add(one_says(float(low), float(high), side, float(bound), margin))
    return found.pop() if len(found) == 1 else "not decided"


def one_says(low: float, high: float, side: str, bound: float, margin: float) -> str:
    """Return what one interval supports; written apart from the page's own rule, on purpose."""
    if side == "<":
        low, high, bound, side = -high, -low, -bound, ">"
    if side == ">":
        small = low >= bound - margin and high <= bound + margin
        return "holds" if low > bound else "does not hold" if high <= bound or small else "not decided"
    return "holds" if max(-low, high) <= bound else "does not hold" if max(low, -high) > bound else "not decided"


def test_every_verdict_of_a_small_world_follows_from_the_intervals_in_its_cell() -> None:
    said = {row[""]: (SAID.match(row["in small worlds"]), row["in small worlds"]) for row in rows()}
    assert sum(found is not None for found, _ in said.values()) > 40
    assert {number: cell for number, (found, cell) in said.items() if not found and cell != "–"} == {}
    given = {number: (found[1], cell) for number, (found, cell) in said.items() if found}
    wrong = {number: cell for number, (word, cell) in given.items() if word not in (supported(cell), "not measured")}
    assert wrong == {}


def test_what_was_not_measured_has_a_reason_and_no_number() -> None:
    cells = {row[""]: row["in small worlds"] for row in rows() if row["in small worlds"].startswith("**not measured**")}
    claims = {str(number): claim for number, claim in enumerate(DATA["claim"], 1) if "unmeasured" in claim}
    assert cells == {number: f"**not measured**: {claim['unmeasured']}" for number, claim in claims.items()}
    assert [number for number, claim in claims.items() if {"estimates", "small"} & set(claim)] == []
    # Without an interval, a cell that was measured has a number at least, or says that the interval is gone.
    others = [claim["small"] for claim in DATA["claim"] if "small" in claim and "estimates" not in claim]
    assert [small for small in others if not re.search(r"\d|no interval", small)] == []


@pytest.mark.parametrize(
    ("cell", "verdict"),
    [
        ("**x**, claimed > 0: mean +2.0 (+0.1 to +4.0); other +3.0 (+1.0 to +5.0)", "holds"),
        ("**x**, claimed > 0: mean -2.0 (-4.0 to -0.1)", "does not hold"),
        ("**x**, claimed > 0: mean +2.0 (-0.1 to +4.0)", "not decided"),
        ("**x**, claimed > 0: mean +2.0 (+0.1 to +4.0); other -3.0 (-5.0 to -1.0)", "not decided"),
        ("**x**, claimed < 0, margin 1: mean +0.1 (-0.6 to +0.7)", "does not hold"),
        ("**x**, claimed < 0, margin 0.5: mean +0.1 (-0.6 to +0.7)", "not decided"),
        ("**x**, claimed within 2: mean +1.0 (-0.5 to +1.9)", "holds"),
        ("**x**, claimed within 2: mean +4.0 (+2.1 to +6.0)", "does not hold"),
        ("**x**: Rel 95.0 (76.4 to 99.1), claimed > 50; Rel 0.0 (0.0 to 11.4), claimed < 50", "holds"),
        ("**x**: no interval was kept", "not decided"),
    ],
)
def test_intervals_support_a_verdict_only_where_all_lie_on_one_side(cell: str, verdict: str) -> None:
    assert supported(cell) == verdict


def test_what_the_paper_alone_says_starts_with_a_verdict_and_no_model_is_judged() -> None:
    for row in rows():
        assert SAID.match(row["arithmetic or algebra"]) or row["arithmetic or algebra"] == "–", row
        named = row["on the named model"]
        assert named.startswith("untested (`") or "named" in DATA["claim"][int(row[""]) - 1] or named == "–", row
        measured = row["in small worlds"] != "–"
        assert not measured or named.startswith("untested"), row
        decided = row["arithmetic or algebra"].startswith(("**holds", "**does not hold"))
        assert measured or decided or not named.startswith("untested"), row


def test_the_page_is_short_and_no_place_counts_verdicts() -> None:
    assert [int(row[""]) for row in rows()] == list(range(1, len(rows()) + 1))
    assert len(PAGE.splitlines()) <= 150
    assert [row[""] for row in rows() if max(map(len, row.values())) > LONGEST] == []
    counted = re.compile(r"\d+ (?:are |were )?(?:confirmed|refuted)|\b(?:confirmed|refuted)\b", re.IGNORECASE)
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *RESULTS.rglob("*.md")]
    assert [page.name for page in pages if counted.search(page.read_text(encoding="utf-8"))] == []


# --- estimates


def run(name: str, suite: str, editor: str) -> dict[str, Any]:
    (found,) = [one for one in runs_of(name) if (one["suite"], one["editor"]) == (suite, editor)]
    return found


def by_edit(values: Mapping[str, Sequence[float]], metric: str) -> list[float]:
    if metric != MEAN:
        return list(values[metric])
    return [fmean(column) for column in zip(*(values[one] for one in FIVE), strict=True)]


def pairs(name: str, suite: str, first: str, second: str, metric: str, protocol: str) -> list[float]:
    key = "per_edit" if protocol == "final" else "online_per_edit"
    found = compare(*(by_edit(run(name, suite, editor)[key], metric) for editor in (first, second)))
    return [100 * found.difference, 100 * found.low, 100 * found.high]


def kept(name: str, suite: str, first: str, second: str, metric: str) -> list[float]:
    """Return how much more the second keeps from right after each edit to after all."""
    both = []
    for editor in (first, second):
        one = run(name, suite, editor)
        both.append([b - a for a, b in zip(one["online_per_edit"][metric], one["per_edit"][metric], strict=True)])
    found = compare(*both)
    return [100 * found.difference, 100 * found.low, 100 * found.high]


def level(name: str, suite: str, editor: str, readout: str, metric: str) -> list[float]:
    return [100 * number for number in run(name, suite, editor)["readouts"][readout][metric][:3]]


def apart(first: str, second: str, suite: str, metric: str) -> list[float]:
    """Return the difference of two worlds, whose edits are not the same, by the paper's own setting on three bases."""
    draws, means, samples = np.random.default_rng(SEED), [], []
    for world in (first, second):
        mine = [
            one | {"ids": list(range(len(one["values"]["Rel"])))}
            for one in runs_of("ablations.jsonl")
            if (one["sweep"], one["world"], one["suite"], one["change"]) == ("rank", world, suite, "rank=32")
        ]
        values = np.asarray(list(per_edit(mine, metric).values()))
        means.append(values.mean())
        samples.append(values[draws.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1))
    low, high = np.percentile(samples[1] - samples[0], [2.5, 97.5])
    return [100 * (means[1] - means[0]), 100 * low, 100 * high]


def seed(sweep: str, suite: str, number: int, metric: str) -> list[float]:
    """Return a seed's difference from 42; forty were compared: two suites, four seeds, five metrics."""
    found = [one for one in runs_of("ablations.jsonl") if (one["sweep"], one["suite"]) == (sweep, suite)]
    first, second = (
        next(one["values"][metric] for one in found if one["change"] == f"seed={each}") for each in (42, number)
    )
    gaps, draws = np.subtract(second, first), np.random.default_rng(SEED)
    samples = [gaps[draws.integers(0, len(gaps), (10_000, len(gaps)))].mean(axis=1) for _ in range(10)]
    low, high = np.percentile(np.concatenate(samples), [2.5 / 40, 100 - 2.5 / 40])
    return [100 * gaps.mean(), 100 * low, 100 * high]


def cell(page: str, section: str, row: str, column: str) -> list[float]:
    text = (RESULTS / page).read_text(encoding="utf-8")
    lines = text.partition(f"\n## {section}\n")[2].split("\n## ")[0] if section else text
    table_of = [split(line) for line in lines.splitlines() if line.startswith("|")]
    above = next(cells for cells in table_of if column in cells)
    (found,) = [cells for cells in table_of if cells[: row.count(" | ") + 1] == row.split(" | ")]
    return [float(number) for number in re.findall(r"[-+]?\d+\.\d+", found[above.index(column)])]


def split(line: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]]


READERS: dict[str, Callable[..., list[float]]] = {
    "pairs": pairs,
    "kept": kept,
    "level": level,
    "apart": apart,
    "seed": seed,
    "cell": cell,
}


@pytest.mark.parametrize("estimate", [one for one in ESTIMATES if "from" in one], ids=lambda one: one["what"])
def test_every_estimate_is_that_of_the_results(estimate: Mapping[str, Any]) -> None:
    reader, *where = estimate["from"]
    # A bootstrap's ends depend in their last digit on how the draws are made.
    assert READERS[reader](*where) == pytest.approx(estimate["value"], abs=0.06)


@pytest.mark.parametrize("estimate", ESTIMATES, ids=lambda one: one["what"])
def test_every_estimate_says_how_it_was_measured(estimate: Mapping[str, Any]) -> None:
    known = DATA["defaults"] | estimate
    assert {key for key in ("n", "protocol", "suite", "baseline", "model") if not known.get(key)} == set()
    assert estimate["value"] == [estimate["value"][0], *sorted(estimate["value"][1:])]
    assert ("calibrated" in estimate["what"]) == (estimate.get("settings") == CALIBRATED)


def test_most_estimates_are_compared_with_the_results() -> None:
    assert sum("from" in one for one in ESTIMATES) > 2 / 3 * len(ESTIMATES)
    assert {judged(one) for one in ESTIMATES} == set(VERDICTS)


# --- what is printed


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
