"""How many threads torch starts and how long they wait for work: said in the environment, before torch is imported.

What the user has set stays. torch counts the cores it sees, also where a container may use only a part of their time;
and its threads spin for milliseconds until they have work again, which takes the core from whatever else runs on it.
With the short wait an edit beside one busy process takes half to two thirds of the time, and alone as long as before.
"""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

from more_cli.system.cgroup import groups

SPINS = "1000"
"""What libgomp itself waits where it knows that there are more threads than cores."""


def settle(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Say what the user has not; `root` is where `proc` and `sys` are mounted."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPINS)
    quota = cores_allowed(root)
    if math.isfinite(quota) and quota < len(os.sched_getaffinity(0)):  # Linux: nothing else has such limits
        environment.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(quota))))


def cores_allowed(root: Path = Path("/")) -> float:
    """Return how many cores' time the control groups leave; infinity where none has such a limit."""
    found = [math.inf]
    for group in groups("cpu", root):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # version 2, version 1
            try:
                quota, period = (float(word) for name in names for word in (group / name).read_text().split())
            except (OSError, ValueError):  # no such account, or `max`
                continue
            if quota > 0 and period > 0:  # -1 is no limit
                found.append(quota / period)
    return min(found)
