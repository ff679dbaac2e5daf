"""An interrupted `combine` or `rebase` leaves no new state or the whole one, and the same command ends alike."""

from __future__ import annotations

import os
import random
import shutil
import signal
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

from more_cli.model.runtime import Runtime
from more_cli.ops import assembly, drafts
from support.disk import DISK, WORK
from support.helpers import QUICK, Result, World, at_call, cut_short, forks, in_child, line, run
from support.reverts import Runs, edit
from support.tiny import tiny_llava

OUT = "new.more"


class Built(ABC):
    """What a new state is made of, and the state that it should be."""

    world: World
    model: Path
    """Base of the new state."""
    after: bytes

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    @abstractmethod
    def build(self, world: World, *options: object) -> Result:
        """Make the new state."""

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
        again = self.build(here)
        assert again.code == 3, (where, again.err)
        assert out.read_bytes() == self.after, where
        assert run("verify", self.model, "--state", out).code == 0, where
        assert not drafts.drafts(here.root / f"{OUT}.d"), where
        assert not [*here.root.glob(f".{OUT}*")], where

    def cut(self, here: World, number: int, functions: list[tuple[Any, str]]) -> int:
        """Make it in a fork that is killed at the n-th call of these functions."""
        return cut_short(lambda: self.build(here), here.root, number, functions)

    def calls(self, root: Path, functions: list[tuple[Any, str]]) -> int:
        assert self.cut(self.copy(root / "counted"), 0, functions) == 3
        return int((root / "counted" / "calls").read_text())


class Two(Built):
    """Two states with a common past, of which one reverted an edit, and the state of both together."""

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs)
        self.world = runs.at(runs.world.root / "two")
        self.model = self.world.model
        a, b = (self.world.root / f"{name}.more" for name in "ab")
        edit(self.world, [0, 1, 2], *QUICK, state=a)
        shutil.copyfile(a, b)
        shutil.copytree(f"{a}.d", f"{b}.d")
        run("revert", self.world.model, "e2", "--state", b)
        edit(self.world, [3, 4], state=a)
        edit(self.world, [5], state=b)
        self.after = runs.of([0, 2, 3, 4, 5], *QUICK).sidecar.read_bytes()

    def build(self, world: World, *options: object) -> Result:
        sources = (world.root / "a.more", world.root / "b.more")
        return run("combine", world.model, *sources, "-o", world.root / OUT, *options)


class Moved(Built):
    """A state with a reverted edit, a new version of its base, and the state of the other edits there."""

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs)
        self.world = runs.at(runs.world.root / "moved")
        self.model = tiny_llava(self.world.root / "new", text_layers=1, seed=3)
        edit(self.world, [0, 1, 2, 3], *QUICK)
        run("revert", self.world.model, "e2", "--state", self.world.sidecar)
        once = self.world.root / "once"
        stream = self.world.write([line(number) for number in (0, 2, 3)], "once.jsonl")
        run("edit", self.model, stream, "--state", once, *QUICK)
        self.after = once.read_bytes()

    def build(self, world: World, *options: object) -> Result:
        state = ("--state", world.sidecar, "-o", world.root / OUT)
        return run("rebase", world.model, self.model, *state, *options)


@pytest.fixture(scope="module")
def two(runs: Runs) -> Two:
    return Two(runs)


@pytest.fixture(scope="module")
def moved(runs: Runs) -> Moved:
    return Moved(runs)


@pytest.fixture(params=["two", "moved"])
def built(request: pytest.FixtureRequest) -> Built:
    found: Built = request.getfixturevalue(request.param)
    return found


@forks
@pytest.mark.slow
def test_killed_before_any_write_to_the_disk(built: Built, tmp_path: Path) -> None:
    total = built.calls(tmp_path, DISK)
    for number in [*range(1, 20, 2), *range(total - 14, total + 1)]:
        here = built.copy(tmp_path / str(number))
        assert built.cut(here, number, DISK) == -signal.SIGKILL
        built.check(here, f"killed before step {number} of {total}")


