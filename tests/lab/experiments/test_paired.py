"""`more compare --paired`: a comparison worked by hand, and runs that cannot be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from more_cli.evaluation.names import LOCALITY_METRICS
from more_lab.experiments.paired import compare, sign_test
from more_lab.render.comparison import difference_cells
from support.helpers import QUESTION, QUICK, Result, World, line, run


def result(path: Path, values: dict[str, dict[str, list[float | None]]], **changes: Any) -> Path:
    """Write a result of `eval --json` with these values per edit."""
    per_edit = [{"id": id, "probes": f"asked of {id}", "values": found} for id, found in values.items()]
    fields = {"schema": "more.eval/1", "source": "state", "protocol": "final", "baseline": "base"}
    told = {"base": {"config": "c"}, "recipe": {"eta": 1}}
    path.write_text(json.dumps(fields | {"per_edit": per_edit, "reproduce": told} | changes))
    return path


def paired(first: object, second: object, *options: object) -> Result:
    return run("compare", "--paired", first, second, *options)


# --- the numbers ---


@pytest.mark.parametrize(
    ("up", "down", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (3, 0, 0.25), (0, 6, 0.03125), (5, 1, 0.21875), (3, 3, 1.0), (9, 1, 22 / 1024)],
)
def test_the_sign_test_counts_coin_tosses(up: int, down: int, p: float) -> None:
    """5 up and 1 down: 7 of 64 outcomes are that uneven towards either side, so 14 of 64."""
    assert sign_test(up, down) == sign_test(down, up) == p


def test_the_sign_test_of_many_edits_is_still_exact() -> None:
    assert sign_test(0, 1000) == 2.0**-999
    assert sign_test(1050, 950) == pytest.approx(math.erfc(99 / math.sqrt(2000) / math.sqrt(2)), rel=1e-3)


def test_a_comparison_worked_by_hand(tmp_path: Path) -> None:
    """Four edits; the second run has e2 right where the first had not, and half of e1's rephrases more."""
    first = {
        "e1": {"rel.gen_exact": [1.0], "gen_text.gen_exact": [0.0, 1.0]},
        "e2": {"rel.gen_exact": [0.0], "gen_text.gen_exact": [0.0, 0.0]},
        "e3": {"rel.gen_exact": [1.0]},
        "e4": {"rel.gen_exact": [1.0]},
    }
    second = {
        "e4": {"rel.gen_exact": [1.0]},
        "e3": {"rel.gen_exact": [1.0]},
        "e2": {"rel.gen_exact": [1.0], "gen_text.gen_exact": [0.0, 0.0]},
        "e1": {"rel.gen_exact": [1.0], "gen_text.gen_exact": [1.0, 1.0]},
    }
    a, b = result(tmp_path / "a.json", first), result(tmp_path / "b.json", second, reproduce={"base": {"config": "c"}})
    found = paired(a, b, "--json").json
    assert (found["schema"], found["edits"], found["differ"]) == ("more.compare/1", 4, ["recipe"])
    rel, text = found["metrics"]["rel.gen_exact"], found["metrics"]["gen_text.gen_exact"]
    assert (rel["first"], rel["second"], rel["difference"]) == (0.75, 1.0, 0.25)
    assert (rel["up"], rel["down"], rel["same"], rel["n"], rel["p"]) == (1, 0, 3, 4, 1.0)
    assert (text["first"], text["second"], text["difference"], text["n"]) == (0.25, 0.5, 0.25, 2)
    # Resampling {1, 0, 0, 0} four times: no 1 in 32 % of samples, three or more in 5 %, all four in 0.4 %.
    assert (rel["low"], rel["high"]) == (0.0, 0.75)
    newer = paired(a, result(tmp_path / "newer.json", second, schema="more.eval/2"), "--json")
    assert newer.json["metrics"] == found["metrics"], "scores of a state have another schema since refused ones count"
    shown = paired(a, b).out
    assert "4 edits in both, protocol final, locality against base" in shown
    assert "the runs differ in: recipe" in shown


def test_differences_of_rounding_are_no_differences() -> None:
    values = [0.9, 0.8, 0.7, 1.0, 0.6, 0.5]
    same = compare(values, [value + 5e-5 for value in values])
    assert (same.up, same.down, same.same, same.p) == (0, 0, 6, 1.0)
    moved = compare(values, [value - 1e-3 for value in values])
    assert (moved.up, moved.down, moved.p) == (0, 6, 0.03125)
    assert (moved.low, moved.high) == (pytest.approx(-1e-3), pytest.approx(-1e-3))


def test_an_interval_of_few_edits_is_not_shown() -> None:
    assert difference_cells(compare([0.0] * 9, [1.0] * 9))[:2] == ("+1.000", "under 10 samples")
    assert difference_cells(compare([0.0] * 10, [1.0] * 10))[:2] == ("+1.000", "+1.000 to +1.000")


def test_what_is_not_finite_or_not_in_both_is_left_out_and_said(tmp_path: Path) -> None:
    a = result(tmp_path / "a.json", {"e1": {"rel.gen_exact": [1.0], "rel.target_nll": [None], "rel.old": [1.0]}})
    b = result(tmp_path / "b.json", {"e1": {"rel.gen_exact": [1.0], "rel.target_nll": [2.0]}})
    found = paired(a, b, "--json")
    assert found.json["metrics"].keys() == {"rel.gen_exact"}
    assert found.json["skipped"] == {
        "rel.target_nll": "not finite everywhere",
        "rel.old": "not measured on the same probes in both",
    }
    assert "note: rel.old is not compared: not measured on the same probes in both" in found.err


