"""Which rivals stand in a ranking: those that learn an edit when it is the only one.

Where a rival learns fewer than 90 of 100 edits alone, each from the untouched base, its place says more about its
constants or its fit than about the method. It is shown in no ranking, and named beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from more_cli.text import canonical_json
from more_lab.panel.table import Run, runs_of, share

SINGLE = "single.jsonl"
"""Edits that were learnt alone, by base, suite and editor; nearly all on the embedded LLaVA."""
LEAST = 0.9
"""Least share of edits, each learnt alone."""
OURS = "more", "naive", "none"
"""What is no rival: M-ORE in its forms, its loop with P = I, and the base."""
HANDS = "loop", "batch"
"""Constants of who decides when an editor writes; its own are the others."""


@cache
def singles() -> dict[str, tuple[float, float, float, int]]:
    """Return Rel of single edits, its interval and n, by `key_of` their run."""
    return {key_of(run): tuple(run["single"]["Rel"]) for run in runs_of(SINGLE)}


def key_of(run: Run) -> str:
    """Return what decides the single edits of a run: base, suite, editor and its constants."""
    constants = {name: value for name, value in run["constants"].items() if name not in HANDS}
    return canonical_json([run["base"], run["suite"], *names_of(run["editor"]), constants])


def names_of(editor: str) -> list[str]:
    """Return the parts of an editor's name that say how it writes, not when."""
    return [part for part in editor.split(":") if part not in HANDS]


def obstacle(run: Run) -> str:
    """Return why a run is shown in no ranking, or "".

    Both decide: the single edits of its editor with its constants on its suite and base, where they were measured, and
    the 20 edits that checked the run's own fit.
    """
    if run["editor"].partition(":")[0] in OURS:
        return ""
    found = singles().get(key_of(run))
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
