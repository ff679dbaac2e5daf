"""Several processes on one state, and a clock that goes back."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from unittest import mock

from faults.disk import Step, Watch, kill_at, watched
from faults.kill import chosen, killed, steps_of
from faults.refuse import DONE
from faults.stream import Stream, attempt, judged, passes, refuses, unclear, whole_lines
from faults.tally import Problem, Tally, forked
from support.helpers import run, tree

SECOND, RACE, READER, CLOCK = "a second writer", "writers at once", "a reader during a write", "the clock goes back"


def second_writers(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """While a run is paused at a step, another run is refused and changes nothing."""
    for step, sidecar in _paused_runs(stream, "second", most, seed):

        def judge() -> list[Problem]:
            before = tree(sidecar.parent)
            problems = refuses("a second edit", lambda: stream.edit(sidecar), (5,))
            if tree(sidecar.parent) != before:
                problems.append(Problem("wrong state", "the refused writer has changed something"))
            return problems

        with _paused(stream, sidecar, step) as held:
            judged(tally, SECOND, step.kind, judge if held else lambda: [])
        judged(tally, SECOND, "the first goes on", lambda: stream.recovered(sidecar))
        shutil.rmtree(sidecar.parent)


def readers(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """While a run is paused at a step, a reader sees the state as of the last complete line."""
    merges = {count: _merge_of(stream, count) for count in range(len(stream.ids) + 1)}
    for step, sidecar in _paused_runs(stream, "read", most, seed):
        with _paused(stream, sidecar, step) as held:
            if not held:
                continue
            for name in ("verify", "status", "eval", "merge"):

                def judge() -> list[Problem]:
                    if not sidecar.exists():
                        return [] if name == "status" else refuses(name, lambda: _read(stream, name, sidecar), (5,))
                    before = tree(sidecar.parent)
                    problems = passes(name, lambda: _read(stream, name, sidecar))
                    if name == "merge" and _taken(_merged(sidecar)) != merges[len(whole_lines(sidecar))]:
                        problems.append(Problem("wrong state", "the merge is of another state than the ledger's"))
                    if tree(sidecar.parent) != before:
                        problems.append(Problem("wrong state", f"{name} has changed something"))
                    return problems

                judged(tally, READER, f"{name}, at {step.kind}", judge)
        judged(tally, READER, "the writer goes on", lambda: stream.recovered(sidecar))
        shutil.rmtree(sidecar.parent)


def races(stream: Stream, tally: Tally, count: int) -> None:
    """Three runs start at the same moment: refused runs report it, and the result is that of a single run."""
    for number in range(count):
        sidecar = stream.state(f"race-{number}")
        gate, start = os.pipe()
        children = [_at_the_gate(gate, start, lambda: _one_of_many(stream, sidecar)) for _ in range(3)]
        os.close(gate)
        os.close(start)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]

        def judge() -> list[Problem]:
            odd = [code for code in codes if code not in (DONE, 5)]
            problems = [Problem("unclear error", f"writers at once ended with {odd}")] if odd else []
            return problems + stream.recovered(sidecar)

        judged(tally, RACE, "three", judge)
        shutil.rmtree(sidecar.parent)


def clocks(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """Every reading of the clock is an hour before the last, files have any age, and the run is killed."""
    rng = random.Random(seed)
    counted = stream.state("counted-clock")
    for step in chosen(steps_of(counted.parent, lambda: stream.edit(counted)), most, seed):
        sidecar = stream.state(f"clock-{step.number}")
        with backwards():
            ended = killed(sidecar.parent, kill_at(step.number), lambda: stream.edit(sidecar))

        def judge() -> list[Problem]:
            for path in sidecar.parent.rglob("*"):
                os.utime(path, (rng.uniform(0, 4e9), rng.uniform(0, 4e9)))
            with backwards():
                return stream.recovered(sidecar)

        judged(tally, CLOCK, step.kind, judge, ended)
        shutil.rmtree(sidecar.parent)


def _read(stream: Stream, name: str, sidecar: Path) -> Any:
    if name == "verify":
        return stream.verify(sidecar)
    out = ("-o", _merged(sidecar), "-q") if name == "merge" else ()
    return run(name, stream.world.model, "--state", sidecar, *out)


def _merged(sidecar: Path) -> Path:
    return sidecar.parent.with_name(f"{sidecar.parent.name}-merged")


def _taken(folder: Path) -> dict[str, bytes | None]:
    found = _weights(folder) if folder.exists() else {}
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _merge_of(stream: Stream, count: int) -> dict[str, bytes | None]:
    """Return the weights of a merge after `count` edits."""
    sidecar = stream.state(f"prefix-{count}")
    out = sidecar.parent / "out"

    def make() -> int:
        if count:
            stream.edit(sidecar, "--limit", count)
        else:
            run("init", stream.world.model, "--state", sidecar, *stream.options[:4])
        return run("merge", stream.world.model, "--state", sidecar, "-o", out, "-q").code

    assert forked(make).value == 0
    return _weights(out)


def _weights(folder: Path) -> dict[str, bytes | None]:
    return {name: data for name, data in tree(folder).items() if name not in ("more.json", "README.md")}


def _paused_runs(stream: Stream, name: str, most: int | None, seed: int) -> Iterator[tuple[Step, Path]]:
    counted = stream.state(f"counted-{name}")
    steps = steps_of(counted.parent, lambda: stream.edit(counted))
    # From the lock's file to its removal a run must be alone.
    inside = [step for step in steps if step.what in ("image", "ledger", "sidecar") and step.change != "unlink"]
    for step in chosen(inside, most, seed):
        yield step, stream.state(f"{name}-{step.number}")


@contextmanager
def _paused(stream: Stream, sidecar: Path, step: Step) -> Iterator[bool]:
    """Start a run that pauses at one step until the block ends; yield whether it got there."""
    arrived, arrive = os.pipe()
    wait, go = os.pipe()

    def watch(at: Step) -> None:
        if at.number == step.number:
            os.write(arrive, b".")
            os.read(wait, 1)

    pid = os.fork()
    if pid == 0:
        _ended(lambda: _watched_edit(stream, sidecar, watch))
    os.close(arrive)
    try:
        yield os.read(arrived, 1) == b"."
    finally:
        os.write(go, b".")
        os.waitpid(pid, 0)
        for fd in (arrived, wait, go):
            os.close(fd)


def _watched_edit(stream: Stream, sidecar: Path, watch: Watch) -> int:
    with watched(sidecar.parent, watch):
        return stream.edit(sidecar).code


def _one_of_many(stream: Stream, sidecar: Path) -> int:
    result, problems = attempt("edit", lambda: stream.edit(sidecar))
    if result is None or (result.code != DONE and (problems or unclear("edit", result, (5,)))):
        return 1
    return result.code


def _at_the_gate(gate: int, start: int, action: Callable[[], int]) -> int:
    """Fork a process that begins once all writing ends of the gate are closed."""
    pid = os.fork()
    if pid == 0:
        os.close(start)
        os.read(gate, 1)
        _ended(action)
    return pid


def _ended(action: Callable[[], int]) -> None:
    code = 1
    try:
        code = action()
    finally:
        os._exit(code)


@contextmanager
def backwards() -> Iterator[None]:
    """Make the clock run backwards in this process and its forks."""

    class Backwards(datetime):
        hours = 0

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            cls.hours += 1
            return datetime.fromtimestamp(2e9 - 3600 * cls.hours, tz or UTC)

    real, began = time.time, time.time()

    def backwards() -> float:
        return 2 * began - real()

    with mock.patch("more_cli.store.ledger.datetime", Backwards), mock.patch("time.time", backwards):
        yield