@forks
def test_killed_while_the_new_state_takes_its_place(built: Built, tmp_path: Path) -> None:
    steps = [(assembly, "drafts"), *DISK]
    total = built.calls(tmp_path, steps)
    for number in range(total - 8, total + 1):
        here = built.copy(tmp_path / str(number))
        assert built.cut(here, number, steps) == -signal.SIGKILL
        built.check(here, f"killed before step {number} of {total}")


@forks
@pytest.mark.slow
def test_killed_at_random_moments(built: Built, tmp_path: Path) -> None:
    total = built.calls(tmp_path, WORK)
    for number in random.Random(0).sample(range(1, total), 8):
        here = built.copy(tmp_path / str(number))
        assert built.cut(here, number, WORK) == -signal.SIGKILL
        built.check(here, f"killed at moment {number} of {total}")


@forks
def test_killed_again_and_again(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "SAVE_EVERY", 1)
    here, lives = built.copy(tmp_path / "here"), 1
    while built.cut(here, 20, WORK) == -signal.SIGKILL:
        assert not (here.root / OUT).exists() or (here.root / OUT).read_bytes() == built.after
        lives += 1
        assert lives < 30
    assert lives > 2
    built.check(here, "killed again and again")


@forks
def test_ctrl_c_leaves_a_draft_and_no_state(built: Built, tmp_path: Path) -> None:
    here = built.copy(tmp_path / "here")

    def child() -> int:
        at_call(4, [(Runtime, "_forward")], lambda *_: os.kill(os.getpid(), signal.SIGINT))
        result = built.build(here, "--json")
        assert result.json["interrupted"]
        assert "there is no new state yet; run the same command again to continue" in result.err
        return result.code

    assert in_child(child) == 130
    assert not (here.root / OUT).exists()
    assert len(drafts.drafts(here.root / f"{OUT}.d")) >= 2
    assert "no state yet" in run("status", built.model, "--state", here.root / OUT).out
    built.check(here, "Ctrl-C")


@forks
def test_an_edit_of_a_source_in_between_begins_anew(two: Two, tmp_path: Path) -> None:
    here = two.copy(tmp_path / "here")
    assert two.cut(here, 30, WORK) == -signal.SIGKILL
    edit(here, [6], state=here.root / "b.more")
    assert two.build(here).code == 3
    assert (here.root / OUT).read_bytes() == two.runs.of([0, 2, 3, 4, 5, 6], *QUICK).sidecar.read_bytes()
    assert not drafts.drafts(here.root / f"{OUT}.d")


@forks
def test_a_folder_with_another_ledger_is_refused(two: Two, tmp_path: Path) -> None:
    here = two.copy(tmp_path / "here")
    shutil.copytree(here.root / "a.more.d", here.root / f"{OUT}.d")
    refused = two.build(here)
    assert refused.code == 5
    assert "holds the ledger of another state" in refused.err
    assert not (here.root / OUT).exists()


@forks
def test_an_edit_in_between_begins_anew(moved: Moved, tmp_path: Path) -> None:
    here = moved.copy(tmp_path / "here")
    assert moved.cut(here, 30, WORK) == -signal.SIGKILL
    edit(here, [4])
    assert list(moved.build(here, "--json").json["statuses"]) == ["e1", "e3", "e4", "e5"]
    assert not drafts.drafts(here.root / f"{OUT}.d")


@forks
def test_another_new_base_in_between_begins_anew(moved: Moved, tmp_path: Path) -> None:
    here = moved.copy(tmp_path / "here")
    assert moved.cut(here, 30, WORK) == -signal.SIGKILL
    other = tiny_llava(here.root / "other", text_layers=1, seed=5)
    assert run("rebase", here.model, other, "--state", here.sidecar, "-o", here.root / OUT).code == 3
    assert run("verify", other, "--state", here.root / OUT, "--deep").code == 0
    assert not drafts.drafts(here.root / f"{OUT}.d")
