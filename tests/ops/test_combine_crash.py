"""An interrupted `combine` leaves no new state or the whole one, and the same command ends with the same bytes."""

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
from more_cli.ops import assembly, drafts
from support.disk import DISK, WORK
from support.helpers import QUICK, Result, World, at_call, die, forks, in_child, run
from support.reverts import Runs, edit

OUT = "all.more"


class Two:
    """Two states with a common past, of which one reverted an edit, and the state of both together."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.world = runs, runs.at(runs.world.root / "two")
        a, b = (self.world.root / f"{name}.more" for name in "ab")
        edit(self.world, [0, 1, 2], *QUICK, state=a)
        shutil.copyfile(a, b)
        shutil.copytree(f"{a}.d", f"{b}.d")
        run("revert", self.world.model, "e2", "--state", b)
        edit(self.world, [3, 4], state=a)
        edit(self.world, [5], state=b)
        self.after = runs.of([0, 2, 3, 4, 5], *QUICK).sidecar.read_bytes()

    def copy(self, root: Path) -> World:
        here = self.runs.at(root)
        for path in self.world.root.glob("*.more*"):
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, root / path.name)
        return here

    def check(self, here: World, where: object) -> None:
        """Check what is left, then run the command again."""
        out = here.root / OUT
        if out.exists():
            assert out.read_bytes() == self.after, where
        again = combine(here)
        assert again.code == 3, (where, again.err)
        assert out.read_bytes() == self.after, where
        assert run("verify", here.model, "--state", out).code == 0, where
        assert not drafts.drafts(here.root / f"{OUT}.d"), where
        assert not [*here.root.glob(f".{OUT}*")], where


def combine(world: World, *options: object) -> Result:
    return run("combine", world.model, world.root / "a.more", world.root / "b.more", "-o", world.root / OUT, *options)


@pytest.fixture(scope="module")
def two(runs: Runs) -> Two:
    return Two(runs)


def cut_short(world: World, number: int, functions: list[tuple[Any, str]]) -> Callable[[], object]:
    """Return a combination that is killed at the n-th call of these functions; if not, it writes their number."""

    def child() -> object:
        calls = at_call(number, functions, die)
        result = combine(world)
        (world.root / "calls").write_text(str(calls()))
        return result

    return child


def calls(two: Two, root: Path, functions: list[tuple[Any, str]]) -> int:
    assert in_child(cut_short(two.copy(root / "counted"), 0, functions)) == 3
    return int((root / "counted" / "calls").read_text())


@forks
@pytest.mark.slow
def test_killed_before_any_write_to_the_disk(two: Two, tmp_path: Path) -> None:
    total = calls(two, tmp_path, DISK)
    for number in [*range(1, 20, 2), *range(total - 14, total + 1)]:
        here = two.copy(tmp_path / str(number))
        assert in_child(cut_short(here, number, DISK)) == -signal.SIGKILL
        two.check(here, f"killed before step {number} of {total}")


@forks
def test_killed_while_the_new_state_takes_its_place(two: Two, tmp_path: Path) -> None:
    total = calls(two, tmp_path, [(assembly, "drafts"), *DISK])
    for number in range(total - 8, total + 1):
        here = two.copy(tmp_path / str(number))
        assert in_child(cut_short(here, number, [(assembly, "drafts"), *DISK])) == -signal.SIGKILL
        two.check(here, f"killed before step {number} of {total}")


@forks
@pytest.mark.slow
def test_killed_at_random_moments(two: Two, tmp_path: Path) -> None:
    total = calls(two, tmp_path, WORK)
    for number in random.Random(0).sample(range(1, total), 8):
        here = two.copy(tmp_path / str(number))
        assert in_child(cut_short(here, number, WORK)) == -signal.SIGKILL
        two.check(here, f"killed at moment {number} of {total}")


@forks
def test_killed_again_and_again(two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "SAVE_EVERY", 1)
    here, lives = two.copy(tmp_path / "here"), 1
    while in_child(cut_short(here, 20, WORK)) == -signal.SIGKILL:
        assert not (here.root / OUT).exists() or (here.root / OUT).read_bytes() == two.after
        lives += 1
        assert lives < 30
    assert lives > 2
    two.check(here, "killed again and again")


@forks
def test_ctrl_c_leaves_a_draft_and_no_state(two: Two, tmp_path: Path) -> None:
    here = two.copy(tmp_path / "here")

    def child() -> int:
        at_call(4, [(Runtime, "_forward")], lambda *_: os.kill(os.getpid(), signal.SIGINT))
        result = combine(here, "--json")
        assert result.json["interrupted"]
        assert "there is no new state yet; run the same command again to continue" in result.err
        return result.code

    assert in_child(child) == 130
    assert not (here.root / OUT).exists()
    assert len(drafts.drafts(here.root / f"{OUT}.d")) >= 2
    assert "no state yet" in run("status", here.model, "--state", here.root / OUT).out
    two.check(here, "Ctrl-C")


@forks
def test_an_edit_of_a_source_in_between_begins_anew(two: Two, tmp_path: Path) -> None:
    here = two.copy(tmp_path / "here")
    assert in_child(cut_short(here, 30, WORK)) == -signal.SIGKILL
    edit(here, [6], state=here.root / "b.more")
    assert combine(here).code == 3
    assert (here.root / OUT).read_bytes() == two.runs.of([0, 2, 3, 4, 5, 6], *QUICK).sidecar.read_bytes()
    assert not drafts.drafts(here.root / f"{OUT}.d")


@forks
def test_a_folder_with_another_ledger_is_refused(two: Two, tmp_path: Path) -> None:
    here = two.copy(tmp_path / "here")
    shutil.copytree(here.root / "a.more.d", here.root / f"{OUT}.d")
    refused = combine(here)
    assert refused.code == 5
    assert "holds the ledger of another state" in refused.err
    assert not (here.root / OUT).exists()
