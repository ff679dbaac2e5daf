"""Timing: named parts of the work report to a running clock, and what is due again after some time.

Without a running clock a part costs the check of one variable.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Clock(Protocol):
    """Measures parts, which can be nested."""

    def part(self, name: str, arguments: tuple[object, ...]) -> AbstractContextManager[None]:
        """Measure the block: a function called with these arguments."""


_running: Clock | None = None


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Report each call of the function to the running clock, as the part `name`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _running is None:
                return function(*args, **kwargs)
            with _running.part(name, args):
                return function(*args, **kwargs)

        return call

    return decorate


@contextmanager
def running(clock: Clock) -> Iterator[None]:
    """Use this clock for every part inside the block."""
    global _running  # noqa: PLW0603 (as an argument it would pass through every layer)
    before, _running = _running, clock
    try:
        yield
    finally:
        _running = before


class Every:
    """Returns true once per so many seconds or, if given, so many ticks, whichever comes first."""

    def __init__(self, seconds: float, ticks: float = math.inf) -> None:
        self.ticks, self.seconds = ticks, seconds
        self._count, self._since = 0, time.monotonic()

    def __call__(self) -> bool:
        """Count one tick and return whether it is time."""
        self._count += 1
        if self._count < self.ticks and time.monotonic() - self._since < self.seconds:
            return False
        self._count, self._since = 0, time.monotonic()
        return True
