"""`more log`: what was edited when, and its current status, without a model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from more_cli.files import sha256_bytes
from more_cli.store.ledger import Ledger
from more_cli.store.status import Status
from support.helpers import Result, World, on_terminal, run, tree

IMAGE = sha256_bytes(b"image")


def write(world: World, *lines: dict[str, Any]) -> Ledger:
    """Append lines to the world's ledger; `subject` and `content` are words."""
    world.sidecar.touch()
    ledger = Ledger(world.folder)
    for number, given in enumerate(lines, 1):
        fields = {"id": f"e{number}", "status": Status.LEARNT, "question": "Q?", "target": "T"} | given
        words = {name: sha256_bytes(str(fields.get(name, fields["id"])).encode()) for name in ("subject", "content")}
        ledger.append(fields | words)
    ledger.close()
    return ledger


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world whose model and state are never read."""
    world = World.at(tmp_path)
    write(
        world,
        {"id": "a-1", "subject": "tram", "time": "2026-05-01T08:00:00.000+00:00", "greedy_after": "T"},
        {"id": "a-2", "status": Status.REFUSED, "reason": "a write is not finite", "time": "2026-05-01T23:59:59+00:00"},
        {"id": "b-1", "subject": "tram", "content": "other", "time": "2026-05-02T00:00:00Z"},
        {"id": "b-2", "status": Status.NOT_LEARNT, "time": "2026-05-03T02:00:00+02:00"},
        {"kind": "consolidate", "id": "consolidation-5", "since": 1, "time": "2026-05-04T00:00:00"},
    )
    return world


def ids(result: Result) -> list[str]:
    return [line["id"] for line in result.json["lines"]]


def log(world: World, *options: object) -> Result:
    return run("log", world.model, *options)


# --- the list ---


def test_the_newest_line_comes_last_with_its_current_status(world: World) -> None:
    result = log(world, "--json")
    assert (result.code, result.json["schema"], result.json["total"]) == (0, "more.log/2", 5)
    now = {line["id"]: (line["status"], line["now"]) for line in result.json["lines"]}
    assert now == {
        "a-1": ("learnt", "superseded"),
        "a-2": ("refused", "refused"),
        "b-1": ("learnt", "learnt"),
        "b-2": ("not-learnt", "not-learnt"),
        "consolidation-5": ("learnt", "learnt"),
    }
    assert ids(result) == list(now)
    assert result.json["head"] == Ledger(world.folder).head


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--id", "a-*"), ["a-1", "a-2"]),
        (("--id", "A-*"), []),
        (("--id", "?-2", "--status", "refused"), ["a-2"]),
        (("--status", "superseded", "--status", "not-learnt"), ["a-1", "b-2"]),
        (("--since", "2026-05-02"), ["b-1", "b-2", "consolidation-5"]),
        (("--until", "2026-05-02"), ["a-1", "a-2"]),
        (("--since", "2026-05-01T23:00", "--until", "2026-05-03T00:00:00.001"), ["a-2", "b-1", "b-2"]),
        (("--since", "2026-05-03T02:00:00+02:00", "--limit", 1), ["consolidation-5"]),
        (("--limit", 2), ["b-2", "consolidation-5"]),
        (("--limit", 0, "--id", "*1"), ["a-1", "b-1"]),
        (("--limit", 9), ["a-1", "a-2", "b-1", "b-2", "consolidation-5"]),
    ],
)
def test_filters(world: World, options: tuple[object, ...], wanted: list[str]) -> None:
    assert ids(log(world, *options, "--json")) == wanted


def test_text_output_is_a_table(world: World) -> None:
    shown = log(world, "--limit", "2")
    _, row, done, count, head = shown.out.splitlines()
    assert row.split() == ["4", "2026-05-03", "02:00:00", "b-2", "not-learnt", "Q?", "T"]
    assert done.split("  ")[-1] == "0 edits checked, 0 writes; all hold"
    assert (count, head) == ("5 of 5 lines", f"head {Ledger(world.folder).head}")
    assert shown.err == "shown: the last 2 lines of 5; --limit 0 shows all\n"
    assert log(world, "--id", "nothing").out.startswith("0 of 5 lines")
    assert log(world, "-q").out == ""


def test_the_answer_is_what_the_model_says(world: World) -> None:
    write(
        world,
        {
            "id": "new",
            "greedy_before": "a bus",
            "greedy_after": "a tram",
            "forced_before": "a b",
            "forced_after": "a t",
        },
        {"id": "old", "answer_before": "a b", "answer_after": "a t"},
    )
    new, old = log(world, "--limit", 2, "--json").json["lines"]
    answers = ("answer_before", "answer_after", "forced_before", "forced_after")
    assert [new[name] for name in answers] == ["a bus", "a tram", "a b", "a t"]
    assert [old[name] for name in answers] == [None, None, "a b", "a t"]
    *_, new_row, old_row, _, _ = log(world).out.splitlines()
    assert (new_row.endswith("T       a tram"), old_row.endswith("T")) == (True, True)


def test_every_kind_of_line_says_what_it_did(world: World) -> None:
    write(
        world,
        {"kind": "revert", "id": "revert-6", "status": Status.REVERTED, "ids": ["a-2"], "since": 2, "redone": 1},
        {"id": "b-1", "status": Status.NOT_LEARNT},
        {"kind": "consolidate", "id": "checked", "writes": 1, "looks": [(1, 0.5), (2, -0.5), (3, -1.0)]},
        {"kind": "anchors", "id": "anchors-9", "anchors": 12},
        {"id": "b-1", "retry": True, "settings": ["max_steps=30"]},
    )
    rows = [line[26:].split(maxsplit=2) for line in log(world).out.splitlines()[6:-2]]
    assert rows == [
        ["revert-6", "reverted", "a-2; 1 later line made again"],
        ["b-1", "retried", "Q?        T"],
        ["checked", "consolidated", "3 edits checked, 1 write; 2 still do not hold"],
        ["anchors-9", "added", "12 anchors from here on"],
        ["b-1", "(retry)", "learnt        Q?        T"],
    ]
    last = log(world, "--limit", 1, "--json").json["lines"][0]
    assert (last["retry"], last["settings"]) == (True, ["max_steps=30"])
    assert "retry        max_steps=30\n" in run("log", "show", "b-1", world.model).out
    assert "status       reverted: a-2; 1 later line made again\n" in run("log", "show", "revert-6", world.model).out


def test_the_list_fits_into_80_columns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    id = sha256_bytes(b"id")[:16]
    words = "what is parked beside the fountain in this picture of the market square ?"
    write(
        world,
        {"id": id, "status": Status.ALREADY_RIGHT, "question": words, "target": words, "greedy_after": words},
        {"kind": "revert", "id": "revert-7", "status": Status.REVERTED, "ids": [id, "b-2"], "since": 1, "redone": 0},
    )
    monkeypatch.setenv("COLUMNS", "80")
    table = log(world).out.splitlines()[:-2]
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["time", "(UTC)", "edit", "status", "question", "target", "after"]
    row = next(line for line in table if id in line)
    assert re.fullmatch(rf"20\d\d-\d\d-\d\d \d\d:\d\d  {id}  reverted( +what is…?\S*){{3}}", row), row
    assert f"  reverted      {id}, b-2" in next(line for line in table if "revert-7" in line)
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d  \S", line) for line in table[1:] if line[0] != " ")
    assert words in " ".join(run("log", "show", id, world.model).out.split())


def test_a_terminal_shows_the_statuses_in_colours(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = on_terminal("log", world.model, columns=80)
    assert "a-1              \x1b[33msuperseded\x1b[0m    Q?" in shown
    assert "a-2              \x1b[31mrefused\x1b[0m       Q?" in shown
    assert "b-1              \x1b[32mlearnt\x1b[0m        Q?" in shown
    assert max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in shown.splitlines()) <= 80


def test_list_and_the_folder_are_optional(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    assert run("log", "list", world.model).out == run("log").out == log(world).out
    assert run("log", "--state", world.sidecar, "--json").json["total"] == 5
    assert "show" in run("log", "--help").out


def test_reading_writes_nothing_and_loads_no_model(world: World) -> None:
    before = tree(world.root)
    code = "import sys; from more_cli.cli.app import main; code = main(sys.argv[1:]); "
    code += "sys.exit(code or any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    for words in (["log", str(world.model)], ["log", "show", "a-1", str(world.model), "--json"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "a-1" in done.stdout
    assert tree(world.root) == before


# --- one edit ---


def test_everything_about_one_edit(world: World) -> None:
    measured = {"nll_before": 2.5, "nll_after": 0.125, "forced_before": "bus", "forced_after": "T", "right_after": True}
    said = {"greedy_base": "a car", "greedy_before": "a bus...", "greedy_after": "T"}
    store = Ledger(world.folder).images
    store.put(b"image")
    absent = sha256_bytes(b"absent")
    write(
        world,
        {
            "id": "whole",
            **measured,
            **said,
            "images": [IMAGE, absent],
            "paths": {absent: "/data/2.png"},
            "rephrases": ["What?", "Which?"],
            "locality": [{"question": "Who?"}],
            "tags": {"day": 1},
            "source": "edits.jsonl",
            "line": 7,
            "writes": 3,
            "sites": ["text.1.down_proj"],
            "cost": 12.0,
            "wall_ms": 34.5,
            "versions": {"torch": "2.13.0", "threads": "2"},
        },
    )
    shown = run("log", "show", "whole", world.model)
    assert shown.code == 0
    *lines, explained = shown.out.splitlines()
    assert explained == "forced: the most likely token at each position, given the target before it"
    rows = {text[:18].strip(): text[18:] for text in lines}
    assert rows.pop("time").startswith("20")
    assert rows == {
        "edit": "whole",
        "status": "learnt",
        "question": "Q?",
        "target": "T",
        "base": "a car",
        "before this edit": "a bus...",
        "after": "T",
        "forced before": "bus (NLL of the target 2.5)",
        "forced after": "T (NLL of the target 0.125)",
        "image 1": str(world.folder / "images" / IMAGE),
        "image 2": f"{absent}, /data/2.png",
        "probes": "2 rephrases, 1 locality probe",
        "writes": "3, cost 12.0, 34.5 ms",
        "sites": "text.1.down_proj",
        "tags": "day=1",
        "source": "edits.jsonl:7",
        "versions": "threads 2, torch 2.13.0",
        "ledger line": "6",
    }
    result = run("log", "show", "whole", world.model, "--json").json
    assert result["schema"] == "more.log.show/2"
    assert result["edit"].items() >= {**measured, **said, "answer_before": "a bus...", "answer_after": "T"}.items()
    assert result["edit"]["stored"] == {IMAGE: True, absent: False}


def test_an_edit_names_the_one_that_superseded_it(world: World) -> None:
    assert "status       learnt, now superseded by `b-1`" in run("log", "show", "a-1", world.model).out
    assert run("log", "show", "a-1", world.model, "--json").json["edit"]["superseded_by"] == "b-1"
    assert run("log", "show", "b-1", world.model, "--json").json["edit"]["superseded_by"] is None
    assert "reason       a write is not finite" in run("log", "show", "a-2", world.model).out
    assert run("log", "show", "consolidation-5", world.model, "--json").json["edit"]["since"] == 1


def test_a_real_edit_has_its_sites(tmp_path: Path) -> None:
    world = World(tmp_path, text_layers=1)
    world.edits(1)
    world.edit("--set", "max_steps=30")
    sites = [site["name"] for site in run("status", world.model, "--json").json["sites"]]
    assert run("log", "show", "e1", world.model, "--json").json["edit"]["sites"] == sorted(sites)


@pytest.mark.parametrize("words", [("model", "a-1"), ("a-1", "model"), ("a-1", "./model/"), ("a-1",)])
def test_model_and_id_come_in_any_order(world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.chdir(world.root)
    if words != ("a-1",):
        (world.root / "other.more").touch()
    result = run("log", "show", *words, "--json")
    assert (result.code, result.json["edit"]["id"]) == (0, "a-1"), result.err
    shutil.move(world.folder, "away.more.d")
    assert run("log", "show", *words, "--state", "away.more", "--json").json["edit"]["id"] == "a-1"


def test_an_id_may_look_like_a_path_if_the_model_is_named(world: World) -> None:
    write(world, {"id": "batch/7"})
    assert run("log", "show", "batch/7", world.model, "--json").json["edit"]["id"] == "batch/7"


def test_without_a_model_the_error_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        result = run("log", "show", "a-1")
        assert (result.code, result.out) == (2, "")
        said, hint = result.err.splitlines()
        assert said.endswith("; `a-1` is taken as an id")
        assert ("several `*.more` files are here" if number else "no `*.more` file here") in said
        assert hint == "hint: add MODEL, the checkpoint folder: more log show MODEL ID"
        (tmp_path / "one.more").touch()
        (tmp_path / "two.more").touch()


# --- what can be wrong ---


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("log", "show", "a-3"), 2, "hint: did you mean `a-"),
        (("log", "show", "zzzzz"), 2, "hint: `more log` lists the ids"),
        (("log", "show"), 2, "error: ID is missing: which edit?\nhint: type: more log show MODEL ID"),
        (("log", "show", "model"), 2, "error: ID is missing: which edit?"),
        (("log", "show", "a-1", "a-2"), 2, "error: one ID at a time, not 2: a-1, a-2"),
        (("log", "show", "no/model", "a-1"), 2, "error: no/model: no such directory"),
        (("log", "show", "a-1", "other.more.d/ledger"), 2, "error: other.more.d/ledger: no such directory"),
        (("log", "--since", "yesterday"), 2, "error: `--since yesterday` is not an ISO 8601 time"),
        (("log", "--status", "fine"), 2, "error: "),
        (("log", "--state", "none.more"), 5, "error: no state at `none.more`"),
    ],
)
def test_errors(world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str) -> None:
    monkeypatch.chdir(world.root)
    result = run(*words)
    assert (result.code, result.out) == (code, "")
    assert said in result.err


def test_a_damaged_ledger_is_one_error_that_names_the_line(world: World) -> None:
    path = world.folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"id":"a-2"', b'"id":"a-9"'))
    for result in (log(world), run("log", "show", "a-1", world.model)):
        assert (result.code, result.out) == (5, "")
        assert "ledger.jsonl:2: line was changed" in result.err


def test_a_line_without_a_readable_time(world: World) -> None:
    write(world, {"id": "odd", "time": "\x1b[2Jnoon"})
    assert log(world).code == 0
    result = log(world, "--since", "2026-01-01")
    assert (result.code, "\x1b" in result.err) == (5, False)
    assert "ledger line 6 has no valid time: `\ufffd[2Jnoon`" in result.err


@pytest.mark.parametrize("command", [("log",), ("log", "show", "\x1b[2J")])
def test_text_of_an_edit_cannot_steer_the_terminal(world: World, command: tuple[str, ...]) -> None:
    hostile = "\x1b[2J"
    write(world, {**dict.fromkeys(("id", "question", "target", "greedy_after", "source", "note", "reason"), hostile)})
    shown = run(*command, world.model)
    assert (shown.code, "[2J" in shown.out) == (0, True)
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


def test_text_shows_the_last_hundred_lines_and_json_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.files._fsync", lambda fd: None)
    write(world, *({"id": f"m{number}"} for number in range(200)))
    shown = log(world)
    assert "the last 100 lines of 205" in shown.err
    assert ("m100" in shown.out, "m99 " in shown.out) == (True, False)
    assert len(json.loads(log(world, "--json").out)["lines"]) == 205
