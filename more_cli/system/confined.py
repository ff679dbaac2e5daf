"""Work on untrusted input in a child process with limits of memory and time."""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from more_cli.text import first_line

MEMORY = 1 << 30
"""Bytes that the work may take beyond what this process has."""
SECONDS = 10
"""Processor time that it may take."""
_WAIT = 6
"""Times the processor time after which the child is ended anyway, on a machine that has other things to do."""
_DONE, _FAILED = b"+", b"-"
TEXT = 1 << 16
"""Longest result, bytes."""


class Exceeded(Exception):
    """The work did not come to a result; the text says why, and follows a name: `takes more than 10 s`."""


def confined(work: Callable[[], str], memory: int = MEMORY, seconds: int = SECONDS) -> str:
    """Run `work` in a fork of this process and return its text; without fork (Windows) in this process, unlimited.

    The child shares nothing with this process afterwards: only the text comes back. It must use neither an
    accelerator nor a lock of another thread.

    Raises:
        Exceeded: it took too much, ended in an exception, or crashed.
    """
    if not hasattr(os, "fork"):
        return work()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns of threads, which the child leaves alone
        child = os.fork()
    if child == 0:
        _in_child(work, writing, memory, seconds)
    os.close(writing)
    try:
        said = _read(reading, seconds * _WAIT)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said[:1] == _DONE:
        return said[1:].decode("utf-8", "surrogatepass")
    if said[:1] == _FAILED:
        raise Exceeded(said[1:].decode("utf-8", "replace"))
    raise Exceeded(f"takes more than {seconds} s" if _by_time(status) else "ends in a crash")


def _by_time(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)


def _read(reading: int, seconds: float) -> bytes:
    """Return everything that the child writes until it ends; what it wrote when the time is over."""
    parts, end = [], time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and select.select([reading], [], [], left)[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _in_child(work: Callable[[], str], writing: int, memory: int, seconds: int) -> None:
    """Run the work and write its text, or why there is none; never returns."""
    try:
        _limit(memory, seconds)
        try:
            text = work().encode("utf-8", "surrogatepass")
            said = _DONE + text if len(text) <= TEXT else _FAILED + b"makes more than %d KiB of text" % (TEXT >> 10)
        except MemoryError:
            said = _FAILED + b"takes more than %d MiB of memory" % (memory >> 20)
        except RecursionError:
            said = _FAILED + b"calls itself too deeply"
        except Exception as error:
            said = _FAILED + f"fails: {first_line(error)[:200]}".encode()
        while said:
            said = said[os.write(writing, said) :]
    finally:
        os._exit(0)


def _limit(memory: int, seconds: int) -> None:
    """Limit this process from now on."""
    import faulthandler
    import resource

    faulthandler.disable()  # the parent says in one line that the child crashed
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    sizes = Path("/proc/self/statm")
    if sizes.exists():  # elsewhere there is no telling how much it has already
        most = int(sizes.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
