"""Standard output that nobody reads: the files that were asked for are written all the same."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from more_cli.cli.app import main
from support.helpers import QUICK, World, line, run, run_unread

SAVED = "output pipe closed; finished work is saved"
PROBE = {"question": "is it a dog ?", "answer": "no"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two edits of a tiny model, a probe file and an MME of one picture."""
    world = World(tmp_path_factory.mktemp("pipe") / "world")
    world.write([line(n, locality=[{"question": "is it a dog ?"}]) for n in range(2)])
    world.write([PROBE], "probes.jsonl")
    (world.root / "fixes.csv").write_text("question,target\nwhat ?,x\n")
    folder = world.root / "mme" / "color"
    folder.mkdir(parents=True)
    (folder / "red.png").write_bytes((world.root / "img" / "red.png").read_bytes())
    (folder / "red.txt").write_text("is it red ?\tYes\nis it black ?\tNo\n")
    assert world.edit(*QUICK).code in (0, 3)
    return world


def scored(world: World, name: str, cache: Path) -> tuple[object, ...]:
    return {
        "state": (world.model,),
        "probes": (world.model, "--probes", world.root / "probes.jsonl"),
        "suite": (world.model, "--suite", world.root / "edits.jsonl", "--cache", cache, *QUICK),
        "yes/no": (world.model, "--suite", "mme", "--data-root", world.root / "mme"),
    }[name]


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("name", ["state", "probes", "suite", "yes/no"])
def test_every_report_is_written(world: World, tmp_path: Path, name: str, json: bool) -> None:
    files = [tmp_path / "report.html", tmp_path / "report.md", tmp_path / "junit.xml"]
    options = ("--report", files[0], "--report", files[1], "--junit", files[2], *["--json"] * json)
    result = run_unread("eval", *scored(world, name, tmp_path / "cache"), *options)
    assert (result.code, result.err.splitlines()[-1]) == (130, SAVED)
    assert [file.stat().st_size > 100 for file in files] == [True] * 3


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("help", "exit-codes"),
        ("edit", "--help"),
        ("recipes", "list"),
        ("suites", "list"),
        ("status", "model"),
        ("status", "model", "--json"),
        ("log", "model"),
        ("log", "show", "e1", "model"),
        ("anchors", "list", "model"),
        ("ask", "model", "is it a dog ?"),
        ("eval", "model"),
        ("verify", "model"),
        ("edit", "model", "edits.jsonl", "--dry-run"),
    ],
    ids=" ".join,
)
def test_a_command_that_saved_nothing_ends_without_a_word(
    world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(world.root)
    result = run_unread(*words)
    assert result.code == 130
    assert SAVED not in result.err
    assert not any(row.startswith(("error", "Traceback", "Exception")) for row in result.err.splitlines())


def test_an_edit_whose_result_nobody_reads_says_that_it_is_saved(world: World, tmp_path: Path) -> None:
    copy = world.copy(tmp_path / "world")
    copy.write([line(2)])
    result = run_unread("edit", copy.model, copy.root / "edits.jsonl", "--json")
    assert (result.code, result.err.splitlines()[-1]) == (130, SAVED)
    assert len(copy.entries()) == 3


@pytest.mark.parametrize(
    "words",
    [("merge", "model", "-o", "out"), ("export", "model", "-o", "out"), ("convert", "fixes.csv", "-o", "out")],
    ids=lambda words: str(words[0]),
)
def test_every_product_is_written(world: World, tmp_path: Path, words: tuple[str, ...]) -> None:
    command, source, option, name = words
    result = run_unread(command, world.root / source, option, tmp_path / name, "--json")
    assert (result.code, result.err.splitlines()[-1]) == (130, SAVED)
    assert (tmp_path / name).exists()


def test_a_result_is_shown_also_where_its_report_cannot_be_written(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("more_cli.files._fsync", full)
    result = run("eval", world.model, "--report", tmp_path / "report.html", "--json")
    assert (result.code, result.json["schema"]) == (7, "more.eval/2")
    assert f"cannot write `{tmp_path / 'report.html'}`" in result.err


def test_messages_that_nobody_reads_end_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.md"
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        main(["eval", "--suite", "e-vqa", "--limit", "1", "--cache", str(tmp_path), "--report", str(report), *QUICK])
    assert report.stat().st_size > 100


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_messages_for_which_there_is_no_space_change_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as full:  # closing it fails
        monkeypatch.setattr(sys, "stderr", full)
        code = main(["status", "no-such-model"])
    assert code == 5


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_without_its_standard_streams(world: World, tmp_path: Path, closed: str) -> None:
    more = f"{sys.executable} -m more_cli"
    kept = tmp_path / "status.json"
    shown = f"> {kept} {closed}" if closed == "2>&-" else closed

    done = subprocess.run(
        ["sh", "-c", f"{more} status {world.model} --json {shown} && {more} log {world.model} {closed}"],
        capture_output=True,
    )

    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert not kept.exists() or json.loads(kept.read_text())["edits"]


def test_what_the_encoding_of_standard_output_lacks_is_escaped(world: World, tmp_path: Path) -> None:
    def printed(*words: object) -> bytes:
        environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
        argv = [sys.executable, "-m", "more_cli", *map(str, words)]
        return subprocess.run(argv, env=environment, check=True, capture_output=True).stdout

    named = world.root / "字.more"
    named.write_bytes(world.sidecar.read_bytes())
    shutil.copytree(world.folder, world.root / "字.more.d")
    assert b"\\u5b57.more" in printed("status", world.model, "--state", named)
    assert json.loads(printed("status", world.model, "--state", named, "--json"))["state"].endswith("字.more")
