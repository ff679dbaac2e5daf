"""The harm budget from outside: what edits, status, log and eval say about watched anchors, and edits that break it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from more_cli.editors.more import watch
from more_cli.editors.more.editor import MoreEditor
from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.model.batches import Query
from more_cli.ops.drift import Drift, DriftAfter
from more_cli.ops.evaluate import EvalReport
from more_cli.render.html import html
from more_cli.render.markdown import markdown
from more_cli.render.pages import of_state
from more_cli.store.target import Target
from support.forging import forge
from support.helpers import COLOURS, World, line, run
from support.pages import HOSTILE, Page

WATCHED = ("--set", "max_steps=20", "--set", "anchors.size=4", "--set", "anchors.watched=2")
WATCHED += ("--set", "anchors.prompts=[]")
ANCHORS = [
    {"question": question, "image": f"img/{colour}.png"}
    for question in ("what is it ?", "is it a dog ?")
    for colour in COLOURS[4:]
]
TEXT = [{"question": "who is it ?"}, {"question": "why ?"}]


def watching(root: Path, *settings: str) -> World:
    """A world whose state watches 5 of 10 anchors."""
    world = World(root)
    world.write([*ANCHORS, *TEXT], "anchors.jsonl")
    done = run("init", world.model, "--anchors", root / "anchors.jsonl", *WATCHED, *settings)
    assert done.code == 0, done.err
    return world


@pytest.fixture(scope="module", autouse=True)
def two_are_near() -> Iterator[None]:
    """An edit is followed by the scores of two watched anchors, not of eight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "NEAR", 2)
        yield


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four edits within a wide budget; what the first run printed is in `lines.jsonl`. Tests only read it."""
    world = watching(tmp_path_factory.mktemp("learnt"), "--set", "anchors.max_drift=9")
    world.edits(4)
    done = world.edit("--json-lines")
    assert done.code == 0, done.err
    (world.root / "lines.jsonl").write_text(done.out)
    return world


@pytest.fixture
def copy(learnt: World, tmp_path: Path) -> World:
    """The same to write to."""
    return learnt.copy(tmp_path / "copy")


def test_a_drift_of_no_watched_anchor_is_left_out(copy: World) -> None:
    forge(copy.folder / "ledger.jsonl", 4, drifts=[(9_999_999, 50.0)])
    for command in ("status", "eval"):
        done = run(command, copy.model)
        assert (done.code, "above" in done.out) == (0, False), done.err


def expected(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The curve that ledger lines give, all of them edits of different names."""
    seen, curve = dict[int, float](), []
    for number, entry in enumerate(entries, 1):
        seen |= dict(entry["drifts"])
        if entry["drifts"]:
            curve.append({"edits": number, "mean": pytest.approx(sum(seen.values()) / len(seen), abs=1e-6)})
            curve[-1]["largest"] = max(seen.values())
    return curve


def test_each_edit_says_how_far_it_moved_a_watched_anchor(learnt: World) -> None:
    entries = learnt.entries()
    farthest = [max(drift for _, drift in entry["drifts"]) for entry in entries]
    assert min(farthest) > 0
    *results, end = map(json.loads, (learnt.root / "lines.jsonl").read_text().splitlines())
    assert [result["drift"] for result in results] == farthest
    assert "drift" not in end
    again = learnt.edit()
    assert re.search(
        r"^drift of (\d of )?5 watched anchors: mean [\d.]+, largest [\d.]+ nats \(limit 9\)$", again.out, re.M
    )
    listed = run("log", learnt.model, "--json").json["lines"]
    assert [row["drift"] for row in listed] == farthest


def test_status_has_the_last_known_drift_of_every_watched_anchor(learnt: World) -> None:
    last = expected(learnt.entries())[-1]
    found = run("status", learnt.model, "--json").json
    seen = {at for entry in learnt.entries() for at, _ in entry["drifts"]}
    assert found["drift"] == {"watched": 5, "seen": len(seen), "above": 0, "max_drift": 9.0} | {
        "mean": last["mean"], "largest": last["largest"],
    }  # fmt: skip
    assert "harm budget (5 watched anchors, 9 nats)" in found["extensions"]
    shown = run("status", learnt.model).out
    assert f"largest {last['largest']:.2g} nats (limit 9)\n" in shown
    assert "above" not in shown


def test_status_needs_no_torch_to_know_them(learnt: World) -> None:
    code = "import sys; from more_cli.cli.app import main; code = main(sys.argv[1:]); "
    code += "sys.exit(code or any(name in sys.modules for name in ('torch', 'transformers')))"
    done = subprocess.run([sys.executable, "-c", code, "status", learnt.model], capture_output=True, text=True)
    assert (done.returncode, "watched anchors" in done.stdout) == (0, True), done.stderr