# --- what is refused ---

ONE = {"e1": {"rel.gen_exact": [1.0]}}
TWO = ONE | {"e2": {"rel.gen_exact": [1.0]}}


@pytest.mark.parametrize(
    ("first", "second", "changes", "said"),
    [
        (ONE, ONE, {"protocol": "online"}, "different protocols, `final` and `online`"),
        (ONE, ONE, {"baseline": "previous"}, "different baselines, `base` and `previous`"),
        (ONE, ONE, {"prefix": "gold"}, "different prefixes of locality, `own` and `gold`"),
        (ONE, ONE, {"reproduce": {"base": {"config": "d"}}}, "different bases"),
        (ONE, TWO, {}, "different edits (`state`, `state`): 1 only in"),
        (ONE, {"e3": ONE["e1"]}, {"source": "e-ic"}, "different edits (`state`, `e-ic`): 1 only in"),
        (
            ONE,
            ONE,
            {"per_edit": [{"id": "e1", "probes": "else", "values": {}}]},
            "different probes in 1 edit, such as `e1`",
        ),
        ({}, {}, {}, "contain no edits"),
    ],
)
def test_runs_that_measured_something_else_are_refused(
    tmp_path: Path, first: Any, second: Any, changes: dict[str, Any], said: str
) -> None:
    refused = paired(result(tmp_path / "a.json", first), result(tmp_path / "b.json", second, **changes))
    assert (refused.code, refused.out) == (4, "")
    assert said in refused.err
    assert refused.err.count("error: ") == refused.err.count("hint: ") == 1


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is not an output of `more eval --json`: invalid JSON"),
        (b"[1]", "is not an output of `more eval --json`"),
        (b"{}", "is not an output of `more eval --json`: `schema`: field required"),
        (b"\xff\xfe{\x00}\x00", "is not an output of `more eval --json`"),
        (b'{"schema": "more.eval/3"}', "has the schema `more.eval/3`, not `more.eval/1` or `more.eval/2`"),
        (b'{"schema": "more.edit/1"}', "has the schema `more.edit/1`"),
        (
            b'{"schema": "more.eval/1", "source": "state"}',
            "is not an output of `more eval --json`: `protocol`: field required",
        ),
        (b'{"schema": NaN}', "is not an output of `more eval --json`: `schema`"),
        (b"[" * 100_000, "is not an output of `more eval --json`"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, raw: bytes, said: str) -> None:
    good, bad = result(tmp_path / "a.json", ONE), tmp_path / "b.json"
    bad.write_bytes(raw)
    refused = paired(good, bad)
    assert (refused.code, refused.out) == (4, "")
    assert f"`{bad}` {said}" in refused.err
    assert "more eval MODEL --json" in refused.err


def test_an_edit_named_twice_and_a_value_that_is_no_number_are_refused(tmp_path: Path) -> None:
    good = result(tmp_path / "a.json", ONE)
    one = {"id": "e1", "probes": "", "values": {"rel.gen_exact": ["1"]}}
    assert "must be a number" in paired(good, result(tmp_path / "b.json", ONE, per_edit=[one])).err
    assert (
        "names an edit twice" in paired(good, result(tmp_path / "c.json", ONE, per_edit=[one | {"values": {}}] * 2)).err
    )


def test_it_takes_two_files_that_exist(tmp_path: Path) -> None:
    assert run("compare").code == 2
    assert run("compare", "--paired", tmp_path / "a.json").code == 2
    missing = paired(tmp_path / "a.json", tmp_path / "b.json")
    assert (missing.code, "file not found" in missing.err) == (4, True)


# --- from end to end ---


def test_two_states_of_one_base_are_compared_and_one_with_itself_is_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write([line(0, locality=[{"question": "what ?"}]), line(1)])
    world.write([{"question": QUESTION, "image": "img/blue.png"}], "probes.jsonl")
    for state, settings in (("a.more", QUICK), ("b.more", ("--set", "max_steps=4", "--set", "halvings=0"))):
        world.edit(*settings, "--state", tmp_path / state)
        for name, options in (("edits", ()), ("probes", ("--probes", tmp_path / "probes.jsonl"))):
            scored = run("eval", world.model, "--state", tmp_path / state, "--json", *options)
            (tmp_path / f"{state}.{name}.json").write_text(scored.out, encoding="utf-8")
    found = paired(tmp_path / "a.more.edits.json", tmp_path / "b.more.edits.json", "--json")
    assert found.code == 0, found.err
    assert found.json["metrics"]["rel.gen_exact"]["up"] >= 1
    assert {"ledger_head", "recipe"} <= set(found.json["differ"])
    itself = paired(tmp_path / "a.more.edits.json", tmp_path / "a.more.edits.json", "--json").json
    assert all(
        (row["difference"], row["low"], row["high"], row["p"]) == (0, 0, 0, 1) for row in itself["metrics"].values()
    )
    assert itself["differ"] == []
    probes = paired(tmp_path / "a.more.probes.json", tmp_path / "b.more.probes.json", "--json").json
    assert (probes["source"], probes["edits"]) == ("probes.jsonl", 1)
    assert probes["metrics"].keys() == {f"loc_image.{name}" for name in LOCALITY_METRICS}
    assert paired(tmp_path / "a.more.edits.json", tmp_path / "a.more.probes.json").code == 4
