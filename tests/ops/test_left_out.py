"""Locality probes that are anchors too: no error anywhere, but no score counts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from more_cli.evaluation.probes import run_probes
from support.helpers import QUESTION, Result, World, line, run

LOOP = ("--set", "max_steps=3", "--set", "rehearsal.size=0", "--set", "anchors.prompts=[]")
ANCHORS = [{"question": "is it a dog ?"}, {"image": "img/orange.png", "question": QUESTION, "answer": "o"}]
SAME = ({"question": "Is it a  DOG ?"}, {"image": "img/orange.png", "question": QUESTION.upper()})
"""The anchors, in other spellings."""
FREE = ({"question": "who is it ?"}, {"image": "img/black.png", "question": QUESTION})


def edits(*further: dict[str, Any]) -> list[dict[str, Any]]:
    return [line(0, locality=[*further[:1], FREE[0]]), line(1, locality=[*further[1:], FREE[1]]), line(2), line(3)]


def made(root: Path, lines: list[dict[str, Any]]) -> World:
    world = World(root, text_layers=2)
    anchors = world.write(ANCHORS, "anchors.jsonl")
    assert run("init", world.model, "--anchors", anchors, *LOOP).code == 0
    world.write(lines)
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A state whose edits have four locality probes, two of them anchors, and one edit that has such a probe alone."""
    lines = edits(*SAME)
    lines[3]["locality"] = [SAME[0]]
    world = made(tmp_path_factory.mktemp("left-out") / "world", lines)
    world.applied = world.edit("--json")  # type: ignore[attr-defined]
    return world


def evaluated(world: World, *options: object) -> dict[str, Any]:
    result = run("eval", world.model, "--json", *options)
    assert result.code == 0, result.err
    return result.json


def test_such_edits_are_applied_with_a_note(world: World) -> None:
    applied: Result = world.applied  # type: ignore[attr-defined]
    note = "3 of 5 locality probes are anchors too, which `more eval` leaves out"
    assert applied.json["applied"] == 4
    assert note in applied.err
    assert note in applied.json["notes"]
    assert note in world.edit("--dry-run").err
    stream = (world.root / "edits.jsonl").read_bytes().splitlines()[0]
    piped = world.edit("--image-root", world.root, "--json", edits="-", stdin=stream)
    assert "1 of 2 locality probes is an anchor too, which `more eval` leaves out" in piped.json["notes"]


def test_they_are_left_out_of_the_scores_and_counted(world: World) -> None:
    scored = evaluated(world)
    assert (scored["left_out"], scored["edits"]) == (3, 4)
    assert [scored["metrics"][f"{kind}.loc_gen_same"]["n"] for kind in ("loc_text", "loc_image")] == [1, 1]
    kinds = [[answer["kind"] for answer in edit["answers"]] for edit in scored["per_edit"]]
    assert kinds == [["rel", "loc_text"], ["rel", "loc_image"], ["rel"], ["rel"]]


def test_one_line_says_so_on_the_terminal_and_in_reports(world: World) -> None:
    reports = [world.root / "report.md", world.root / "report.html"]
    shown = run("eval", world.model, "--report", reports[0], "--report", reports[1])
    assert shown.code == 0, shown.err
    said = "3 of 5 locality probes are anchors too and were left out"
    assert shown.out.splitlines()[2] == said
    assert all(report.read_text().count(said) == 1 for report in reports)


def test_the_other_probes_keep_their_scores(world: World, tmp_path: Path) -> None:
    """As if the file had never had the others."""
    clean = made(tmp_path / "clean", edits())
    clean.edit()
    scores, without = evaluated(world), evaluated(clean)
    assert without["left_out"] == 0
    assert "left out" not in run("eval", clean.model).out
    assert [edit["values"] for edit in scores["per_edit"]] == [edit["values"] for edit in without["per_edit"]]
    assert scores["metrics"] == without["metrics"]


def test_questions_of_a_file_are_left_out_with_and_without_an_answer(world: World) -> None:
    asked = [SAME[0], {**SAME[1], "answer": "w"}, {"question": "who is it ?"}, {"question": "why ?", "answer": "w"}]
    probes = world.write(asked, "probes.jsonl")
    scored = evaluated(world, "--probes", probes)
    assert scored["left_out"] == 2
    assert [edit["question"] for edit in scored["per_edit"]] == ["who is it ?", "why ?"]
    shown = run("eval", world.model, "--probes", probes).out
    assert "2 of 4 questions are anchors too and were left out" in shown


def test_a_file_of_anchors_alone_scores_nothing_and_passes_no_gate(world: World) -> None:
    probes = world.write(SAME[:1], "probes.jsonl")
    shown = run("eval", world.model, "--probes", probes)
    assert shown.code == 0, shown.err
    assert shown.out.startswith("nothing to score\n1 of 1 question is an anchor too and was left out\n")
    assert evaluated(world, "--probes", probes)["metrics"] == {}
    assert run("eval", world.model, "--probes", probes, "--gate", "loc_text.loc_gen_same>=0").code == 6


def test_anchors_that_were_added_later_count(tmp_path: Path) -> None:
    """Also in a state that a crash left behind its ledger."""
    world = made(tmp_path / "world", edits())
    world.edit()
    before = world.sidecar.read_bytes()
    added = run("anchors", "add", world.model, world.write(FREE[:1], "further.jsonl"))
    assert added.code == 0, added.err
    world.sidecar.write_bytes(before)
    assert evaluated(world)["left_out"] == 1


def test_init_calibrates_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = World(tmp_path / "world", text_layers=2), set[str]()

    def watched(runtime: Any, editor: Any, probes: Any, **options: Any) -> Any:
        asked.update(probe.query.question for probe in probes)
        return run_probes(runtime, editor, probes, **options)

    monkeypatch.setattr("more_cli.ops.calibrate.run_probes", watched)
    monkeypatch.setattr("more_cli.ops.calibrate.CANDIDATES", {})
    anchors = "--anchors", world.write(ANCHORS, "anchors.jsonl")
    done = run("init", world.model, *anchors, "--calibrate", world.write(edits(*SAME)), *LOOP)
    assert done.code == 0, done.err
    assert asked == {QUESTION, "who is it ?"}
    assert "note: 2 of 4 locality probes are anchors too and were left out" in done.err
    nothing = world.write([line(0, locality=[SAME[0]])])
    refused = run("init", world.model, *anchors, "--calibrate", nothing, "--state", tmp_path / "other.more")
    assert refused.code == 4
    assert "a probe that is an anchor too does not count" in refused.err
