"""RETENTION.md: what holds after a stream of edits, and what else changed; and the arrivals of RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from more_cli.evaluation.metrics import bootstrap, estimate
from more_cli.recipe.files import load_recipe
from more_lab.experiments.paired import compare
from more_lab.experiments.scaling import growth
from more_lab.panel.table import FIVE, MEAN, Run, head, points, row, runs_of, share, text_of

FILE = "retention.jsonl"
COLUMNS = ("Rel", "Rel gen", "T-Gen", "T-Gen gen", "M-Gen", "M-Gen gen", "T-Loc", "M-Loc")
FAMILIES = ("llava", "blip2_opt", "qwen2_vl", "qwen3_vl")
ROWS = (
    *("before", "paper", "authors", "naive", "polyak", "default", "default without anchors", "default, consolidated"),
    *(
        "default, --batch",
        "LoRA, 10 epochs",
        "LoRA, 10 epochs, rate 3e-3",
        "LoRA, 20 epochs, anchors",
        "LoRA, 41 epochs",
    ),
    "P = I",
)
"""Rows of the tables, from the first one on; others follow in the order of the file."""
EPOCHS, STREAMS, ORDERS = 10, 9, 2
RATES = ("LoRA, rate 1e-3", "LoRA, rate 2e-3", "LoRA, rate 3e-3")
"""Rows of a LoRA that is trained again at every arrival, by its rate."""
OURS = "default"


def place(name: str) -> tuple[int, int]:
    """Return where a row stands: by family first, if its name begins with one."""
    family, _, rest = name.rpartition(": ")
    return FAMILIES.index(family) if family in FAMILIES else 0, ROWS.index(rest) if rest in ROWS else 0


def page() -> Iterator[str]:
    """Yield RETENTION.md."""
    yield text_of("retention")
    titles = {
        "main": "Records 1-100, three orders",
        "all": "The whole pool",
        "emblems": "New emblems alone",
        "ablation": "One thing changed, three seeds of the rehearsal",
        "families": "Records 1-100 of each family's own pool",
        "vision": "Which parts are edited: records 1-100 of LLaVA's pool",
    }
    made = runs_of(FILE)
    for table, title in titles.items():
        runs = [run for run in made if run["table"] == table]
        yield from head("row", *COLUMNS, MEAN, "cost per edit", "runs x edits", title=title)
        for name in sorted(dict.fromkeys(run["row"] for run in runs), key=place):
            yield line(name, [run for run in runs if run["row"] == name])

    yield from against_lora(made)
    yield from prices(made)


def against_lora(made: Sequence[Run]) -> Iterator[str]:
    """Yield our rows minus LoRA's at equal compute, edit by edit, with the bootstrap interval over edits."""
    title = "The default minus LoRA, mean of five, paired by edit"
    yield from head("edits", "row", "minus", "difference (95 % interval)", title=title)
    for table in ("main", "all", "emblems"):
        for ours in ("default", "default, consolidated", "default, --batch"):
            for theirs in ("LoRA, 20 epochs, anchors", "LoRA, 41 epochs"):
                change = 100 * (mean_of_five(made, table, ours) - mean_of_five(made, table, theirs))
                low, high = bootstrap(change.tolist())
                yield row(table, ours, theirs, f"{change.mean():+.1f} ({low:+.1f} to {high:+.1f})")


def mean_of_five(made: Sequence[Run], table: str, name: str) -> np.ndarray:
    """Return the mean of five per edit, in the order of their ids, over all runs of a row."""
    runs = [run["values"] for run in made if (run["table"], run["row"]) == (table, name)]
    means: np.ndarray = np.mean([[values[label] for label in FIVE] for values in runs], axis=(0, 1))
    return means


