"""Where a command reports how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears how far a command is; the terminal decides what to show."""

    def __call__(self, done: int, total: int | None, text: str) -> None:
        """Report `done` of `total` units (None when unknown) and what is being worked on."""


def no_progress(done: int, total: int | None, text: str) -> None:
    """Report nothing."""
