"""`--track`: what an edit or a run on a suite sends to a tracker."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from more_cli import __version__
from more_cli.cli.output import Output
from more_cli.options import TrackOptions

if TYPE_CHECKING:
    from more_cli.ops.edit import EditReport, Listener
    from more_cli.ops.tracking import Tracking
    from more_cli.runner.report import SuiteReport
    from more_cli.store.entry import Entry
    from more_cli.store.status import Status


@contextmanager
def tracked(output: Output, options: TrackOptions) -> Iterator[Tracking | None]:
    """Pass values on to the tracker that was named while the block runs; None if none was.

    Raises:
        UsageError: no such tracker, or its package is not installed.
    """
    if options.track is None:
        yield None
        return
    from more_cli.ops.tracking import tracking

    passed_on = None
    try:
        with tracking(options.track) as passed_on:
            yield passed_on
    finally:
        if passed_on is not None and passed_on.problem:
            output.note(f"warning: tracker `{passed_on.name}` failed, and the run did not: {passed_on.problem}")


def tracks_edits(to: Tracking, other: Listener) -> Listener:
    """Return what passes every new edit on to a tracker, and everything to another listener."""
    from more_cli.ops.edit import Listener

    class Tracked(Listener):
        def edited(self, entry: Entry, status: Status, *, new: bool, supersedes: Sequence[str] = ()) -> None:
            if new:
                values = {"nll_before": entry.nll_before, "nll_after": entry.nll_after, "writes": entry.writes}
                to.log(entry.seq, {"id": entry.id, "status": str(status), **_known(values | {"ms": entry.wall_ms})})
            other.edited(entry, status, new=new, supersedes=supersedes)

        problem = other.problem
        compacting = other.compacting

    return Tracked()


def start_edits(to: Tracking, name: str) -> None:
    """Begin a run of edits."""
    to.start(name, {"command": "more edit", "more": __version__})


def finish_edits(to: Tracking, report: EditReport) -> None:
    """End a run of edits with its counts."""
    counts = {"applied": report.applied, "skipped": report.skipped, "seconds": report.wall_seconds}
    to.finish(counts | {name.replace("-", "_"): count for name, count in report.counts.items()})


def track_suite(to: Tracking, report: SuiteReport, command: str) -> None:
    """Pass on a finished run on a suite: a step per edit, and the metrics as its summary."""
    to.start(f"{report.suite.name}-{report.editor}", {"command": command, "editor": report.editor, "more": __version__})
    for line in report.lines[: len(report.edits)]:
        outcome = line["outcome"]
        values = {name: outcome[name] for name in ("nll_before", "nll_after", "writes")}
        known = _known(values | {"ms": 1000 * line["seconds"]})
        to.log(line["t"], {"id": line["id"], "status": str(outcome["status"]), **known})
    to.finish(_known({name: estimate.value for name, estimate in report.gated.items()}))


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
