"""How many threads torch starts and how long they wait for work: said in the environment, before torch is imported.

What the user has set stays. torch counts the cores it sees, also where a container may use only a part of their time;
and its threads spin for milliseconds until they have work again, which takes the core from whatever else runs on it: an
edit beside one busy process takes half the time with the short wait, and as long as before where nothing else runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

SPINS = "1000"
"""What libgomp itself waits where it knows that there are more threads than cores."""


def settle(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Say what the user has not; `root` is where `sys` is mounted."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPINS)
    quota = cores_allowed(root)
    if math.isfinite(quota) and quota < len(os.sched_getaffinity(0)):  # Linux: nothing else has such limits
        environment.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(quota))))


def cores_allowed(root: Path = Path("/")) -> float:
    """Return how many cores' time the control group may use; infinity where it has no such limit."""
    groups = root / "sys/fs/cgroup"
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # version 2, version 1
        try:
            quota, period = (word for name in files for word in (groups / name).read_text().split())
            if float(quota) > 0 and float(period) > 0:  # -1 is no limit
                return float(quota) / float(period)
        except (OSError, ValueError):  # no such account, or `max`
            continue
    return math.inf
