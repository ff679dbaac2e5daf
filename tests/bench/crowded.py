"""Time of an edit beside a busy process, by how long torch's threads wait for work (`more_cli.system.environment`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from more_cli.system.environment import SPINS
from more_lab.panel.speed import EDITS

WAITS = {"ours": SPINS, "torch's own": "300000"}
"""GOMP_SPINCOUNT; the second is libgomp's default."""
ROUNDS = 3


def measure(models: dict[str, Path]) -> dict[str, Any]:
    """Bench each model with both waits, alone and beside a busy process, in turn."""
    found: dict[str, Any] = {name: {} for name in models}
    for _ in range(ROUNDS):
        for beside in ("nothing", "a busy process"):
            for name, model in models.items():
                for wait, spins in WAITS.items():
                    with busy() if beside != "nothing" else nullcontext():
                        seconds = bench(model, EDITS[name], spins)
                    found[name].setdefault(beside, {}).setdefault(wait, []).append(seconds)
    return found


@contextmanager
def busy() -> Iterator[None]:
    """Keep one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def bench(model: Path, edits: int, spins: str) -> float:
    """Return the seconds of these edits, on all cores."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP", "GOMP"))}
    command = [sys.executable, "-m", "more_cli", "bench", str(model), "--limit", str(edits), "--json", "-q"]
    made = subprocess.run(command, check=True, capture_output=True, env=environment | {"GOMP_SPINCOUNT": spins}).stdout
    return float(json.loads(made)["seconds"])
