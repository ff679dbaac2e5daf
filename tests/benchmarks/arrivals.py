"""What 100 arrivals cost and end at, beside a LoRA that is trained again at each: from the runs of retention.py.

python tests/benchmarks/retention.py run --table arrivals
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from more_cli.evaluation.paired import compare

RESULTS = Path(__file__).parent / "results" / "retention.jsonl"
FIVE = ("Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc")
EPOCHS, STREAMS = 10, 3
RETRAINED = {"rate 1e-3": "LoRA, 10 epochs", "rate 3e-3": "LoRA, 10 epochs, rate 3e-3"}
OURS = {
    "one by one": ("default",),
    "one by one, consolidated at the end": ("default, consolidated",),
    "recipe `per-token`, consolidated at the end": ("per-token, consolidated",),
    "one by one, and all as a batch at the end": ("default", "default, --batch"),
}
"""What is paid for; the last one's scores are those at the end."""


def table() -> Iterator[str]:
    """Yield the comparison."""
    runs = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    runs = [run for run in runs if run["table"] == "arrivals"]
    edits, orders = runs[0]["edits"], len({run["seed"] for run in runs}) // STREAMS
    retrained = EPOCHS * edits * (edits + 1) // 2
    yield f"Samples sent forward and backward over {edits} arrivals, a look forward counted as a third: a LoRA trained"
    yield f"for {EPOCHS} epochs on all corrections so far at each of them takes {retrained:,}. Differences in points at"
    yield f"the end, ours minus LoRA's, over {STREAMS} streams of other corrections, n = {STREAMS * edits}, each edit"
    yield f"in the mean of {orders} orders of its stream, paired by edit, with the 95 % bootstrap interval. 1e-3 is the"
    yield "rate that RETENTION.md chose for LoRA on the calibration pool, 3e-3 the better one there for ten epochs.\n"
    yield "| ours | samples | share | LoRA's | " + " | ".join(FIVE) + " |"
    yield "|---" * (4 + len(FIVE)) + "|"
    for name, rows in OURS.items():
        paid = sum(cost([run for run in runs if run["row"] == row]) for row in rows)
        for rate, theirs in RETRAINED.items():
            found = [compare(values(runs, theirs, label), values(runs, rows[-1], label)) for label in FIVE]
            cells = [f"{100 * one.difference:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})" for one in found]
            yield f"| {name} | {paid:,.0f} | 1/{retrained / paid:.1f} | {rate} | " + " | ".join(cells) + " |"


def cost(runs: list[dict[str, Any]]) -> float:
    """Return the mean total of a row's runs, consolidation counted."""
    return float(np.mean([sum(run["cost"]) + (run["consolidation"] or 0.0) for run in runs]))


def values(runs: list[dict[str, Any]], row: str, label: str) -> list[float]:
    """Return a metric of each edit, its mean over orders, by ids and one stream after the other."""
    found: list[float] = []
    for stream in range(STREAMS):
        mine = [run["values"][label] for run in runs if run["row"] == row and run["seed"] % STREAMS == stream]
        found += np.mean(mine, axis=0).tolist()
    return found
