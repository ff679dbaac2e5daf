"""A refused edit of a run on a suite: it was not written, so what the model says by itself is no success of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from more_cli.evaluation.names import LOCALITY_METRICS, TARGET_METRICS
from more_cli.runner.plan import RunOptions
from more_cli.runner.protocols import SINGLE, Scored
from more_cli.runner.report import SuiteReport
from support.editing import an_edit


def journal_line(t: int, status: str, scored: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    outcome = {"status": {"L": "learnt", "R": "refused"}[status], "cost": 1.0, "writes": 1}
    scores = {str(i): values for i, values in scored.items()}
    return {"t": t, "outcome": outcome, "scores": scores, "catch_up": 0.0, "base": "", "seconds": 0.0}


def scores() -> list[dict[str, Any]]:
    kinds = ["rel", "gen_text", "gen_text", "gen_image", "portability", "portability", "loc_text", "loc_image"]
    names = {kind: LOCALITY_METRICS if kind.startswith("loc") else TARGET_METRICS for kind in kinds}
    rows = [{"kind": kind, "values": dict.fromkeys(names[kind], 1.0)} for kind in kinds]
    return [row | {"hop": None, "answer": "7", "base": "7"} for row in rows]


def reported(tmp_path: Path, stream: str, single: str) -> SuiteReport:
    """Return the report of a run that reached every target, with these statuses."""
    edits = [an_edit(tmp_path) for _ in stream]
    lines = [journal_line(1, stream[0], {1: scores()}), journal_line(2, stream[1], {1: scores(), 2: scores()})]
    lines += [journal_line(SINGLE, status, {i: scores()}) for i, status in enumerate(single, 1)]
    for number, line in enumerate(lines):
        line["id"] = f"e{number % 2}"
    suite: Any = SimpleNamespace(name="x", pools={"evaluation": edits})
    options = RunOptions(scored=Scored(("final", "online", "single"), ()))
    return SuiteReport(suite, tmp_path, options, edits, lines, {})


def test_its_targets_count_as_not_reached_in_every_protocol(tmp_path: Path) -> None:
    found = reported(tmp_path, "RL", "LR")
    for name in (
        "rel.tf_exact",
        "rel.gen_exact",
        "gen_text.tf_exact",
        "gen_image.gen_contains",
        "portability.gen_exact",
    ):
        values = [found.estimates[readout][name].value for readout in ("final@2", "online@2", "single@2")]
        assert values == [0.5, 0.5, 0.5], name
    assert [edit.values()["rel.tf_exact"] for edit in found.per_edit] == [[0.0], [1.0]]
    assert found.first_failing == found.edits[0].id
    assert found.so_far == [0.0, 0.5]


def test_its_locality_and_loss_stay_as_measured(tmp_path: Path) -> None:
    found = reported(tmp_path, "RR", "RR").estimates["final@2"]
    for name in ("loc_text.loc_expkl_answer", "loc_image.loc_gen_same", "rel.target_nll", "rel.gen_stops"):
        assert found[name].value == 1.0, name
