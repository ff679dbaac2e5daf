"""Time and peak memory of commands, each in its own process."""

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

SETTLE = 5.0  # seconds


def run(*command: str, sync: bool = False, allowed: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Return seconds (with `sync` until everything is on disk) and peak resident memory in MB."""
    os.sync()
    # A virtual machine hands memory that was just freed back to its host, and getting it again takes as long as the
    # copy. A merge first imports torch, so without this pause only `cp` would find the last output's memory.
    time.sleep(SETTLE)
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        # Not the rusage of the child: it starts with what this process held when it forked.
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024)
        time.sleep(0.02)
    assert process.returncode in allowed, command
    if sync:
        os.sync()
    return time.perf_counter() - started, peak
