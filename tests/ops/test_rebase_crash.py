"""A killed or interrupted `more rebase` leaves no new state or a whole one, and the same command ends alike."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from more_cli.model.runtime import Runtime
from more_cli.ops import drafts
from support.disk import DISK, WORK
from support.helpers import QUICK, Result, World, at_call, die, forks, in_child, line, run
from support.reverts import Runs, edit
from support.tiny import tiny_llava

OUT = "new.more"


class Moved:
    """A state with a reverted edit, a new version of its base, and the state of the other edits there."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.world = runs, runs.at(runs.world.root / "moved")
        self.model = tiny_llava(self.world.root / "new", text_layers=1, seed=3)
        edit(self.world, [0, 1, 2, 3], *QUICK)
        run("revert", self.world.model, "e2", "--state", self.world.sidecar)
        once = self.world.root / "once.more"
        stream = self.world.write([line(number) for number in (0, 2, 3)], "once.jsonl")
        run("edit", self.model, stream, "--state", once, *QUICK)
        self.after = once.read_bytes()

    def copy(self, root: Path) -> World:
        here = self.runs.at(root)
        shutil.copyfile(self.world.sidecar, here.sidecar)
        shutil.copytree(self.world.folder, here.folder)
        return here

    def rebase(self, world: World, *options: object) -> Result:
        state = ("--state", world.sidecar, "-o", world.root / OUT)
        return run("rebase", world.model, self.model, *state, *options)

    def check(self, here: World, where: object) -> None:
        """Check what is left, then run the command again."""
        out = here.root / OUT
        if out.exists():
            assert out.read_bytes() == self.after, where
        again = self.rebase(here)
        assert again.code == 3, (where, again.err)
        assert out.read_bytes() == self.after, where
        assert run("verify", self.model, "--state", out).code == 0, where
        assert not drafts.drafts(here.root / f"{OUT}.d"), where
        assert not [*here.root.glob(f".{OUT}*")], where

    def cut_short(self, world: World, number: int, functions: list[tuple[Any, str]]) -> Callable[[], object]:
        """Return a rebase that is killed at the n-th call of these functions; if not, it writes their number."""

        def child() -> object:
            calls = at_call(number, functions, die)
            result = self.rebase(world)
            (world.root / "calls").write_text(str(calls()))
            return result

        return child

    def calls(self, root: Path, functions: list[tuple[Any, str]]) -> int:
        assert in_child(self.cut_short(self.copy(root / "counted"), 0, functions)) == 3
        return int((root / "counted" / "calls").read_text())


@pytest.fixture(scope="module")
def moved(runs: Runs) -> Moved:
    return Moved(runs)


@forks
@pytest.mark.slow
def test_killed_before_any_write_to_the_disk(moved: Moved, tmp_path: Path) -> None:
    total = moved.calls(tmp_path, DISK)
    for number in [*range(1, 20, 2), *range(total - 14, total + 1)]:
        here = moved.copy(tmp_path / str(number))
        assert in_child(moved.cut_short(here, number, DISK)) == -signal.SIGKILL
        moved.check(here, f"killed before step {number} of {total}")


@forks
def test_killed_while_the_new_state_takes_its_place(moved: Moved, tmp_path: Path) -> None:
    total = moved.calls(tmp_path, DISK)
    for number in range(total - 5, total + 1):
        here = moved.copy(tmp_path / str(number))
        assert in_child(moved.cut_short(here, number, DISK)) == -signal.SIGKILL
        moved.check(here, f"killed before step {number} of {total}")


@forks
@pytest.mark.slow
def test_killed_at_random_moments(moved: Moved, tmp_path: Path) -> None:
    total = moved.calls(tmp_path, WORK)
    for number in random.Random(0).sample(range(1, total), 8):
        here = moved.copy(tmp_path / str(number))
        assert in_child(moved.cut_short(here, number, WORK)) == -signal.SIGKILL
        moved.check(here, f"killed at moment {number} of {total}")


@forks
def test_killed_again_and_again(moved: Moved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "SAVE_EVERY", 1)
    here, lives = moved.copy(tmp_path / "here"), 1
    while in_child(moved.cut_short(here, 20, WORK)) == -signal.SIGKILL:
        assert not (here.root / OUT).exists() or (here.root / OUT).read_bytes() == moved.after
        lives += 1
        assert lives < 30
    assert lives > 2
    moved.check(here, "killed again and again")


@forks
def test_ctrl_c_leaves_a_draft_and_no_state(moved: Moved, tmp_path: Path) -> None:
    here = moved.copy(tmp_path / "here")

    def child() -> int:
        at_call(4, [(Runtime, "_forward")], lambda *_: os.kill(os.getpid(), signal.SIGINT))
        result = moved.rebase(here, "--json")
        assert result.json["interrupted"]
        assert "there is no new state yet; run the same command again to continue" in result.err
        return result.code

    assert in_child(child) == 130
    assert not (here.root / OUT).exists()
    assert len(drafts.drafts(here.root / f"{OUT}.d")) >= 2
    moved.check(here, "Ctrl-C")


@forks
def test_an_edit_in_between_begins_anew(moved: Moved, tmp_path: Path) -> None:
    here = moved.copy(tmp_path / "here")
    assert in_child(moved.cut_short(here, 30, WORK)) == -signal.SIGKILL
    edit(here, [4])
    assert list(moved.rebase(here, "--json").json["statuses"]) == ["e1", "e3", "e4", "e5"]
    assert not drafts.drafts(here.root / f"{OUT}.d")


@forks
def test_another_new_base_in_between_begins_anew(moved: Moved, tmp_path: Path) -> None:
    here = moved.copy(tmp_path / "here")
    assert in_child(moved.cut_short(here, 30, WORK)) == -signal.SIGKILL
    other = tiny_llava(here.root / "other", text_layers=1, seed=5)
    assert run("rebase", here.model, other, "--state", here.sidecar, "-o", here.root / OUT).code == 3
    assert run("verify", other, "--state", here.root / OUT, "--deep").code == 0
    assert not drafts.drafts(here.root / f"{OUT}.d")
