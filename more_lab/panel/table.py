"""What the pages of results share: files of runs, Markdown tables, means over edits and over models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from more_cli.evaluation.metrics import RESAMPLES, SEED, estimate

RESULTS = Path(__file__).parents[1] / "results"
METRICS = {
    "Rel": "rel.tf_exact",
    "T-Gen": "gen_text.tf_exact",
    "M-Gen": "gen_image.tf_exact",
    "T-Loc": "loc_text.loc_expkl_answer",
    "M-Loc": "loc_image.loc_expkl_answer",
}
FIVE = tuple(METRICS)
MEAN = "mean of five"
Run = Mapping[str, Any]


def runs_of(name: str) -> list[dict[str, Any]]:
    """Return the runs of a file of results."""
    return lines_of(RESULTS / name)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file that has one on each line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def text_of(name: str) -> str:
    """Return what stands above the tables of a page."""
    return (RESULTS / "heads" / f"{name}.md").read_text(encoding="utf-8")


def head(*columns: str, title: str = "") -> Iterator[str]:
    """Yield the first lines of a table, below its heading if it has one."""
    if title:
        yield f"\n## {title}\n"
    yield row(*columns)
    yield "|---" * len(columns) + "|"


def row(*cells: object) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def share(value: float, low: float, high: float) -> str:
    """Return a share and its 95 % interval, in percent."""
    return f"{100 * value:.1f} ({100 * low:.1f}-{100 * high:.1f})"


def points(value: float, low: float, high: float) -> str:
    """Return a difference and its 95 % interval, in points."""
    return f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def per_edit(runs: Sequence[Run], label: str) -> dict[Any, float]:
    """Return a metric by edit, its mean over runs (the orders of a stream); edits without such a probe are left out."""
    found: dict[Any, list[float]] = {}
    for run in runs:
        for edit, value in zip(run["ids"], _column(run, label), strict=True):
            if value is not None:
                found.setdefault(edit, []).append(value)
    return {edit: sum(values) / len(values) for edit, values in found.items()}


def _column(run: Run, label: str) -> list[float | None]:
    if label != MEAN:
        return list(run["values"][label])
    rows = zip(*(run["values"][one] for one in FIVE), strict=True)
    known = ([value for value in row if value is not None] for row in rows)
    return [sum(row) / len(row) if row else None for row in known]


def over_models(samples: Sequence[Sequence[float]], *, shares: bool = True) -> tuple[float, float, float]:
    """Return the mean over models of their means, with its 95 % interval over edits within models.

    That of a proportion is Wilson's over all edits, if the models have as many; at 100 % a bootstrap has no width.
    `shares=False` says that these are differences.
    """
    pooled = [value for values in samples for value in values]
    if shares and len({len(values) for values in samples}) == 1 and set(pooled) <= {0.0, 1.0}:
        found = estimate(pooled)
        return found.value, found.low, found.high
    draws = np.random.default_rng(SEED)
    resampled = [
        np.asarray(values)[draws.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1) for values in samples
    ]
    low, high = np.percentile(np.mean(resampled, axis=0), [2.5, 97.5])
    return float(np.mean([np.mean(values) for values in samples])), float(low), float(high)
