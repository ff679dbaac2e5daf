"""Failing calls, forks and masks for tests of what reaches the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from more_cli import files
from more_cli.editors.more.sites import Sites
from more_cli.model.runtime import Runtime
from more_cli.ops.session import Session

DISK = [(files, name) for name in ("_write", "_fsync", "_rename", "_truncate")]
"""Every function through which a commit step reaches the disk."""
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX only")


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int, failure: Callable[[], None]) -> list[str]:
    """Call ``failure`` instead of the ``step``-th system call (from 1); return the names of all calls made."""
    calls: list[str] = []

    def wrapped(name: str) -> Callable[..., object]:
        real = getattr(files, name)

        def call(*arguments: object) -> object:
            calls.append(name)
            if len(calls) == step:
                failure()
            return real(*arguments)

        return call

    for _, name in DISK:
        monkeypatch.setattr(files, name, wrapped(name))
    return calls


def raising(number: int) -> Callable[[], None]:
    def failure() -> None:
        raise OSError(number, os.strerror(number))

    return failure


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


WORK = [(Runtime, "_forward"), (Sites, "absorb"), (Session, "count"), (Session, "save"), *DISK]
"""Moments between and inside edits."""
