"""The tables of panel.py: every model, the means over models, and differences paired by edit."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from more_cli.evaluation.metrics import RESAMPLES, SEED, estimate
from more_lab.experiments.paired import compare

FIVE = ("Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc")
MEAN = "mean of five"
LETTERS = {"learnt": "L", "already-right": "A", "not-learnt": "N", "refused": "R"}
Run = Mapping[str, Any]
Group = Mapping[str, Sequence[Run]]
"""The runs of a variant on one stream, by model."""


def per_edit(runs: Sequence[Run], label: str) -> dict[str, float]:
    """Return a metric by edit, its mean over runs (the orders of a stream); edits without such a probe are left out."""
    found: dict[str, list[float]] = {}
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


def five(run: Run) -> float:
    """Return the mean of the five metrics of a run, of those that it has."""
    means = [np.mean(list(values.values())) for label in FIVE if (values := per_edit([run], label))]
    return float(np.mean(means))


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


def page(runs: Sequence[Run], arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the tables of the runs that were asked for; of the same run made twice the newest counts."""
    newest: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        asked = run["pool"] == arguments.pool and run["limit"] == arguments.limit
        if asked and arguments.half in (run["half"], "all") and run["model"] in (arguments.model or [run["model"]]):
            newest[tuple(run[name] for name in ("stream", "variant", "model", "seed"))] = run
    streams = arguments.stream or sorted({stream for stream, *_ in newest})
    for stream in streams:
        mine = [run for run in newest.values() if run["stream"] == stream]
        names = arguments.variant or list(dict.fromkeys(run["variant"] for run in mine))
        halves = sorted({run["half"] for run in mine})
        for half in halves:
            table = {
                name: _by_model(run for run in mine if (run["variant"], run["half"]) == (name, half)) for name in names
            }
            yield from block(f"{stream}, {half}", {name: group for name, group in table.items() if group}, arguments)


def _by_model(runs: Iterator[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run["model"], []).append(run)
    return found


def block(title: str, table: Mapping[str, Group], arguments: argparse.Namespace) -> Iterator[str]:
    """Yield one stream: means over models, differences, and a table a model."""
    models = list(dict.fromkeys(model for group in table.values() for model in group))
    if len(models) > 1:
        yield f"\n## {title}: means over models\n"
        yield from head("variant", "models", "statuses", *FIVE, MEAN, "cost", "s per edit")
        for name, group in table.items():
            yield row(name, str(len(group)), *cells(group, _mean_cell))
    base = arguments.against
    if base in table:
        yield f"\n### {title}: minus `{base}`, paired by edit\n"
        yield from head("variant", "models", *FIVE, MEAN)
        for name, group in table.items():
            if shared := [model for model in group if name != base and model in table[base]]:
                yield row(
                    name, str(len(shared)), *(_difference(table[base], group, shared, label) for label in (*FIVE, MEAN))
                )
    for model in models if len(models) == 1 or not arguments.brief else ():
        yield f"\n### {title}: {model}\n"
        yield from head("variant", "statuses", *FIVE, MEAN, "cost", "s per edit")
        for name, group in table.items():
            if model in group:
                yield row(name, *cells({model: group[model]}, _model_cell))


def cells(group: Group, cell: Callable[[Sequence[Mapping[str, float]]], str]) -> Iterator[str]:
    """Yield status counts, metrics, cost and seconds: means over a model's runs, and then over models."""

    def mean(of: Callable[[Run], float]) -> float:
        return float(np.mean([np.mean([of(run) for run in some]) for some in group.values()]))

    counts = {letter: mean(partial(_count, status)) for status, letter in LETTERS.items()}
    yield " ".join(f"{round(count, 1):g}{letter}" for letter, count in counts.items() if count)
    for label in FIVE:
        yield cell([per_edit(some, label) for some in group.values()])
    yield f"{100 * mean(five):.1f}"
    yield f"{mean(lambda run: (sum(run['cost']) + run['once']) / run['n']):.1f}"
    yield f"{mean(lambda run: float(np.mean(run['seconds']))):.2f}"


def _count(status: str, run: Run) -> float:
    return float(run["statuses"].get(status, 0))


def _model_cell(samples: Sequence[Mapping[str, float]]) -> str:
    (values,) = samples
    if not values:
        return "-"
    found = estimate(list(values.values()))
    return f"{100 * found.value:.1f} ({100 * found.low:.1f}-{100 * found.high:.1f})"


def _mean_cell(samples: Sequence[Mapping[str, float]]) -> str:
    known = [list(values.values()) for values in samples if values]
    if not known:
        return "-"
    value, low, high = over_models(known)
    means = [float(np.mean(values)) for values in known]
    return f"{100 * value:.1f} ({100 * low:.1f}-{100 * high:.1f}) [{100 * min(means):.0f}-{100 * max(means):.0f}]"


def _difference(first: Group, second: Group, models: Sequence[str], label: str) -> str:
    """Return the mean over models of the paired differences, with the interval over edits and the models' range."""
    changes = []
    for model in models:
        one, other = per_edit(first[model], label), per_edit(second[model], label)
        both = [edit for edit in one if edit in other]
        if both:
            changes.append([other[edit] - one[edit] for edit in both])
    if not changes:
        return "-"
    if len(changes) == 1:
        found = compare([0.0] * len(changes[0]), changes[0])
        return f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    value, low, high = over_models(changes)
    means = [float(np.mean(values)) for values in changes]
    spread = f"[{100 * min(means):+.0f} to {100 * max(means):+.0f}]"
    return f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) {spread}"


def head(*columns: str) -> Iterator[str]:
    """Yield the first lines of a table."""
    yield row(*columns)
    yield "|---" * len(columns) + "|"


def row(*entries: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(entries)} |"
