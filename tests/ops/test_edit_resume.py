"""However a run is interrupted, running it again gives the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from more_cli import files
from more_cli.inputs import images
from more_cli.model.runtime import Runtime
from more_cli.ops import init
from more_cli.ops.session import Session
from more_cli.ops.signals import leave_terminal
from more_cli.store import ledger
from more_cli.store.entry import Entry
from more_cli.store.state import save_state
from support import tiny
from support.disk import DISK, WORK
from support.helpers import (
    COLOURS,
    LEARNING,
    QUICK,
    World,
    at_call,
    die,
    forks,
    in_child,
    line,
    lines_in,
    process,
    run,
    spelled,
    wait_for,
)

IDS = [f"e{number + 1}" for number in range(len(COLOURS))]
SAVE_OFTEN = (*QUICK, "--save-every", 3)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("resume"), text_layers=1)
    world.edits()
    return world


def steps(world: World, functions: list[tuple[Any, str]]) -> int:
    """How many calls of these functions an undisturbed run makes."""
    counted = world.root / "counted"

    def count() -> None:
        calls = at_call(0, functions, die)
        world.edit(*SAVE_OFTEN, "--state", world.root / "count.more")
        counted.write_text(str(calls()))

    if not counted.exists():
        assert in_child(count) == 0
    return int(counted.read_text())


def finished(world: World, sidecar: Path) -> bytes:
    """Run the stream again; every edit is in the ledger exactly once, and no scratch file is left."""
    assert world.edit(*SAVE_OFTEN, "--state", sidecar).code == 3
    assert [entry["id"] for entry in world.entries(sidecar)] == IDS
    folder = sidecar.with_name(f"{sidecar.name}.d")
    assert not [*sidecar.parent.glob(f".{sidecar.name}*"), *folder.glob("**/.*")]
    return sidecar.read_bytes()


@pytest.mark.parametrize("every", [1, 2, 10])
def test_how_often_the_state_is_saved_changes_no_byte(
    world: World, undisturbed: bytes, tmp_path: Path, every: int
) -> None:
    world.edit(*QUICK, "--save-every", every, "--state", tmp_path / "s.more")
    assert (tmp_path / "s.more").read_bytes() == undisturbed


def test_three_edits_and_then_the_rest_are_the_same_as_eight(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    sidecar = tmp_path / "s.more"
    first = world.edit(*QUICK, "--limit", 3, "--state", sidecar, "--json").json
    assert (first["applied"], first["total"]) == (3, 3)
    then = world.edit(*QUICK, "--state", sidecar, "--json").json
    assert (then["applied"], then["skipped"], then["replayed"]) == (5, 3, 0)
    assert sidecar.read_bytes() == undisturbed


def test_an_up_to_date_state_is_not_written_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def save(path: Path, state: Any) -> None:
        written.append(state.meta.edits)
        save_state(path, state)

    monkeypatch.setattr("more_cli.ops.session.save_state", save)
    world.edit(*QUICK, "--save-every", 4, "--state", tmp_path / "s.more")
    assert written == [4, 8]


@pytest.mark.slow
@forks
def test_no_scratch_file_is_left_wherever_the_last_save_was_killed(
    world: World, undisturbed: bytes, tmp_path: Path
) -> None:
    for number in range(1, 7):
        sidecar = tmp_path / f"{number}.more"

        def last(number: int = number, sidecar: Path = sidecar) -> object:
            at_call(8, [(Session, "count")], lambda *_: at_call(number, [(files, "_fsync"), (files, "_rename")], die))
            return world.edit(*QUICK, "--save-every", 8, "--state", sidecar)

        in_child(last)
        assert finished(world, sidecar) == undisturbed, f"killed at step {number}"


def two_applied(world: World, folder: Path) -> tuple[Path, Path]:
    """Return a state of two edits, and their file."""
    sidecar, stream = folder / "s.more", world.edits(2, "two.jsonl")
    assert run("edit", world.model, stream, "--state", sidecar, *LEARNING).code == 0
    return sidecar, stream


def test_a_finished_stream_is_not_applied_again_and_the_model_is_not_loaded(
    world: World, undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar, stream = two_applied(world, tmp_path)
    before, ledger = sidecar.read_bytes(), world.entries(sidecar)
    monkeypatch.setattr("more_cli.ops.session.load_runtime", lambda *_, **__: pytest.fail("the model was loaded"))
    again = run("edit", world.model, stream, "--state", sidecar, "--json")
    assert (again.code, again.json["applied"], again.json["skipped"]) == (0, 0, 2)
    assert (sidecar.read_bytes(), world.entries(sidecar)) == (before, ledger)


def test_the_ledger_line_of_an_applied_edit_is_parsed_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar, stream = two_applied(world, tmp_path)
    parsed, parse = list[int](), ledger.parse_entry

    def counted(line: bytes, path: Path, number: int) -> Entry:
        parsed.append(number)
        return parse(line, path, number)

    monkeypatch.setattr(ledger, "parse_entry", counted)
    assert run("edit", world.model, stream, "--state", sidecar).code == 0
    assert parsed == [1, 2], "whether the edit is the same is known without its line, whether its probes are is not"


def test_a_stored_image_is_not_decoded_to_check_its_line_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar, stream = two_applied(world, tmp_path)
    decoded, decode = list[str](), images.decode_image
    monkeypatch.setattr(images, "decode_image", lambda data, name: decoded.append(name) or decode(data, name))
    for given in (stream, "-"):
        root = ("--image-root", world.root) if given == "-" else ()
        again = run("edit", world.model, given, "--state", sidecar, *root, "--json", stdin=stream.read_bytes())
        assert (again.code, again.json["skipped"], decoded) == (0, 2, [])
    new = world.write([line(number) for number in (0, 1, 5)], "three.jsonl")
    assert run("edit", world.model, new, "--state", sidecar, "--dry-run").code == 0
    assert decoded == [f"img/{COLOURS[5]}.png"]


def test_new_probes_of_an_applied_line_are_said_to_be_ignored(world: World, tmp_path: Path) -> None:
    sidecar, path = tmp_path / "s.more", world.edits(2, "probed.jsonl")
    run("edit", world.model, path, "--state", sidecar, *QUICK)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    again = run("edit", world.model, world.write(lines, "again.jsonl"), "--state", sidecar)
    assert "new probes" not in again.err
    lines[1] |= {"rephrases": [*lines[1].get("rephrases", []), "asked in another way ?"]}
    again = run("edit", world.model, world.write(lines, "again.jsonl"), "--state", sidecar)
    assert "new probes of 1 line are not scored: an edit keeps those that it was applied with" in again.err
    assert "2 skipped" in again.out


def test_the_state_alone_is_rebuilt_from_the_ledger(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    sidecar = tmp_path / "s.more"
    world.edit(*QUICK, "--state", sidecar)
    sidecar.unlink()
    again = world.edit(*QUICK, "--state", sidecar)
    assert "replayed 8 ledger lines that were not in the state" in again.err
    assert sidecar.read_bytes() == undisturbed


def test_a_refused_edit_is_replayed_as_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, text_layers=1)
    tiny.set_config(world.model, text_config=small_context(world.model))
    world.write([line(0), line(1, target="@" * 100), line(2)])
    assert "e2" in world.edit(*QUICK, "--json").json["failed"]
    before = world.sidecar.read_bytes()
    world.sidecar.unlink()
    assert world.edit(*QUICK, "--json").json["replayed"] == 3
    assert world.sidecar.read_bytes() == before


def small_context(model: Path) -> dict[str, Any]:
    """So small that even a text too short to be checked in advance does not fit."""
    return json.loads((model / "config.json").read_text())["text_config"] | {"max_position_embeddings": 100}


@pytest.mark.parametrize("recipe", ["llava", "authors-llava", "paper-llava"])
def test_the_rest_after_a_break_is_the_same_with_every_recipe(tmp_path: Path, recipe: str) -> None:
    world = World(tmp_path)
    world.write([*(line(number) for number in range(4)), line(0, id="again", question="again ?"), line(4)])
    whole, parts = tmp_path / "whole.more", tmp_path / "parts.more"
    few = "--recipe", recipe, "--set", "max_steps=3"
    assert world.edit(*few, "--state", whole).code in (0, 3)
    for count in (1, 4, 6):
        world.edit(*few, "--limit", count, "--state", parts)
    assert parts.read_bytes() == whole.read_bytes()


@forks
@pytest.mark.slow
def test_killed_before_any_write_to_the_disk(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    total = steps(world, DISK)
    # The new state, two edits, a third with the first save, and the last edit with the last save.
    for number in [*range(1, 28), *range(total - 8, total + 1)]:
        sidecar = tmp_path / f"{number}.more"
        assert in_child(killed(world, sidecar, number, DISK, die)) == -signal.SIGKILL
        assert finished(world, sidecar) == undisturbed, f"killed before step {number} of {total}"


@forks
@pytest.mark.slow
def test_killed_in_the_middle_of_a_write(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    def half(write: Callable[[int, memoryview], int], fd: int, data: memoryview) -> None:
        write(fd, data[: len(data) // 2])
        die()

    for number in (1, 2, 3, 4, 16):  # an image, a line, ...
        sidecar = tmp_path / f"{number}.more"
        assert in_child(killed(world, sidecar, number, [(files, "_write")], half)) == -signal.SIGKILL
        assert finished(world, sidecar) == undisturbed, f"killed inside write {number}"


@forks
@pytest.mark.slow
def test_killed_at_random_moments(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    total = steps(world, WORK)
    for number in random.Random(0).sample(range(12, total), 10):
        sidecar = tmp_path / f"{number}.more"
        assert in_child(killed(world, sidecar, number, WORK, die)) == -signal.SIGKILL
        assert finished(world, sidecar) == undisturbed, f"killed at moment {number} of {total}"


@forks
def test_killed_again_and_again(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    sidecar, lives = tmp_path / "s.more", 1
    while in_child(killed(world, sidecar, 30, WORK, die)) == -signal.SIGKILL:
        lives += 1
    assert lives > 3
    assert finished(world, sidecar) == undisturbed


@forks
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_after_the_current_edit(
    world: World, undisturbed: bytes, tmp_path: Path, number: signal.Signals
) -> None:
    sidecar = tmp_path / "s.more"

    def ask(*_: object) -> None:
        os.kill(os.getpid(), number)

    def asked() -> int:
        if number is not signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
        at_call(8, [(Runtime, "_forward")], ask)
        result = world.edit(*SAVE_OFTEN, "--state", sidecar, "--json")
        assert result.json["interrupted"]
        assert "interrupted, state saved" in result.err
        return result.code

    assert in_child(asked) == 130
    held = run("status", world.model, "--state", sidecar, "--json").json
    assert held["edits"] == len(world.entries(sidecar)) == 3
    assert held["behind"] == 0
    assert finished(world, sidecar) == undisturbed


@forks
@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["nohup", "daemon"])
def test_a_hangup_that_means_something_else_ends_nothing(
    world: World, undisturbed: bytes, tmp_path: Path, handler: Any
) -> None:
    sidecar = tmp_path / "s.more"

    def hang_up(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    def ignoring() -> int:
        signal.signal(signal.SIGHUP, handler)
        at_call(8, [(Runtime, "_forward")], hang_up)
        return world.edit(*SAVE_OFTEN, "--state", sidecar).code

    assert in_child(ignoring) == 3, "as where nothing happens"
    assert sidecar.read_bytes() == undisturbed


@forks
def test_after_a_hangup_nothing_is_written_to_the_closed_terminal() -> None:
    def hung_up() -> int:
        ours, terminal = os.openpty()
        os.dup2(terminal, 2)
        for end in (ours, terminal):
            os.close(end)
        leave_terminal(signal.SIGHUP)
        return os.write(2, b"said")

    assert in_child(hung_up) == len("said")


@forks
def test_a_signal_while_the_model_is_loaded_applies_nothing(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    sidecar = tmp_path / "s.more"

    def ask(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    assert in_child(killed(world, sidecar, 1, [(init, "load_runtime")], ask)) == 130
    assert lines_in(sidecar) == 0
    assert finished(world, sidecar) == undisturbed


@forks
def test_a_second_signal_ends_it_at_once_and_the_ledger_has_the_rest(
    world: World, undisturbed: bytes, tmp_path: Path
) -> None:
    sidecar = tmp_path / "s.more"

    def insist(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    assert in_child(killed(world, sidecar, 9, [(Runtime, "_forward")], insist)) == 130
    held = run("status", world.model, "--state", sidecar, "--json").json
    assert held["edits"] + held["behind"] == len(world.entries(sidecar)) == 2
    assert finished(world, sidecar) == undisturbed


def killed(
    world: World, sidecar: Path, number: int, functions: list[tuple[Any, str]], action: Callable[..., None]
) -> Callable[[], object]:
    """Return a run with `action` at the n-th call of these functions."""

    def child() -> object:
        at_call(number, functions, action)
        return world.edit(*SAVE_OFTEN, "--state", sidecar)

    return child


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_real_process_that_is_stopped(
    world: World, undisturbed: bytes, tmp_path: Path, number: signal.Signals
) -> None:
    sidecar, sent = tmp_path / "s.more", 5
    # Killed at its third edit or so, but asked to stop while it waits for another line.
    seen = 3 if number == signal.SIGKILL else sent
    options = (*SAVE_OFTEN, "--image-root", world.root, "--state", sidecar)
    with process("edit", world.model, "-", *options, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(b"".join(spelled(line(number)) + b"\n" for number in range(sent)))
        child.stdin.flush()
        wait_for(lambda: lines_in(sidecar) >= seen)
        child.send_signal(number)
        assert child.wait(timeout=60) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    held = run("status", world.model, "--state", sidecar, "--json").json
    assert held["edits"] + held["behind"] == lines_in(sidecar) >= seen
    assert held["behind"] == 0 or number == signal.SIGKILL
    assert finished(world, sidecar) == undisturbed
