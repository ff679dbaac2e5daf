"""The parts of the harness, in order, and the page of their results."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from faults import damage, fuzz, kill, outputs, power, refuse, together
from faults.stream import Stream
from faults.tally import Tally, page

FUZZED = float(os.environ.get("MORE_FUZZ_SECONDS", "1"))
"""Seconds per parser in the short form: about half a minute for all."""
PAGE = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True)
class Size:
    """How many faults of each kind are injected."""

    steps: int | None
    """Steps at which a run is killed, or its disk refuses; None for all."""
    pauses: int
    """Steps at which a run is paused while other processes start, or the clock goes back."""
    edits: int
    """Edits of the run that is killed at random times."""
    moments: int
    """How often it is killed."""
    cuts: int | None
    """Disks that a power cut may leave; None for all."""
    disks: int
    """Small disks that fill up."""
    races: int
    examples: int
    """Changes of each kind of file."""
    seconds: float
    """How long each parser is fuzzed."""


SHORT = Size(steps=6, pauses=2, edits=12, moments=3, cuts=8, disks=1, races=1, examples=4, seconds=FUZZED)
FULL = Size(steps=None, pauses=16, edits=50, moments=200, cuts=None, disks=16, races=10, examples=60, seconds=60)

Part = Callable[[Tally], object]


def parts(size: Size, seed: int, root: Path) -> dict[str, Part]:
    """Return every part of the harness by name; they share their streams."""

    @cache
    def stream(count: int, save_every: int) -> Stream:
        return Stream(root / f"stream-{count}-{save_every}", count, save_every)

    return {
        "fuzz": lambda tally: fuzz.fuzzed(stream(4, 2), tally, size.seconds, seed),
        "power": lambda tally: power.at_every_step(stream(4, 2), tally, size.cuts, seed),
        "kill": lambda tally: kill.at_every_step(stream(4, 2), tally, size.steps, seed),
        "merge": lambda tally: kill.in_a_merge(stream(4, 2), tally, size.steps, seed),
        "refuse": lambda tally: refuse.at_every_step(stream(2, 1), tally, size.steps and size.steps // 2, seed),
        "disk": lambda tally: refuse.on_a_small_disk(stream(4, 2), tally, size.disks),
        "outputs": lambda tally: outputs.at_every_step(stream(2, 1), tally, size.steps and size.steps // 2, seed),
        "second": lambda tally: together.second_writers(stream(2, 1), tally, size.pauses, seed),
        "readers": lambda tally: together.readers(stream(2, 1), tally, size.pauses, seed),
        "races": lambda tally: together.races(stream(2, 1), tally, size.races),
        "clock": lambda tally: together.clocks(stream(2, 1), tally, size.pauses, seed),
        "damage": lambda tally: damage.spoilt_files(stream(4, 2), tally, size.examples, seed),
        "moments": lambda tally: kill.at_any_moment(stream(size.edits, 5), tally, size.moments, seed),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the harness from a shell; exit 1 if it found a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Injects faults into a running `more`.")
    parser.add_argument("--full", action="store_true", help="the full form, about an hour (default: the short form)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=(), help="parts to run")
    parser.add_argument("--out", type=Path, help=f"file for the page ({PAGE.name}) (default: standard output)")
    asked = parser.parse_args(argv)
    command = f"python -m tests.faults{' --full' * asked.full}{f' --seed {asked.seed}' * bool(asked.seed)}"
    tally, began, text = Tally(), time.monotonic(), ""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="more-faults-") as folder:
        for name, part in parts(FULL if asked.full else SHORT, asked.seed, Path(folder)).items():
            if asked.only and name not in asked.only:
                continue
            started = time.monotonic()
            part(tally)
            print(f"{name}: {time.monotonic() - started:.0f} s, {len(tally.found)} found so far", file=sys.stderr)
            text = page(tally, command, _facts(asked.seed, time.monotonic() - began))
            if asked.out:
                asked.out.write_text(text, encoding="utf-8")
    if not asked.out:
        print(text)
    return 1 if tally.found else 0


def _facts(seed: int, seconds: float) -> str:
    machine = f"Python {platform.python_version()}, torch {torch.__version__}, {platform.system()}"
    return f"{machine}; {seconds / 60:.0f} minutes, seed {seed}."
