"""An interrupted revert leaves the old state or the new one, and the same command ends with the new one."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from more_cli import files
from more_cli.editors.more.passes import Passes
from more_cli.editors.more.sites import Sites
from more_cli.model.runtime import Runtime
from more_cli.ops import drafts
from more_cli.ops import revert as reverting
from more_cli.ops.session import Session
from support.disk import DISK, WORK
from support.helpers import QUICK, World, at_call, cut_short, die, forks, in_child, run
from support.reverts import JOINT, Runs, begin, edit, left, revert


@pytest.fixture
def world(runs: Runs, tmp_path: Path) -> World:
    return runs.at(tmp_path)


class Halves:
    """A run of six edits, its sidecar, and that of a run without the second and fourth."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.whole = runs, runs.of(range(6), *QUICK)
        self.before = self.whole.sidecar.read_bytes()
        self.after = runs.of([0, 2, 4, 5], *QUICK).sidecar.read_bytes()

    def copy(self, root: Path) -> World:
        here = self.runs.at(root)
        begin(here, self.whole)
        return here

    def check(self, here: World, where: object) -> None:
        """Check what is left, then run the command again."""
        recorded = any(entry["kind"] == "revert" for entry in whole_lines(here))
        assert here.sidecar.read_bytes() in ([self.before, self.after] if recorded else [self.before]), where
        held = run("status", here.model, "--state", here.sidecar, "--json").json
        finished = "reverted" in held["statuses"]
        again = revert(here, "e2", "e4")
        assert again.code == (2 if finished else 3), (where, again.err)
        if finished:
            assert "is reverted already" in again.err
            catch_up(here)
        assert here.sidecar.read_bytes() == self.after, where
        assert left(here) <= ({f"revert-{name}" for name in names(here)} if finished else set()), where
        assert not [*here.root.glob(".s.more*")], where


def whole_lines(world: World) -> list[dict[str, Any]]:
    ledger = world.folder / "ledger.jsonl"
    data = ledger.read_bytes()
    ledger.write_bytes(data[: data.rfind(b"\n") + 1])
    try:
        return world.entries(world.sidecar)
    finally:
        ledger.write_bytes(data)


def names(world: World) -> set[str]:
    return {path.name.removeprefix("revert-") for path in world.folder.glob("revert-*")}


def catch_up(world: World) -> None:
    """Run `edit` without a new edit."""
    assert edit(world, [0]).code == 3


@pytest.fixture(scope="module")
def halves(runs: Runs) -> Halves:
    return Halves(runs)


def cut(world: World, number: int, functions: list[tuple[Any, str]], action: Callable[..., None] = die) -> int:
    """Revert in a fork, with `action` at the n-th call of these functions."""
    return cut_short(lambda: revert(world, "e2", "e4"), world.root, number, functions, action)


def calls(halves: Halves, root: Path, functions: list[tuple[Any, str]]) -> int:
    assert cut(halves.copy(root / "counted"), 0, functions) == 3
    return int((root / "counted" / "calls").read_text())


@forks
@pytest.mark.slow
def test_killed_before_any_write_to_the_disk(halves: Halves, tmp_path: Path) -> None:
    total = calls(halves, tmp_path, DISK)
    # The draft's beginning, then its last edit, the snapshot, the ledger and the state.
    for number in [*range(1, 8), *range(total - 14, total + 1)]:
        here = halves.copy(tmp_path / str(number))
        assert cut(here, number, DISK) == -signal.SIGKILL
        halves.check(here, f"killed before step {number} of {total}")


