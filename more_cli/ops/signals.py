"""Stopping a stream early without losing anything."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TypeVar

Item = TypeVar("Item")


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal as Ctrl-C is handled."""
    leave_terminal(number)
    raise KeyboardInterrupt


def ending() -> list[signal.Signals]:
    """Return the signals by which a system ends a program.

    SIGHUP, of a terminal that closes, is one unless it means something else: `nohup` ignores it, and daemons that
    import us may read their settings again.
    """
    closed = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # not on Windows
    return [signal.SIGTERM, *(each for each in closed if signal.getsignal(each) in (signal.SIG_DFL, interrupt))]


def leave_terminal(number: int) -> None:
    """After SIGHUP discard what is written to the terminal: it was closed, and refuses all that is written."""
    if signal.Signals(number).name == "SIGHUP":
        for stream in (1, 2):
            with suppress(OSError):  # closed before
                if stat.S_ISCHR(os.fstat(stream).st_mode):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


class Interrupted(Exception):
    """A signal ended work whose result cannot be kept."""


class Stop:
    """The first SIGINT, SIGTERM or SIGHUP asks to stop after the current edit; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        """Whether to stop."""
        self._waiting = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        leave_terminal(number)
        at_once = self.asked or self._waiting
        self.asked = True
        if at_once:
            raise KeyboardInterrupt

    def waiting(self, call: Callable[[], Item]) -> Item | None:
        """Call a function and return its result; the first signal ends it at once, and the result is None.

        It is for what waits for another process, or can be made again. All is in one frame: a signal can also raise on
        the way into a `with` block or out of it, where nothing would catch it.
        """
        try:
            self._waiting = True
            return call()
        except KeyboardInterrupt:
            return None
        finally:
            self._waiting = False

    def before_each(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items until asked to stop; a signal also ends the wait for the next item."""
        left = iter(items)
        while not self.asked:
            item = self.waiting(lambda: next(left, None))
            if item is None:
                return
            yield item


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Handle these signals while the block runs."""
    stop = Stop()
    previous: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, *ending()):
            previous[number] = signal.signal(number, stop.ask)
    except ValueError:
        # Not the main thread: the caller's process handles signals its own way.
        pass
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
