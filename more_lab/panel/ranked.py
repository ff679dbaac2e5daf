"""Which rivals stand in a ranking: those that learn an edit when it is the only one.

Where a rival learns fewer than 90 of 100 edits alone, each from the untouched base, its place says more about its
constants or its fit than about the method. It is shown in no ranking, and named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from more_lab.panel.table import runs_of, share

SINGLE = "single.jsonl"
"""Edits that were learnt alone, by suite and editor, on the embedded LLaVA."""
LEAST = 0.9
"""Least share of edits, each learnt alone."""
OURS = "more", "naive", "none"
"""What is no rival: M-ORE in its forms, its loop with P = I, and the base."""
Run = Mapping[str, Any]


@cache
def singles() -> dict[tuple[str, str, str], tuple[float, float, float, int]]:
    """Return Rel of single edits, its interval and n, by base, suite and editor."""
    runs = runs_of(SINGLE)
    return {(run["base"], run["suite"], run["editor"]): tuple(run["single"]["Rel"]) for run in runs}


def obstacle(run: Run) -> str:
    """Return why a run is shown in no ranking, or "".

    Both decide: the single edits of its editor on its suite and base, where they were measured, and the 20 edits that
    checked the run's own fit.
    """
    if run["editor"].partition(":")[0] in OURS:
        return ""
    found = singles().get((run["base"], run["suite"], run["editor"].removesuffix(":loop").removesuffix(":batch")))
    if found and found[0] < LEAST:
        value, low, high, n = found
        return f"learns {share(value, low, high)} % of {n} edits alone"
    fit = run.get("fit")
    return f"learns {fit['right']} of {fit['held_out']} edits alone" if fit and fit["undertrained"] else ""


def ranked(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that a ranking shows."""
    return [run for run in runs if not obstacle(run)]


def left_out(runs: Sequence[Run]) -> str:
    """Return a sentence that names the others, or ""."""
    others = [f"{run.get('row', run['editor'])} ({why})" for run in runs if (why := obstacle(run))]
    return f"In no ranking: {', '.join(others)}." if others else ""
