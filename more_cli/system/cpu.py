"""The processor's name: another processor may round differently, which changes the bytes of a result."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def cpu() -> str:
    """Return the processor's maker and model: libraries choose other kernels for another one, which round otherwise."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
