"""`more review` as a real server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.helpers import World, process


@contextmanager
def serving(world: World, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The command in a process of its own, and the address that it printed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with process("review", world.model, *options) as server:
            assert server.stdout is not None
            yield server, server.stdout.readline().decode().strip()
