"""The rows of RETENTION.md and EDITORS.md."""

import sys
from pathlib import Path

import numpy as np
import pytest

from support.editing import an_edit


@pytest.fixture
def retention(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft")
    import retention

    yield retention
    for name in ("retention", "offline", "streams"):
        sys.modules.pop(name, None)


def test_a_row_is_a_mean_over_runs_with_the_interval_over_edits(retention) -> None:
    values = {label: [1.0, 0.0] for label in retention.METRICS}
    runs = [
        {"values": values, "cost": [3.0, 5.0], "consolidation": None, "edits": 2},
        {"values": values | {"Rel": [1.0, 1.0]}, "cost": [3.0, 5.0], "consolidation": 2.0, "edits": 2},
    ]
    name, rel, *_, five, cost, count = retention.line("x", runs).strip("| ").split(" | ")
    assert (name, five, cost, count) == ("x", "55.0", "4.5", "2 x 2")
    assert rel.startswith("75.0 (")
    assert rel.endswith("[50-100]")


def test_growth_is_the_slope_times_the_length(retention) -> None:
    change, low, high = retention.growth(10 + 0.01 * np.arange(200.0))
    assert change == pytest.approx(2.0)
    assert low == pytest.approx(2.0)
    assert high == pytest.approx(2.0)


@pytest.fixture
def editors(monkeypatch: pytest.MonkeyPatch):
    import editors

    yield editors
    sys.modules.pop("editors")


def test_a_model_trained_beside_the_editors_is_not_taken_for_the_base(retention, runtime, tmp_path: Path) -> None:
    import offline

    edit = an_edit(tmp_path)
    scores, _ = offline.train(runtime, [edit], epochs=3, anchors=[], rate=0.01)
    moved = [score.values["loc_expkl_answer"] for score in scores if score.probe.is_locality]
    assert len(moved) == 2
    assert max(moved) < 1.0


def test_online_uses_the_checkpoints_that_a_run_has(editors) -> None:
    """`lora-all` has checkpoints after 1, .., 10, 20, .. edits: ten are used for a hundred edits, ten for ten."""
    scores = {
        t: [{"kind": "rel", "values": {"tf_exact": float(t <= 50)}}] for t in (*range(1, 11), *range(20, 101, 10))
    }
    matrix = [{"after": t, "edit": t, "scores": found} for t, found in scores.items()]
    matrix.append({"after": 100, "edit": 1, "scores": scores[100]})
    run = {"protocols": {}, "matrix": matrix}
    assert [editors.online(run, mark, "rel.tf_exact")["value"] for mark in (100, 10, 1)] == [0.5, 1.0, 1.0]
    assert [editors.online(run, mark, "rel.tf_exact")["n"] for mark in (100, 10, 1)] == [10, 10, 1]
    measured = {"protocols": {"online@10": {"rel.tf_exact": {"value": 0.3}}}, "matrix": matrix}
    assert editors.online(measured, 10, "rel.tf_exact") == {"value": 0.3}
