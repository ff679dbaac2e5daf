"""The folder of a sweep: one file for each finished job, and one file with the results of all.

`parts/KEY.json` is written when its job has finished; the next run does not start it again. `results.jsonl` has a line
for each job of the sweep, sorted by key: the same bytes wherever and in whatever order they ran. How long each took is
in `timings.jsonl` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from more_cli.errors import UsageError
from more_cli.files import add_line, disk_errors, replacing, write_whole
from more_cli.progress import Progress
from more_cli.store.lock import writer_lock
from more_cli.text import canonical_json, finite
from more_lab.sweep.jobs import Job, Outcome, Runner

PARTS, RESULTS, TIMINGS, LOCK = "parts", "results.jsonl", "timings.jsonl", "lock"
PAGES = ("report.html", "report.md")
FIGURE = "figure"
_OWN = {RESULTS, TIMINGS, LOCK, f"{LOCK}.pid", *PAGES, f"{FIGURE}.png", f"{FIGURE}.svg"}
"""Files that a sweep writes into its folder itself."""
_ELSEWHERE = "name an empty folder with -o"
WRITTEN = ("state", "written")
"""Values of a part that name what its job left in the folder."""


@dataclass(frozen=True)
class SweepFolder:
    """Where a sweep writes."""

    path: Path

    def check(self) -> None:
        """Refuse a folder of something else, in which a sweep would replace files.

        Raises:
            UsageError: it is not empty and holds no sweep, or is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"`{self.path}` is a file", _ELSEWHERE)
        with disk_errors(self.path):
            inside = list(self.path.iterdir()) if self.path.exists() else []
        # A sweep that finished no job has a lock and no parts: it is one if it has no file of something else.
        files = {path.name for path in inside if path.is_file() and not path.name.startswith(".")}
        if inside and not (self.path / PARTS).is_dir() and not (LOCK in files and files <= _OWN):
            raise UsageError(f"`{self.path}` is not empty and holds no sweep", _ELSEWHERE)

    def part(self, job: Job) -> dict[str, Any] | None:
        """Return the values of a finished job; None if there are none, or what it wrote is gone or has changed."""
        with suppress(OSError, ValueError):
            values = json.loads((self.path / PARTS / f"{job.key}.json").read_bytes())
            is_there = isinstance(values, dict) and all((self.path / values.get(name, "")).exists() for name in WRITTEN)
            if is_there and job.stands(values):
                return cast("dict[str, Any]", values)
        return None

    def keep(self, job: Job, outcome: Outcome) -> None:
        """Keep the values of a finished job, and how long it took."""
        path = self.path / PARTS / f"{job.key}.json"
        write_whole(path, f"{canonical_json(finite(outcome.values))}\n".encode())
        if outcome.seconds is not None:
            line = {"key": job.key, "label": job.label, "group": job.group, "seconds": round(outcome.seconds, 3)}
            add_line(self.path / TIMINGS, f"{canonical_json(line)}\n".encode())

    def times(self) -> dict[str, float]:
        """Return the median seconds of the finished jobs of each group."""
        found = dict[str, list[float]]()
        with suppress(OSError):
            for text in (self.path / TIMINGS).read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # a line that was cut off
                    line = json.loads(text)
                    found.setdefault(str(line["group"]), []).append(float(line["seconds"]))
        return {group: median(seconds) for group, seconds in found.items()}

    def write_results(self, lines: Mapping[str, Mapping[str, Any]]) -> None:
        """Write all results by key."""
        path = self.path / RESULTS
        with replacing(path) as scratch, disk_errors(path), open(scratch, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{canonical_json(finite({'key': key, **lines[key]}))}\n" for key in sorted(lines))


@dataclass(frozen=True)
class Done:
    """What became of the jobs of a sweep."""

    values: Mapping[str, dict[str, Any]]
    """Of every finished job by key, also of those that were finished before."""
    problems: Mapping[str, str]
    """Why a job failed, by label."""


def run_jobs(jobs: Sequence[Job], folder: SweepFolder, runner: Runner, progress: Progress) -> Done:
    """Run the jobs that are not finished yet, each key once, and keep each as it ends.

    Raises:
        StateError: another process writes into the folder, or it is not writable.
    """
    with disk_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    problems = {job.label: job.problem for job in jobs if job.problem}
    with writer_lock(folder.path / LOCK):
        missing = unfinished(jobs, folder)
        for number, (job, outcome) in enumerate(runner(missing, progress) if missing else (), 1):
            if outcome.values is None:
                problems[job.label] = outcome.problem
            else:
                folder.keep(job, outcome)
            progress(number, len(missing), job.label)
    values = {job.key: known for job in jobs if job.key and (known := folder.part(job)) is not None}
    return Done(values, problems)


def unfinished(jobs: Sequence[Job], folder: SweepFolder) -> list[Job]:
    """Return the jobs that can be run and are not finished, each key once."""
    found = {job.key: job for job in reversed(jobs) if job.key and folder.part(job) is None}
    return list(reversed(found.values()))
