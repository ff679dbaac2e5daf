"""Trackers of experiments, for `--track`: what a run did goes to a service that its user named, beside the results.

A package adds a tracker with an entry point that names a class with these three methods:

    [project.entry-points."more.trackers"]
    mine = "my_package.tracker:Tracker"

Ids, statuses and numbers are sent; no question, answer, picture or path is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final, Protocol, TextIO

from more_cli.errors import DISTRIBUTION, UsageError, install_hint
from more_cli.system import plugins

GROUP: Final = "more.trackers"
"""Entry points of this group are trackers."""
WAITING = 10_000
"""Most values that wait for a slow tracker; later ones are dropped."""
CLOSE_SECONDS = 30.0
"""How long the end of a command waits for a tracker."""

Values = Mapping[str, float | int | str]


class Tracker(Protocol):
    """A service that keeps what runs did; made without arguments. All calls come from one thread of its own."""

    def start(self, name: str, facts: Values) -> None:
        """Begin a run: its name and what decided it."""

    def log(self, step: int, values: Values) -> None:
        """Keep the values of one step, from 1; texts such as a status are among them."""

    def finish(self, summary: Values) -> None:
        """Keep the summary and end the run."""


class Tracking:
    """Passes values on to a tracker in a thread of its own; its errors never reach the run."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self.problem = ""
        """What the tracker failed with, or that values were dropped."""
        self._tracker = tracker
        # A signal may raise while a call is passed on: no lock stays behind in this kind of queue.
        self._calls: SimpleQueue[tuple[str, tuple[Any, ...]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"tracker {name}")
        self._thread.start()

    def start(self, name: str, facts: Values) -> None:
        """See `Tracker.start`."""
        self._pass("start", name, dict(facts))

    def log(self, step: int, values: Values) -> None:
        """See `Tracker.log`."""
        self._pass("log", step, dict(values))

    def finish(self, summary: Values) -> None:
        """See `Tracker.finish`."""
        self._pass("finish", dict(summary))

    def close(self) -> None:
        """Wait until everything is passed on, but not for long."""
        self._calls.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self.problem = self.problem or f"it did not end within {CLOSE_SECONDS:.0f} s"

    def owns_thread(self) -> bool:
        """Return whether the tracker is what runs now."""
        return threading.current_thread() is self._thread

    def _pass(self, method: str, *arguments: Any) -> None:
        if self._calls.qsize() < WAITING:
            self._calls.put((method, arguments))
        else:
            self.problem = self.problem or "it is too slow, and values were dropped"

    def _work(self) -> None:
        failed = False
        while (call := self._calls.get()) is not None:
            if failed:
                continue  # the run goes on, so the queue must be emptied
            try:
                getattr(self._tracker, call[0])(*call[1])
            except (Exception, SystemExit) as error:  # somebody else's code and network
                failed = True
                self.problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def load_tracker(name: str) -> Tracker:
    """Import a tracker and make it.

    Raises:
        UsageError: no such tracker, or its package is not installed.
    """
    known = plugins.installed(GROUP)
    if name not in known:
        raise UsageError(f"no tracker `{name}`", f"name one of: {', '.join(known)}")
    point = plugins.find(GROUP, name)
    try:
        tracker: Tracker = plugins.load(point)()
    except ImportError as error:
        ours = plugins.owner_of(point) == DISTRIBUTION
        hint = install_hint(name) if ours else f"pip install {error.name}"
        raise UsageError(f"`--track {name}` needs the package `{error.name}`", hint) from error
    return tracker


@contextmanager
def tracking(name: str) -> Iterator[Tracking]:
    """Load a tracker and pass values on to it while the block runs; what it prints goes to standard error.

    Raises:
        UsageError: as `load_tracker`.
    """
    passed_on = Tracking(name, load_tracker(name))
    out = sys.stdout
    sys.stdout = _Aside(out, passed_on)
    try:
        yield passed_on
    finally:
        try:
            passed_on.close()
        finally:
            sys.stdout = out


class _Aside:
    """Standard output, but standard error to a tracker: a result is all that stdout has."""

    def __init__(self, out: TextIO, passed_on: Tracking) -> None:
        self._out = out
        self._passed_on = passed_on

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if self._passed_on.owns_thread() else self._out, name)
