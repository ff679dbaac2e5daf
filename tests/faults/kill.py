"""kill -9: before and after every step of a commit, in the middle of a write, and at any moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

from faults.disk import Step, Watch, kill_at, recording, watched
from faults.stream import Stream, judged, passes
from faults.tally import Ended, Problem, Tally, forked
from support.helpers import Result, run, tree

STEPS = "kill -9 at a step"
HALVES = "kill -9 inside a write"
MOMENTS = "kill -9 at any moment"
MERGES = "kill -9 in a merge"


def steps_of(root: Path, command: Callable[[], object]) -> list[Step]:
    """Return every step that an undisturbed command takes below a folder."""

    def record() -> list[object]:
        steps: list[Step] = []
        with watched(root, recording(steps)):
            command()
        return [astuple(step) for step in steps]

    return [Step(*values) for values in forked(record).value]


def killed(root: Path, watch: Watch, command: Callable[[], object]) -> Ended:
    """Run a command that is killed by a watch."""

    def meet() -> None:
        with watched(root, watch):
            command()

    return forked(meet)


def chosen(steps: Sequence[Step], most: int | None, seed: int) -> list[Step]:
    """Return all steps, or `most` of them spread over all kinds."""
    if most is None or most >= len(steps):
        return list(steps)
    mixed = random.Random(seed).sample(steps, len(steps))
    rank: dict[int, int] = {}
    seen: dict[tuple[str, bool], int] = {}
    for step in mixed:
        rank[step.number] = seen[step.kind, step.after] = seen.get((step.kind, step.after), 0) + 1
    return sorted(sorted(mixed, key=lambda step: rank[step.number])[:most], key=lambda step: step.number)


def at_every_step(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """Kill a run at each of its steps, also while it creates the state."""
    counted = stream.state("counted")
    steps = steps_of(counted.parent, lambda: stream.edit(counted))
    halves = [step for step in steps if step.change == "write" and not step.after and step.size > 1]
    for part, half, some in (
        (STEPS, False, chosen(steps, most, seed)),
        (HALVES, True, chosen(halves, most and most // 4, seed)),
    ):
        for step in some:
            sidecar = stream.state(f"killed-{step.number}{'-half' * half}")
            ended = killed(sidecar.parent, kill_at(step.number, half=half), lambda: stream.edit(sidecar))
            _after_death(stream, tally, part, step.kind, sidecar, ended)


def at_any_moment(stream: Stream, tally: Tally, count: int, seed: int) -> None:
    """Kill a run at random times; every fifth time also the run that recovers."""
    rng = random.Random(seed)
    for number in range(count):
        sidecar = stream.state(f"moment-{number}")
        for _ in range(2 if number % 5 == 0 else 1):
            ended = _killed_after(rng.uniform(0.05, 1.0) * stream.clock, lambda: stream.edit(sidecar))
        _after_death(stream, tally, MOMENTS, "by the clock", sidecar, ended, needed=False)


def in_a_merge(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """Kill `merge`: its folder is complete or absent, and the next merge cleans up."""
    sidecar = stream.state("merged")
    stream.edit(sidecar)
    root = sidecar.parent

    def merge(name: str) -> Result:
        return run("merge", stream.world.model, "--state", sidecar, "-o", root / name / "out", "--force", "-q")

    for name in ("counted", "whole"):
        (root / name).mkdir()
    steps = steps_of(root / "counted", lambda: merge("counted"))
    forked(lambda: merge("whole").code)
    whole = tree(root / "whole")
    for step in chosen(steps, most, seed):
        name = f"killed-{step.number}"
        shutil.copytree(root / "whole", root / name)  # so that there is something to replace
        ended = killed(root / name, kill_at(step.number), lambda: merge(name))

        def judge() -> list[Problem]:
            there = tree(root / name / "out") if (root / name / "out").exists() else None
            problems = passes("merge", lambda: merge(name))
            if there is not None and there != {k[4:]: v for k, v in whole.items() if k.startswith("out/")}:
                problems.append(Problem("wrong state", f"killed {step.title}: half a merge was there"))
            if tree(root / name) != whole:
                problems.append(Problem("wrong state", f"killed {step.title}: another merge gives another folder"))
            return problems

        judged(tally, MERGES, step.kind, judge, ended)
        shutil.rmtree(root / name)


def _after_death(
    stream: Stream, tally: Tally, part: str, kind: str, sidecar: Path, ended: Ended, *, needed: bool = True
) -> None:
    def judge() -> list[Problem]:
        missed = [Problem("wrong state", f"was not killed ({ended.code})")] if needed and _lived(ended) else []
        return missed + stream.recovered(sidecar)

    judged(tally, part, kind, judge, ended)
    shutil.rmtree(sidecar.parent)


def _lived(ended: Ended) -> bool:
    return ended.code != -signal.SIGKILL


def _killed_after(seconds: float, command: Callable[[], object]) -> Ended:
    started, pid = time.monotonic(), os.fork()
    if pid == 0:
        try:
            command()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # if it has ended before, it is a zombie
    _, status, usage = os.wait4(pid, 0)
    spent = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    return Ended(None, code, time.monotonic() - started, spent, usage.ru_maxrss // 1024)
