"""Where time goes: parts of the work carry a name, and a clock that somebody started hears it.

Without a clock a part costs one look at a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Clock(Protocol):
    """Measures parts, which may lie inside each other."""

    def part(self, name: str, arguments: tuple[object, ...]) -> AbstractContextManager[None]:
        """Measure what runs inside: a function called with these arguments."""


_running: Clock | None = None


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function count as the part `name` of whatever clock runs."""

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
    """Let a clock hear every part inside."""
    global _running  # noqa: PLW0603 (handed through every layer, it would be an argument of all of them)
    before, _running = _running, clock
    try:
        yield
    finally:
        _running = before