def prices(made: Sequence[Run]) -> Iterator[str]:
    """Yield how the price of an edit grows: the slope of a straight line through it, times the number of edits.

    Counted from the edit at which rehearsal samples its full number of past edits: earlier edits are cheaper.
    """
    full = load_recipe("llava").rehearsal.size + 1
    columns = "run", "per edit", "median", "change over the stream, % of the median (95 % interval)"
    yield from head(*columns, title=f"Price of an edit by its number, from the {full}th on")
    for run in made:
        if run["table"] == "all" and len(run["cost"]) > 1 and run["row"] == "default":
            for label in ("cost", "writes", "seconds"):
                values = np.asarray(run[label], dtype=float)[full - 1 :]
                change, low, high = (100 * value / np.median(values) for value in growth(values))
                median = f"{np.median(values):.2f}"
                name = f"{run['row']}, {run['edits']} edits"
                yield row(name, label, median, f"{change:+.0f} ({low:+.0f} to {high:+.0f})")


def line(name: str, runs: Sequence[Run]) -> str:
    """Return one row: means over the runs, with the interval over edits; an edit's value is its mean over the runs."""
    cells, five = [], []
    for label in COLUMNS:
        means = np.mean([run["values"][label] for run in runs], axis=0)
        found = estimate([float(value) for value in means])
        five += [found.value] if label in FIVE else []
        cells.append(share(found.value, found.low, found.high))
    spread = [np.mean(run["values"]["Rel"]) for run in runs]
    if len(runs) > 1:
        cells[0] += f" [{100 * min(spread):.0f}-{100 * max(spread):.0f}]"
    cost = np.mean([total(run) / max(1, len(run["cost"])) for run in runs])
    count = f"{len(runs)} x {runs[0]['edits']}"
    return row(name, *cells, f"{100 * np.mean(five):.1f}", f"{cost:.1f}", count)


def arrivals() -> Iterator[str]:
    """Yield the price of 100 edits and their scores, beside a LoRA that is trained again at each, for RESULTS.md."""
    runs = [run for run in runs_of(FILE) if run["table"] == "arrivals"]
    edits = runs[0]["edits"]
    retrained = EPOCHS * edits * (edits + 1) // 2
    yield f"Samples sent forward and backward over {edits} edits; a sample sent only forward counts a third. A LoRA"
    yield f"that is trained for {EPOCHS} epochs on all edits so far, after each of them, takes {retrained:,}."
    yield f"Differences in points at the end, ours minus LoRA's, over {STREAMS} streams of other edits,"
    yield f"n = {STREAMS * edits}, paired by edit, LoRA's in the mean of {ORDERS} orders of its stream, with the 95 %"
    yield "bootstrap interval.\n"
    yield from head("ours", "samples", "share", "minus", *FIVE)
    paid = float(np.mean([total(run) for run in runs if run["row"] == OURS]))
    for theirs in RATES:
        found = [compare(values(runs, theirs, label), values(runs, OURS, label)) for label in FIVE]
        cells = [points(one.difference, one.low, one.high) for one in found]
        yield row(OURS, f"{paid:,.0f}", f"1/{retrained / paid:.1f}", theirs, *cells)
    ends = []
    for theirs in RATES:
        low, label = min((low_of_streams(runs, theirs, label), label) for label in FIVE)
        ends.append(f"{theirs}: {100 * low:+.1f} ({label})")
    yield f"\nIf streams are resampled too, not only edits, the lowest interval end, minus {'; minus '.join(ends)}."


def low_of_streams(runs: Sequence[Run], theirs: str, label: str) -> float:
    """Return the lower end of the 95 % interval that resamples streams, and edits within each."""
    change = np.subtract(values(runs, OURS, label), values(runs, theirs, label)).reshape(STREAMS, -1)
    rng, resamples, edits = np.random.default_rng(0), 2000, change.shape[1]
    sampled = rng.integers(0, STREAMS, (resamples, STREAMS, 1)), rng.integers(0, edits, (resamples, STREAMS, edits))
    return float(np.percentile(change[sampled].mean(axis=(1, 2)), 2.5))


def total(run: Run) -> float:
    """Return the cost of a stream, a consolidation counted."""
    return float(sum(run["cost"]) + (run["consolidation"] or 0))


def values(runs: Sequence[Run], name: str, label: str) -> list[float]:
    """Return a metric of each edit, its mean over orders, stream by stream, in the order of the edits' ids."""
    found: list[float] = []
    for stream in range(STREAMS):
        mine = [run["values"][label] for run in runs if run["row"] == name and run["seed"] % STREAMS == stream]
        found += np.mean(mine, axis=0).tolist()
    return found
