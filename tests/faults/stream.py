"""A stream of edits on a tiny model, the result of an undisturbed run, and the comparison of any other run with it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from faults.tally import WAIT, Ended, Problem, Tally, forked
from support.helpers import COLOURS, QUICK, Result, World, line, run

VOLATILE = {"time", "wall_ms", "prev", "check", "versions"}
"""Ledger fields that may differ in a second run of the same edits."""


class Stream:
    """Edits of one world, written repeatedly from the same start into separate states."""

    def __init__(self, root: Path, count: int, save_every: int) -> None:
        self.world = World(root, text_layers=1, shards=2)
        self.ids = [f"e{number}" for number in range(count)]
        # Every third is asked of text alone, so that runs are short; all are different.
        self.world.write(
            line(number % len(COLOURS), id=id, question=f"what colour is it {number} ?")
            if number % 3
            else {"id": id, "question": f"what colour is number {number} ?", "target": "r"}
            for number, id in enumerate(self.ids)
        )
        self.options = (*QUICK, "--save-every", save_every)
        sidecar = self.state("undisturbed")
        self.clock = forked(lambda: self.edit(sidecar).code).clock
        self.kept = kept(sidecar)
        assert [entry["id"] for entry in self.kept[1]] == self.ids

    def state(self, name: str) -> Path:
        """Return the path of the state of that name, in its own folder."""
        folder = self.world.root / "states" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "s.more"

    def edit(self, sidecar: Path, *options: object) -> Result:
        return self.world.edit(*self.options, "--state", sidecar, *options)

    def verify(self, sidecar: Path, *options: object) -> Result:
        return run("verify", self.world.model, "--state", sidecar, *options)

    def recovered(self, sidecar: Path, acknowledged: int = 0) -> list[Problem]:
        """Return the problems of a state after a fault: as it is, and after the stream was run again."""
        problems: list[Problem] = []
        before = whole_lines(sidecar)
        if len(before) < acknowledged:
            problems.append(Problem("lost edit", f"{acknowledged} were on disk, {len(before)} are left"))
        if sidecar.exists():
            problems += passes("verify", lambda: self.verify(sidecar))
        problems += passes("edit", lambda: self.edit(sidecar), codes=(3,))
        if problems:
            return problems
        if whole_lines(sidecar)[: len(before)] != before:
            problems.append(Problem("lost edit", "a line of the ledger was changed"))
        problems += self.differences(sidecar)
        return problems + passes("verify", lambda: self.verify(sidecar))

    def differences(self, sidecar: Path) -> list[Problem]:
        """Return the differences from the undisturbed run."""
        (state, entries, images), found = self.kept, kept(sidecar)
        problems = []
        ids = [entry["id"] for entry in found[1]]
        if ids != self.ids:
            problems.append(Problem("lost edit", f"the ledger holds {ids}"))
        elif found[1] != entries:
            problems.append(Problem("wrong state", "the ledger tells an edit otherwise"))
        if found[0] != state:
            problems.append(Problem("wrong state", "the sidecar has other bytes"))
        if found[2] != images:
            problems.append(Problem("wrong state", f"the image store has {sorted(found[2])}"))
        left = [path.name for path in sidecar.parent.rglob(".*")]
        return problems + ([Problem("wrong state", f"files left behind: {left}")] if left else [])


def beside(sidecar: Path) -> Path:
    """Return the folder of ledger and images."""
    return sidecar.with_name(f"{sidecar.name}.d")


Kept = tuple[bytes, list[dict[str, Any]], dict[str, bytes]]


def kept(sidecar: Path) -> Kept:
    """Return what every run must leave equal: sidecar, ledger without times, images."""
    folder = beside(sidecar)
    entries = [json.loads(text) for text in whole_lines(sidecar)]
    images = {path.name: path.read_bytes() for path in (folder / "images").iterdir() if path.name != ".part"}
    steady = [{name: value for name, value in entry.items() if name not in VOLATILE} for entry in entries]
    return sidecar.read_bytes(), steady, images


def whole_lines(sidecar: Path) -> list[bytes]:
    """Return the complete lines of the ledger."""
    path = beside(sidecar) / "ledger.jsonl"
    return (
        [text for text in path.read_bytes().splitlines(keepends=True) if text.endswith(b"\n")] if path.exists() else []
    )


def passes(name: str, command: Callable[[], Result], codes: Iterable[int] = (0,)) -> list[Problem]:
    """Run a command that must succeed."""
    result, problems = attempt(name, command)
    if result is not None and result.code not in codes:
        problems.append(Problem("wrong state", f"{name}: exit code {result.code}: {last(result.err or result.out)}"))
    return problems


def refuses(name: str, command: Callable[[], Result], codes: Iterable[int]) -> list[Problem]:
    """Run a command that must fail with a clear error."""
    result, problems = attempt(name, command)
    return problems if result is None else problems + unclear(name, result, codes, spoken=name == "verify")


def unclear(name: str, result: Result, codes: Iterable[int], *, spoken: bool = False) -> list[Problem]:
    """Return the problems with a refusal; a command that reports (`spoken`) may write to standard output."""
    said = result.err.splitlines()
    good = result.code in codes and (spoken or not result.out) and any(text.startswith("error: ") for text in said)
    return [] if good else [Problem("unclear error", f"{name}: exit code {result.code}: {last(result.err)}")]


def attempt(name: str, command: Callable[[], Result]) -> tuple[Result | None, list[Problem]]:
    """Run a command; an exception is a bug."""
    try:
        return command(), []
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return None, [Problem("traceback", f"{name}: {type(error).__name__}: {last(str(error))} ({where})")]


def last(text: str) -> str:
    """Return the end of a message, on one line."""
    return " / ".join(text.strip().splitlines()[-2:])[-200:]


def judged(tally: Tally, part: str, kind: str, judge: Callable[[], list[Problem]], first: Ended | None = None) -> None:
    """Judge in a fork and count the result; `first` is the process that met the fault."""
    ended = forked(lambda: [[problem.kind, problem.text] for problem in judge()])
    problems = [Problem(*pair) for pair in ended.value] if ended.value is not None else []
    for process in (first, ended):
        if process is not None and process.hung:
            problems.append(Problem("hang", f"killed after {WAIT:.0f} s"))
    if ended.value is None and not ended.hung:
        problems.append(Problem("traceback", f"the judge ended with {ended.code}"))
    slowest = max(ended.seconds, first.seconds if first else 0.0)
    tally.add(part, kind, problems, seconds=slowest, peak=max(ended.peak, first.peak if first else 0))
