"""Runs with and without a revert, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from support.helpers import Result, World, line, run

SMALL = ("--set", "last=1", "--set", "max_steps=2")
JOINT = (*SMALL, "--set", "criterion=margin", "--set", "joint.rounds=3")


class Runs:
    """Streams of the usual edits, each run once and copied from then on."""

    def __init__(self, root: Path) -> None:
        self.world = World(root, text_layers=1)
        self._made: dict[tuple[object, ...], World] = {}

    def of(self, numbers: Sequence[int], *options: object) -> World:
        key = (*numbers, *options)
        if key not in self._made:
            self._made[key] = world = self.at(self.world.root / f"run-{len(self._made)}")
            assert edit(world, numbers, *options).code in (0, 3)
        return self._made[key]

    def at(self, root: Path) -> World:
        """An empty folder with the model and the pictures."""
        here = World.at(root)
        shutil.copytree(self.world.root / "img", root / "img")
        here.model, here.sidecar, here.folder = self.world.model, root / "s.more", root / "s.more.d"
        return here


def begin(world: World, made: World) -> None:
    """Put a run that was made elsewhere here."""
    shutil.copyfile(made.sidecar, world.sidecar)
    shutil.copytree(made.folder, world.folder)


def edit(world: World, numbers: Sequence[int], *options: object, state: Path | None = None) -> Result:
    """Apply these edits of the usual stream."""
    stream = world.write([line(number) for number in numbers], "stream.jsonl")
    return world.edit(*options, "--state", state or world.sidecar, edits=stream)


def revert(world: World, *options: object) -> Result:
    return run("revert", world.model, *options, "--state", world.sidecar)


def left(world: World) -> set[str]:
    """What lies in the state's folder and belongs to an unfinished revert."""
    return {path.name for path in world.folder.iterdir()} - {"ledger.jsonl", "images", "cache", "snapshots", "lock"}
