"""The interface by which a command reports its progress."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable  # Python users hand one in, and it is checked
class Progress(Protocol):
    """Receives the progress of a command; the terminal decides what to show."""

    def __call__(self, done: int, total: int | None, text: str) -> None:
        """Report `done` of `total` units (None if unknown) and the current work in words."""


def no_progress(done: int, total: int | None, text: str) -> None:
    """Report nothing."""
