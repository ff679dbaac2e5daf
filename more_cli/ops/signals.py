"""Stopping a stream early without losing anything."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

Item = TypeVar("Item")


class Interrupted(Exception):
    """A signal ended work whose result cannot be kept."""


class Stop:
    """The first SIGINT or SIGTERM asks to stop after the current edit; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        """Whether to stop."""
        self._waiting = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        at_once = self.asked or self._waiting
        self.asked = True
        if at_once:
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Run a block that waits for another process: the first signal ends it at once."""
        self._waiting = True
        try:
            with suppress(KeyboardInterrupt):
                yield
        finally:
            self._waiting = False

    def before_each(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items until asked to stop; a signal also ends the wait for the next item."""
        left = iter(items)
        while not self.asked:
            item = None
            with self.waiting():
                item = next(left, None)
            if item is None:
                return
            yield item


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Handle the two signals while the block runs."""
    stop = Stop()
    previous: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, stop.ask)
    except ValueError:
        # Not the main thread: the caller's process handles signals its own way.
        pass
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
