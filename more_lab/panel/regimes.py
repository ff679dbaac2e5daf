"""The table of the anchors that a user has, by model: 100 mistakes, by `more init`, `more edit` and `more eval`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from more_lab.panel.table import FIVE, Run, head, row, runs_of

NONE = "none"
REGIMES = {
    NONE: "none (`--no-anchors`)",
    "text": "42 facts",
    "pictures-before": "128 pictures alone (`anchors.prompts=[]`)",
    "pictures": "128 pictures, joined",
    "made-before": "made of the whole file, before",
    "made": "brought by the edits",
    "hand": "128 pictures, 42 facts",
}
"""What the anchors are, by their name in anchors.jsonl."""


def table() -> Iterator[str]:
    """Yield a table of model and regime; the regime with the lowest mean of five of each model is bold."""
    runs = [run for run in runs_of("anchors.jsonl") if run["stream"] == "mistakes" and not run.get("prototype")]
    yield from head("model", "anchors", *FIVE, "mean")
    for model in sorted({run["model"] for run in runs if run["anchors"] == NONE}):
        mine = {run["anchors"]: run for run in runs if run["model"] == model}
        yield from rows(model, {regime: means(mine[regime]) for regime in REGIMES if regime in mine})


def rows(model: str, found: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield a model's rows."""
    worst = min(found, key=lambda regime: found[regime][-1])
    for regime, values in found.items():
        mark = "**" if regime == worst else ""
        yield row(model, f"{mark}{REGIMES[regime]}{mark}", *(f"{mark}{value:.1f}{mark}" for value in values))


def means(run: Run) -> list[float]:
    """Return the five metrics of a run and their mean, in percent."""
    known = ([value for value in run["values"][label] if value is not None] for label in FIVE)
    five = [100 * fmean(values) for values in known]
    return [*five, fmean(five)]