@forks
@pytest.mark.slow
def test_killed_inside_the_write_to_the_ledger(halves: Halves, tmp_path: Path) -> None:
    """The write that appends the revert and the lines applied again: before it, inside it and after it."""
    last = calls(halves, tmp_path, [(files, "_write")])
    for eighth in range(9):
        here = halves.copy(tmp_path / str(eighth))

        def part(write: Callable[[int, memoryview], int], fd: int, data: memoryview, eighth: int = eighth) -> None:
            write(fd, data[: len(data) * eighth // 8])
            die()

        assert cut(here, last, [(files, "_write")], part) == -signal.SIGKILL
        assert any(entry["kind"] == "revert" for entry in whole_lines(here)) == (eighth > 1)
        halves.check(here, eighth)


@forks
@pytest.mark.slow
def test_killed_at_random_moments(halves: Halves, tmp_path: Path) -> None:
    total = calls(halves, tmp_path, WORK)
    for number in random.Random(0).sample(range(1, total), 6):
        here = halves.copy(tmp_path / str(number))
        assert cut(here, number, WORK) == -signal.SIGKILL
        halves.check(here, f"killed at moment {number} of {total}")


@forks
def test_killed_again_and_again(halves: Halves, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "SAVE_EVERY", 1)
    here, lives = halves.copy(tmp_path / "here"), 1
    while cut(here, 20, WORK) == -signal.SIGKILL:
        lives += 1
        assert lives < 20
    assert lives > 2
    assert here.sidecar.read_bytes() == halves.after


@forks
@pytest.mark.parametrize("moment", [(Passes, "write"), (Sites, "absorb"), (Session, "save")])
def test_killed_inside_a_batch(runs: Runs, world: World, moment: tuple[Any, str]) -> None:
    begin(world, runs.of(range(4), *JOINT, "--batch"))
    never, before = runs.of([0, 2, 3], *JOINT, "--batch").sidecar.read_bytes(), world.sidecar.read_bytes()

    def killed() -> None:
        at_call(2 if moment[0] is Sites else 1, [moment], die)
        revert(world, "e2")

    assert in_child(killed) == -signal.SIGKILL
    assert world.sidecar.read_bytes() == before
    assert revert(world, "e2").code in (0, 3)
    assert world.sidecar.read_bytes() == never


@forks
def test_ctrl_c_leaves_the_old_state_and_a_draft(halves: Halves, tmp_path: Path) -> None:
    here = halves.copy(tmp_path / "here")

    def ask(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def child() -> int:
        at_call(4, [(Runtime, "_forward")], ask)
        result = revert(here, "e2", "e4", "--json")
        assert result.json["interrupted"]
        assert "the state is unchanged" in result.err
        return result.code

    assert in_child(child) == 130
    assert here.sidecar.read_bytes() == halves.before
    drafted = [name for name in left(here) if not name.endswith(".auto.more")]  # its snapshots lie beside it
    assert (len(here.entries(here.sidecar)), len(drafted)) == (6, 2)
    scored = run("eval", here.model, "--state", here.sidecar, "--json").json
    assert (scored["edits"], scored["replayed"]) == (6, 0)
    resumed = revert(here, "e2", "e4", "--json")
    assert resumed.json["replayed"] == 0  # the draft contains the edits that stay
    assert here.sidecar.read_bytes() == halves.after
    assert left(here) == set()


@forks
def test_an_edit_in_between_discards_the_draft(halves: Halves, tmp_path: Path) -> None:
    here = halves.copy(tmp_path / "here")
    assert cut(here, 30, WORK) == -signal.SIGKILL
    edit(here, [6])
    assert revert(here, "e2", "e4").code in (0, 3)
    assert here.sidecar.read_bytes() == halves.runs.of([0, 2, 4, 5, 6], *QUICK).sidecar.read_bytes()
    assert left(here) == set()


@forks
@pytest.mark.parametrize("drafted", [True, False])
def test_between_the_ledger_and_the_sidecar_every_command_sees_the_new_state(
    halves: Halves, tmp_path: Path, drafted: bool
) -> None:
    here = halves.copy(tmp_path / "here")

    def child() -> None:
        save = reverting.save_state
        reverting.save_state = lambda path, state: die() if path == here.sidecar else save(path, state)
        revert(here, "e2", "e4")

    assert in_child(child) == -signal.SIGKILL
    for path in [] if drafted else here.folder.glob("revert-*"):
        path.unlink()
    scored = run("eval", here.model, "--state", here.sidecar, "--json").json
    assert (scored["edits"], scored["replayed"]) == (4, 0 if drafted else 4)
    assert here.sidecar.read_bytes() == halves.before
    held = run("status", here.model, "--state", here.sidecar, "--json").json
    assert (held["edits"], held["behind"]) == ((4, 0) if drafted else (0, 4))
    assert run("gc", here.model, "--state", here.sidecar).code == 0
    catch_up(here)
    assert here.sidecar.read_bytes() == halves.after
