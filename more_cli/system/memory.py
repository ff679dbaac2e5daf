"""Memory of the process: when the C library gives freed blocks back, and when Python searches for garbage."""

from __future__ import annotations

import gc
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
        import ctypes  # slow to import

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, LARGE)


FIRST = 1_000_000
"""Objects at the first search, more than torch, transformers and a model's modules make: about 600,000."""
LATER = 20_000
"""Objects from one search to the next."""


def search_late() -> None:
    """Search for the first time after `FIRST` new objects, from then on after every `LATER`.

    A search looks at every new object, so those of the imports alone cost a fifth of a second. Until the first one only
    objects in a circle of references wait to be freed, 24,000 small ones in `more ask`; all others are freed at once.
    """
    older = gc.get_threshold()[1:]

    def searched(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(searched)
            gc.set_threshold(LATER, *older)

    gc.callbacks.append(searched)
    gc.set_threshold(FIRST, *older)


def leave_garbage() -> None:
    """Spare a process that ends its last search for garbage: the system takes all of its memory back.

    Triton, which comes with torch for GPUs, counts what is left and prints thirty lines about leaks: where it
    was imported, Python frees all objects as always.
    """
    if "triton" not in sys.modules:
        gc.freeze()
