"""PANEL.md: editors on the panel's models: every model, the means over models, and differences paired by edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from more_cli.evaluation.metrics import estimate
from more_lab.experiments.paired import compare
from more_lab.panel.table import FIVE, MEAN, Run, head, over_models, per_edit, points, row, runs_of, share, text_of

LETTERS = {"learnt": "L", "already-right": "A", "not-learnt": "N", "refused": "R"}
Group = Mapping[str, Sequence[Run]]
"""The runs of a variant on one stream, by model."""


@dataclass(frozen=True)
class Selection:
    """Runs of a file that are shown together."""

    against: str
    """Variant that the others are compared with, edit by edit."""
    stream: str = ""
    """Empty for every stream."""
    half: str = "all"
    """Of the panel: dev, held or all."""
    limit: int = 100
    """First edits of each stream."""
    file: str = "panel.jsonl"


OBJECTS = 40
"""Edits of a stream of objects."""
CHOICE, CONSTANTS = "panel_choice.jsonl", "panel_constants.jsonl"
MEASURED = (
    *(
        Selection("lora", stream, half, limit)
        for half in ("held", "dev")
        for stream, limit in (("mistakes", 100), ("objects", OBJECTS))
    ),
    *(Selection("lora-0.0005", "long", limit=limit) for limit in (100, 300, 1000, 3000)),
    Selection("default", "long", limit=1000, file="panel_long.jsonl"),
    *(Selection("lora", stream) for stream in ("captions", "contradictions", "e-ic-mini")),
)
CHOSEN = (
    Selection("mean key", file=CHOICE),
    Selection("mean key", "objects", limit=OBJECTS, file=CHOICE),
    Selection("auto-anchors", "mistakes", file=CONSTANTS),
    Selection("auto-anchors", "objects", limit=OBJECTS, file=CONSTANTS),
)


def page() -> Iterator[str]:
    """Yield PANEL.md."""
    yield text_of("panel").removesuffix("\n")
    for chosen in MEASURED:
        yield from tables(runs_of(chosen.file), chosen)
    yield text_of("panel_choice").removesuffix("\n")
    for chosen in CHOSEN:
        yield from tables(runs_of(chosen.file), chosen)


def tables(runs: Sequence[Run], chosen: Selection) -> Iterator[str]:
    """Yield the tables of the runs that were chosen; of the same run made twice the newest counts."""
    newest: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        asked = run["pool"] == "evaluation" and run["limit"] == chosen.limit
        if asked and chosen.half in (run["half"], "all") and chosen.stream in (run["stream"], ""):
            newest[tuple(run[name] for name in ("stream", "variant", "model", "seed"))] = run
    for stream in sorted({stream for stream, *_ in newest}):
        mine = [run for run in newest.values() if run["stream"] == stream]
        names = list(dict.fromkeys(run["variant"] for run in mine))
        for half in sorted({run["half"] for run in mine}):
            table = {
                name: _by_model(run for run in mine if (run["variant"], run["half"]) == (name, half)) for name in names
            }
            yield from block(f"{stream}, {half}", {name: group for name, group in table.items() if group}, chosen)


def _by_model(runs: Iterator[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run["model"], []).append(run)
    return found


def block(title: str, table: Mapping[str, Group], chosen: Selection) -> Iterator[str]:
    """Yield one stream: means over models, differences, and a table a model."""
    models = list(dict.fromkeys(model for group in table.values() for model in group))
    if len(models) > 1:
        yield f"\n## {title}: means over models\n"
        yield from head("variant", "models", "statuses", *FIVE, MEAN, "cost", "s per edit")
        for name, group in table.items():
            yield row(name, str(len(group)), *cells(group, _mean_cell))
    base = chosen.against
    if base in table:
        yield f"\n### {title}: minus `{base}`, paired by edit\n"
        yield from head("variant", "models", *FIVE, MEAN)
        for name, group in table.items():
            if shared := [model for model in group if name != base and model in table[base]]:
                yield row(
                    name, str(len(shared)), *(_difference(table[base], group, shared, label) for label in (*FIVE, MEAN))
                )
    for model in models:
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


def five(run: Run) -> float:
    """Return the mean of the five metrics of a run, of those that it has."""
    means = [np.mean(list(values.values())) for label in FIVE if (values := per_edit([run], label))]
    return float(np.mean(means))


def _count(status: str, run: Run) -> float:
    return float(run["statuses"].get(status, 0))


def _model_cell(samples: Sequence[Mapping[str, float]]) -> str:
    (values,) = samples
    if not values:
        return "-"
    found = estimate(list(values.values()))
    return share(found.value, found.low, found.high)


def _mean_cell(samples: Sequence[Mapping[str, float]]) -> str:
    known = [list(values.values()) for values in samples if values]
    if not known:
        return "-"
    value, low, high = over_models(known)
    means = [float(np.mean(values)) for values in known]
    return f"{share(value, low, high)} [{100 * min(means):.0f}-{100 * max(means):.0f}]"


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
        return points(found.difference, found.low, found.high)
    value, low, high = over_models(changes, shares=False)
    means = [float(np.mean(values)) for values in changes]
    spread = f"[{100 * min(means):+.0f} to {100 * max(means):+.0f}]"
    return f"{points(value, low, high)} {spread}"
