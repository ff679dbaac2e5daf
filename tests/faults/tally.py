"""Counts of faults and problems, and the page of results."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

SECONDS = 10.0
"""Most CPU time that a command or an input may take; on a busy machine wall time says little."""
WAIT = 120.0
"""Seconds of wall time after which a process counts as hanging."""
MEBIBYTES = 1024
"""Most memory that a command may hold."""
PROBLEMS = ("lost edit", "wrong state", "traceback", "hang", "memory", "unclear error", "silent change")


@dataclass(frozen=True)
class Problem:
    """One thing that must not happen."""

    kind: str
    """One of `PROBLEMS`."""
    text: str


@dataclass
class Ended:
    """How a forked process ended."""

    value: Any
    """What its function returned; None if it did not return."""
    code: int
    """Exit code, or minus the signal that ended it."""
    clock: float
    """Seconds of wall time."""
    seconds: float
    """Seconds of CPU time."""
    peak: int
    """Most memory it held, MiB."""
    hung: bool = False


def forked(action: Callable[[], Any], limit: float = WAIT) -> Ended:
    """Run in a fork, where everything is imported already; return its result, sent as JSON. Kill it after `limit`."""
    reading, writing = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.close(reading)
            found = json.dumps(action())
            with os.fdopen(writing, "w") as pipe:
                pipe.write(found)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    hung = _wait(pid, reading, limit)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(pid, 0)
    return Ended(
        json.loads(text) if text else None,
        os.waitstatus_to_exitcode(status),
        time.monotonic() - started,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss // 1024,
        hung,
    )


def _wait(pid: int, pipe: int, limit: float) -> bool:
    """Wait until the other end of a pipe is closed or written; kill the process if it takes longer, and return that."""
    import select

    ready, _, _ = select.select([pipe], [], [], limit)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    return not ready


@dataclass
class Row:
    """One kind of fault."""

    count: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Longest CPU time."""
    peak: int = 0
    """Most memory, MiB."""


@dataclass
class Tally:
    """Every fault of a run, by part and kind."""

    parts: dict[str, dict[str, Row]] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)
    """Every problem, in words."""
    notes: list[str] = field(default_factory=list)
    """Faults that this machine cannot produce."""
    inherited: int = 0
    """Memory, MiB, that a command inherits from the process that forks it; it does not count against the limit."""

    def add(
        self,
        part: str,
        kind: str,
        problems: Iterable[Problem] = (),
        *,
        count: int = 1,
        seconds: float = 0,
        peak: int = 0,
    ) -> None:
        """Count faults of a kind and their problems."""
        row = self.parts.setdefault(part, {}).setdefault(kind, Row())
        listed = list(problems)
        if seconds > SECONDS:
            listed.append(Problem("hang", f"{seconds:.1f} s"))
        if peak - self.inherited > MEBIBYTES:
            listed.append(Problem("memory", f"{peak} MiB"))
        row.count += count
        row.seconds, row.peak = max(row.seconds, seconds), max(row.peak, peak)
        for problem in listed:
            row.problems[problem.kind] += 1
            self.found.append(f"{part}, {kind}: {problem.kind}: {problem.text}")

    def total(self, part: str) -> Row:
        """Return the sum over all kinds of a part."""
        rows = self.parts.get(part, {}).values()
        problems = sum((row.problems for row in rows), Counter[str]())
        most = max((row.seconds for row in rows), default=0.0), max((row.peak for row in rows), default=0)
        return Row(sum(row.count for row in rows), problems, *most)


def page(tally: Tally, command: str, facts: str) -> str:
    """Return the page of a run in Markdown."""
    lines = [
        "# Faults",
        "",
        f"Written by `{command} --out tests/faults/RESULTS.md`. {facts}",
        "",
        _table("part", {name: tally.total(name) for name in tally.parts}),
        "",
        "A *lost edit* was on disk and is gone, or is there twice. A *wrong state* does not have the bytes of an "
        "undisturbed run after a rerun. A *silent change* was accepted and not detected by `more verify`. The longest "
        "time is CPU time, for one input or for the commands after one fault; memory is the peak of a process, all "
        "imports included.",
    ]
    for name, rows in tally.parts.items():
        lines += ["", f"## {name}", "", _table("kind", dict(sorted(rows.items())))]
    if tally.notes:
        lines += ["", "## Not done here", "", *(f"- {note}" for note in tally.notes)]
    if tally.found:
        lines += ["", "## Found", "", *(f"- {text}" for text in tally.found)]
    return "\n".join(lines) + "\n"


def _table(first: str, rows: dict[str, Row]) -> str:
    heads = (first, "faults or inputs", *(f"{kind}s" for kind in PROBLEMS[:-2]), *PROBLEMS[-2:], "longest, s", "MiB")
    heads = tuple(head.replace("memorys", "over 1 GiB") for head in heads)
    body = [
        (name, f"{row.count:,}", *(row.problems[kind] for kind in PROBLEMS), f"{row.seconds:.2f}", row.peak)
        for name, row in rows.items()
    ]
    table = [heads, ("---", *["---:"] * (len(heads) - 1)), *body]
    return "\n".join(f"| {' | '.join(str(cell) for cell in cells)} |" for cells in table)
