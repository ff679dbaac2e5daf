"""Environment variables that are set before torch is imported: threads, and how many compiled kernels are kept.

Variables that the user has set stay.

- torch counts the visible cores, even if a container may use only part of their time.
- Its idle threads spin for milliseconds, which takes the core from other processes. With the short spin, an edit beside
  one busy process takes half to two thirds of the time; alone it takes as long as before.
- oneDNN compiles a kernel for every shape of a product in half precision, 0.4 MB each. Two caches, oneDNN's and that of
  torch before it, keep 1024 each. Edits bring sequences of ever new lengths, so most of these kernels never run again.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from more_cli.system.cgroup import groups

SPINS = "1000"
"""The spin count that libgomp itself uses when there are more threads than cores."""
KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
KERNELS = 64
"""Kernels that each of the two caches keeps. 16 save 44 MB more; with 16 to 1024 an edit took equally long."""


def set_defaults(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Set the variables that the user has not set; `root` is the folder in which `proc` and `sys` are mounted."""
    for cache in KERNEL_CACHES:
        environment.setdefault(cache, str(KERNELS))
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPINS)
    quota = cores_allowed(root)
    if math.isfinite(quota) and quota < len(os.sched_getaffinity(0)):  # only Linux has such limits
        environment.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(quota))))


def open_streams() -> None:
    """Open standard streams that the caller closed, and let standard output print what its encoding lacks.

    The first file that is opened would take the number of a closed one, and get what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def cores_allowed(root: Path = Path("/")) -> float:
    """Return the number of cores that the control groups allow; infinity without a limit."""
    limits = [math.inf]
    for group in groups("cpu", root):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # version 2, version 1
            try:
                quota, period = (float(word) for name in names for word in (group / name).read_text().split())
            except (OSError, ValueError):  # no such file, or `max`
                continue
            if quota > 0 and period > 0:  # -1 is no limit
                limits.append(quota / period)
    return min(limits)
