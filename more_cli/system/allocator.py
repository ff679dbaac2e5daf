"""How the C library's allocator gives memory back."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_MMAP_THRESHOLD = -3
"""Number of the option in glibc's `mallopt`."""
LARGE = 4 << 20
"""Bytes of a block that is given back as soon as it is freed."""


def give_back_large_blocks() -> None:
    """Let the process give large blocks back when they are freed; where there is no glibc this does nothing.

    Otherwise glibc keeps every freed block of up to 32 MB, for each thread separately: a command that goes from site to
    site would hold the memory of many sites at its end.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE)