def test_the_log_has_a_column_where_there_is_room(learnt: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    head, *rows = run("log", learnt.model).out.splitlines()[:5]
    assert head.split()[-1] == "drift"
    drifts = [row["drift"] for row in run("log", learnt.model, "--json").json["lines"]]
    assert [row.split()[-1] for row in rows] == [f"{drift:.2g}" for drift in drifts]
    monkeypatch.setenv("COLUMNS", "80")
    assert "drift" not in run("log", learnt.model).out.splitlines()[0]


def test_the_log_names_the_anchor_that_one_edit_moved_most(learnt: World, copy: World) -> None:
    entry = learnt.entries()[1]
    place, drift = max(entry["drifts"], key=lambda row: row[1])
    question = [*ANCHORS, *TEXT][place]["question"]
    said = rf"^drift +2 watched anchors: largest {re.escape(f'{drift:.2g}')} nats"
    shown = run("log", "show", "e2", learnt.model)
    assert re.search(rf"{said}, `{re.escape(question)}`$", shown.out, re.M), shown.out
    edit = run("log", "show", "e2", learnt.model, "--json").json["edit"]
    assert (edit["drift"], edit["drifts"]) == (drift, entry["drifts"])
    copy.sidecar.unlink()
    assert re.search(f"{said}$", run("log", "show", "e2", copy.model).out, re.M), "a log needs no state"


def test_eval_shows_how_drift_went(learnt: World, tmp_path: Path) -> None:
    curve = expected(learnt.entries())
    pages = tmp_path / "r.html", tmp_path / "r.md"
    done = run("eval", learnt.model, "--report", pages[0], "--report", pages[1], "--json")
    assert done.code == 0, done.err
    told = run("status", learnt.model, "--json").json["drift"]
    assert done.json["drift"] == told | {"curve": curve}
    page, text = (path.read_text() for path in pages)
    assert "Drift of watched anchors" in page
    assert 'class="limit"' in page
    assert f"| `4` | {curve[-1]['mean'].expected:.4f} | {curve[-1]['largest']:.4f} |" in text
    summary = re.search(r"^(?:\d of )?5 watched anchors: mean .* \(limit 9\)\.$", text, re.M)
    assert summary, text
    assert f"drift of {summary[0][:-1]}\n" in run("eval", learnt.model).out


def test_replay_gives_the_same_bytes_and_a_revert_takes_its_drift_along(copy: World) -> None:
    before = copy.sidecar.read_bytes()
    assert run("verify", copy.model, "--deep").code == 0
    copy.sidecar.unlink()
    run("init", copy.model, "--anchors", copy.root / "anchors.jsonl", *WATCHED, "--set", "anchors.max_drift=9")
    assert copy.edit().code == 0
    assert copy.sidecar.read_bytes() == before
    first = expected(copy.entries()[:2])
    assert run("revert", copy.model, "--last", "2").code == 0
    found = run("status", copy.model, "--json").json["drift"]
    assert (found["mean"], found["largest"]) == (first[-1]["mean"], first[-1]["largest"])
    assert run("eval", copy.model, "--json").json["drift"]["curve"] == first
    assert run("revert", copy.model, "--to", "0").code == 0
    assert run("status", copy.model, "--json").json["drift"]["largest"] is None
    assert "5 watched anchors, none looked at yet (limit 9 nats)" in run("status", copy.model).out


def test_more_anchors_and_a_consolidation_count_too(copy: World) -> None:
    copy.write([{"question": f"what is it , {number} ?"} for number in range(4)], "more.jsonl")
    assert run("anchors", "add", copy.model, copy.root / "more.jsonl").code == 0
    found = run("status", copy.model, "--json").json["drift"]
    assert (found["watched"], found["seen"] < 7) == (7, True)
    done = copy.edit("--consolidate", "all", "--json")
    drifts = [drift for _, drift in copy.entries()[-1]["drifts"]]
    assert len(drifts) == 7, "it looks at all of them"
    assert done.json["consolidation"]["drift"] == max(drifts)
    found = run("eval", copy.model, "--json").json["drift"]
    assert (found["seen"], found["largest"], found["mean"]) == (
        7,
        max(drifts),
        pytest.approx(sum(drifts) / 7, abs=1e-6),
    )
    assert [point["edits"] for point in found["curve"]] == [1, 2, 3, 4], "no edit was added"


def test_an_edit_that_breaks_the_budget_is_refused_until_it_is_wide_enough(tmp_path: Path) -> None:
    world = watching(tmp_path, "--set", "anchors.max_drift=1e-6")
    world.write([line(0)])
    done = world.edit("--json")
    assert (done.code, done.json["counts"]) == (3, {"refused": 1}), done.err
    (refused,) = done.json["edits"]
    assert re.search(r"it would change the answer to `[^`]+` ", refused["reason"]), refused["reason"]
    assert refused["drift"] is None
    shown = world.edit()
    assert "it would change the answer to" in " ".join(run("log", "show", "e1", world.model).out.split())
    assert "drift of 5 watched anchors, none looked at yet (limit 1e-06 nats)" in shown.out
    again = run("edit", world.model, "--retry", "--set", "anchors.max_drift=100", "--json")
    assert (again.code, again.json["edits"][0]["status"]) == (0, "learnt"), again.err
    found = run("status", world.model, "--json").json["drift"]
    assert (found["above"], found["max_drift"]) == (2, 1e-6), "the recipe's limit counts, not that of one try"
    text = run("status", world.model).out
    assert re.search(r"\(limit 1e-06\), 2 above 1e-06: `[^`]+`,\s+`[^`]+`\n", text), text
    assert run("verify", world.model, "--deep").code == 0


def test_nothing_is_said_where_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    world = World(tmp_path)
    world.write([*ANCHORS, *TEXT], "anchors.jsonl")
    run("init", world.model, "--anchors", world.root / "anchors.jsonl", *WATCHED, "--set", "anchors.watched=0")
    world.edits(1)
    page = tmp_path / "r.md"
    shown = [world.edit(), run("status", world.model), run("log", world.model), run("log", "show", "e1", world.model)]
    shown.append(run("eval", world.model, "--report", page))
    assert not any("drift" in result.out for result in shown)
    assert "rift" not in page.read_text()
    assert run("eval", world.model, "--json").json["drift"] is None
    assert run("status", world.model, "--json").json["drift"] is None
    assert run("log", world.model, "--json").json["lines"][0]["drift"] is None


def test_without_anchors_the_note_about_them_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    run("init", world.model, *WATCHED)
    found = run("status", world.model)
    assert "note: no anchors" in found.err
    assert "harm budget" not in found.out
    assert run("status", world.model, "--json").json["drift"] is None


@pytest.mark.parametrize("points", [1, 3, 120])
def test_a_report_draws_any_course_and_quotes_questions(tmp_path: Path, points: int) -> None:
    """Questions of anchors are users' text: in a page they are never markup."""
    curve = [DriftAfter(number, 0.01 * number, 0.02 * number) for number in range(1, points + 1)]
    seen = {number: 0.02 * number for number in range(25)}
    drift = Drift(dict.fromkeys(range(30), HOSTILE), seen, curve, 0.019)
    score = ProbeScore(Probe("e1", "rel", Query((), "what ?"), "a"), {"gen_exact": 1.0}, "a")
    report = EvalReport(Target(tmp_path / "m", tmp_path / "m.more"), "state", scores=[score], drift=drift)
    page = Page(html(of_state(report)))
    lines = [part for part in page.all("path") if (part["class"] or "").startswith("line")]
    assert [part["d"].count("L") for part in lines] == [points - 1] * 2
    heights = [float(number) for part in lines for number in re.findall(r" ([\d.]+)", part["d"])]
    assert min(heights) >= 0
    assert max(heights) <= 160
    assert len(set(heights)) > 1, "the axis fits the values"
    assert not page.all("script")
    text = markdown(of_state(report))
    assert text.count(" nats\n- ") == 20
    assert "\n- and 4 more\n" in text
    assert text.count(", 0.4800 nats") == 1, "the farthest is named"
    assert "<script>" not in re.sub(r"`+[^\n]*?`+", "", text)
    assert ", 24 above 0.019: " in drift.sentence
    assert drift.sentence.endswith(" and 22 more")


def test_nearness_of_watched_anchors_is_computed_once(copy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    directions = MoreEditor._directions

    def counted(editor: MoreEditor, anchors: Any) -> Any:
        computed.append(len(anchors))
        return directions(editor, anchors)

    monkeypatch.setattr(MoreEditor, "_directions", counted)
    copy.edits(5)
    copy.edit()
    assert computed == []
    for path in (copy.folder / "cache").iterdir():
        path.write_bytes(b"damaged")
    copy.edits(6)
    copy.edit()
    assert computed == [5]
    assert len(copy.entries()) == 6
