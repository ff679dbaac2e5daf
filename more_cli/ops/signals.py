"""Ending a stream early without losing anything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

Item = TypeVar("Item")


class Stop:
    """The first SIGINT or SIGTERM asks to stop after the edit at hand; a second one is obeyed at once."""

    def __init__(self) -> None:
        self.asked = False
        """Whether to stop."""
        self._waiting = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        at_once = self.asked or self._waiting
        self.asked = True
        if at_once:
            raise KeyboardInterrupt

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for another process inside the block: there the first signal is obeyed at once, and ends the block."""
        self._waiting = True
        try:
            with suppress(KeyboardInterrupt):
                yield
        finally:
            self._waiting = False

    def before_each(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield edits, or other work, until asked to stop, also while waiting for the next line of a stream."""
        while not self.asked:
            item = None
            with self.waiting():
                item = next(items, None)
            if item is None:
                return
            yield item


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Take the two signals over while the block runs."""
    stop = Stop()
    previous: dict[signal.Signals, Any] = {}
    try:
        for wanted in (signal.SIGINT, signal.SIGTERM):
            previous[wanted] = signal.signal(wanted, stop.ask)
    except ValueError:
        # Not the main thread: the caller's process handles signals its own way.
        pass
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
