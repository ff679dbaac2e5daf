"""A disk that is full while a sweep keeps its results: one error, whole files, the same bytes when it is run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.outputs import PART, Writer, full_at_every_step
from faults.tally import Tally
from support.helpers import World, forks, line, run

pytestmark = [forks, pytest.mark.slow]
SWEEP = 'editors = ["more"]\nmodels = ["{model}"]\nsuites = ["{suite}"]\n[settings]\nmax_steps = [1]\nlast = [1, 2]\n'


def test_results_are_whole_or_not_there(tmp_path: Path) -> None:
    world = World(tmp_path / "world", text_layers=2)
    suite = world.write([line(0), line(1)])
    start = tmp_path / "start" / "w"
    start.mkdir(parents=True)
    (start / "sweep.toml").write_text(SWEEP.format(model=world.model, suite=suite))
    cache = ("--cache", tmp_path / "cache")  # on another disk
    sweep = Writer("sweep", lambda folder: run("sweep", folder / "sweep.toml", "-o", folder / "out", *cache, "-q"))
    tally = Tally()
    full_at_every_step(sweep, start, tally, 8, 0)
    assert tally.total(PART).count
    assert not tally.found, tally.found
