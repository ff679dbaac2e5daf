"""`more log`: what was edited when, and its current status, without a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from more_cli.files import sha256_bytes
from more_cli.store.entry import Status
from more_cli.store.ledger import Ledger
from support.helpers import Result, World, run, tree

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
        {"id": "a-1", "subject": "tram", "time": "2026-05-01T08:00:00.000+00:00", "answer_after": "T"},
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
    assert (result.code, result.json["schema"], result.json["total"]) == (0, "more.log/1", 5)
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
    *_, row, _, last = shown.out.splitlines()
    assert row.split() == ["4", "2026-05-03", "02:00:00", "b-2", "not-learnt", "Q?", "T"]
    assert last.startswith("5 of 5 lines, head ")
    assert shown.err == "shown: the last 2 of 5 lines; --limit 0 shows all\n"
    assert log(world, "--id", "nothing").out.startswith("0 of 5 lines")
    assert log(world, "-q").out == ""


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
    measured = {"nll_before": 2.5, "nll_after": 0.125, "answer_before": "bus", "answer_after": "T", "right_after": True}
    store = Ledger(world.folder).images
    store.put(b"image")
    absent = sha256_bytes(b"absent")
    write(
        world,
        {
            "id": "whole",
            **measured,
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
    rows = {text[:12].strip(): text[12:] for text in shown.out.splitlines()}
    assert rows.pop("time").startswith("20")
    assert rows == {
        "edit": "whole",
        "status": "learnt",
        "question": "Q?",
        "target": "T",
        "before": "bus (NLL of the target 2.5)",
        "after": "T (NLL of the target 0.125)",
        "image 1": str(world.folder / "images" / IMAGE),
        "image 2": f"{absent}, /data/2.png",
        "probes": "2 rephrases, 1 locality",
        "writes": "3, cost 12.0, 34.5 ms",
        "sites": "text.1.down_proj",
        "tags": "day=1",
        "source": "edits.jsonl:7",
        "versions": "threads 2, torch 2.13.0",
        "ledger line": "6",
    }
    result = run("log", "show", "whole", world.model, "--json").json
    assert result["schema"] == "more.log.show/1"
    assert result["edit"].items() >= measured.items()
    assert result["edit"]["stored"] == {IMAGE: True, absent: False}


def test_an_edit_names_the_one_that_superseded_it(world: World) -> None:
    assert "status      learnt, now superseded by `b-1`" in run("log", "show", "a-1", world.model).out
    assert run("log", "show", "a-1", world.model, "--json").json["edit"]["superseded_by"] == "b-1"
    assert run("log", "show", "b-1", world.model, "--json").json["edit"]["superseded_by"] is None
    assert "reason      a write is not finite" in run("log", "show", "a-2", world.model).out
    assert run("log", "show", "consolidation-5", world.model, "--json").json["edit"]["since"] == 1


def test_a_real_edit_has_its_sites(tmp_path: Path) -> None:
    world = World(tmp_path, text_layers=1)
    world.edits(1)
    world.edit("--set", "max_steps=30")
    sites = [site["name"] for site in run("status", world.model, "--json").json["sites"]]
    assert run("log", "show", "e1", world.model, "--json").json["edit"]["sites"] == sorted(sites)


# --- what can be wrong ---


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("log", "show", "a-3"), 2, "hint: did you mean `a-"),
        (("log", "show", "zzzzz"), 2, "hint: `more log` lists the ids"),
        (("log", "show"), 2, "error: missing argument"),
        (("log", "--since", "yesterday"), 2, "error: `--since yesterday` is not an ISO 8601 time"),
        (("log", "--status", "fine"), 2, "error: "),
        (("log", "--state", "none.more"), 5, "error: no ledger at `none.more.d/ledger.jsonl`"),
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
    write(world, {**dict.fromkeys(("id", "question", "target", "answer_after", "source", "note", "reason"), hostile)})
    shown = run(*command, world.model)
    assert (shown.code, "[2J" in shown.out) == (0, True)
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


def test_text_shows_the_last_hundred_lines_and_json_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.files._fsync", lambda fd: None)
    write(world, *({"id": f"m{number}"} for number in range(200)))
    shown = log(world)
    assert "the last 100 of 205 lines" in shown.err
    assert ("m100" in shown.out, "m99 " in shown.out) == (True, False)
    assert len(json.loads(log(world, "--json").out)["lines"]) == 205
