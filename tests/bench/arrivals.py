"""Cost and final scores of 100 edits, compared with a LoRA that is trained again at each: from retention.py's runs.

python -m tests.worlds.embedded.streams FOLDER
python tests/bench/retention.py run --table arrivals --streams FOLDER
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from more_lab.experiments.paired import compare

RESULTS = Path(__file__).parents[2] / "more_lab" / "results" / "retention.jsonl"
FIVE = ("Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc")
EPOCHS, STREAMS, ORDERS = 10, 9, 2
RATES = {"LoRA, rate 1e-3": 1e-3, "LoRA, rate 2e-3": 2e-3, "LoRA, rate 3e-3": 3e-3}
"""Row of a retrained LoRA and its rate."""
OURS = "default"


def table() -> Iterator[str]:
    """Yield the comparison."""
    runs = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    runs = [run for run in runs if run["table"] == "arrivals"]
    edits = runs[0]["edits"]
    retrained = EPOCHS * edits * (edits + 1) // 2
    yield f"Samples sent forward and backward over {edits} edits; a sample sent only forward counts a third. A LoRA"
    yield f"that is trained for {EPOCHS} epochs on all edits so far, after each of them, takes {retrained:,}."
    yield f"Differences in points at the end, ours minus LoRA's, over {STREAMS} streams of other edits,"
    yield f"n = {STREAMS * edits}, paired by edit, LoRA's in the mean of {ORDERS} orders of its stream, with the 95 %"
    yield "bootstrap interval.\n"
    yield "| ours | samples | share | minus | " + " | ".join(FIVE) + " |"
    yield "|---" * (4 + len(FIVE)) + "|"
    paid = cost([run for run in runs if run["row"] == OURS])
    for theirs in RATES:
        found = [compare(values(runs, theirs, label), values(runs, OURS, label)) for label in FIVE]
        cells = [f"{100 * one.difference:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})" for one in found]
        yield f"| {OURS} | {paid:,.0f} | 1/{retrained / paid:.1f} | {theirs} | " + " | ".join(cells) + " |"
    ends = []
    for theirs in RATES:
        low, label = min((low_of_streams(runs, theirs, label), label) for label in FIVE)
        ends.append(f"{theirs}: {100 * low:+.1f} ({label})")
    yield f"\nIf streams are resampled too, not only edits, the lowest interval end, minus {'; minus '.join(ends)}."


def low_of_streams(runs: list[dict[str, Any]], theirs: str, label: str, resamples: int = 2000) -> float:
    """Return the lower end of the 95 % interval that resamples streams, and edits within each."""
    change = np.subtract(values(runs, OURS, label), values(runs, theirs, label)).reshape(STREAMS, -1)
    rng, edits = np.random.default_rng(0), change.shape[1]
    sampled = rng.integers(0, STREAMS, (resamples, STREAMS, 1)), rng.integers(0, edits, (resamples, STREAMS, edits))
    return float(np.percentile(change[sampled].mean(axis=(1, 2)), 2.5))


def cost(runs: list[dict[str, Any]]) -> float:
    """Return the mean total of a row's runs, consolidation counted."""
    return float(np.mean([sum(run["cost"]) + (run["consolidation"] or 0.0) for run in runs]))


def values(runs: list[dict[str, Any]], row: str, label: str) -> list[float]:
    """Return a metric of each edit, its mean over orders, stream by stream, in the order of the edits' ids."""
    found: list[float] = []
    for stream in range(STREAMS):
        mine = [run["values"][label] for run in runs if run["row"] == row and run["seed"] % STREAMS == stream]
        found += np.mean(mine, axis=0).tolist()
    return found
