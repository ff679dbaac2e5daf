"""ABLATIONS.md: the paper's ablations, `recipes/sweeps`, on the embedded models and on the panel's development half.

An edit is named by its place: a suite has the same edits in the same order in all runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from more_cli.recipe.settings import dotted, spelled
from more_lab.panel.table import FIVE, MEAN, Run, over_models, per_edit, points, row, runs_of, text_of

SWEEPS = Path(__file__).parents[2] / "recipes" / "sweeps"
LABELS = (*FIVE, MEAN)
FROZEN = "A frozen"
"""The setting of the recipe that a sweep compares itself with, changed."""
CALIBRATED = "calibrated"
"""Not a sweep: settings that are each calibrated first, with as many tries."""
SETTINGS = ("statistics=site", "statistics=shared", "pooling=none")
"""Those settings, the paper's own first."""
SEEDS = "seeds"
"""The sweep that compares bases; the others take their mean."""
PAPER = "-paper"
"""Behind the name of a sweep: its trials with P_0 = I / (1 + lambda), the form of the paper's text."""
Cell = tuple[str, str]
"""A world and a suite."""
Sides = tuple[list[Run], list[Run]]


def page() -> Iterator[str]:
    """Yield the page: first the means over worlds, then every world."""
    everything = [run | {"ids": list(range(len(run["values"]["Rel"])))} for run in runs_of("ablations.jsonl")]
    sweeps = {
        sweep: [trial for trial in everything if trial["sweep"] == sweep]
        for sweep in sorted({trial["sweep"] for trial in everything})
    }
    yield text_of("ablations").rstrip()
    yield from (
        "",
        "## Means over worlds and suites",
        "",
        *table("sweep", "setting, minus the first", "in", *LABELS, "up, down"),
    )
    for sweep, trials in sweeps.items():
        _, *others = changes(sweep, trials)
        for other in others:
            yield mean_row(sweep, other, pairs(sweep, trials, other))
    for sweep, trials in sweeps.items():
        yield from section(sweep, trials)


def mean_row(sweep: str, other: str, sides: Mapping[Cell, Sides]) -> str:
    """Return the means of a setting, and in how many worlds and suites its mean of five is shown to be up or down."""
    means = [[differences(*runs, label) for runs in sides.values()] for label in LABELS]
    ends = [over_models([sample], shares=False)[1:] for sample in means[-1]]
    shown = f"{sum(low > 0 for low, _ in ends)}, {sum(high < 0 for _, high in ends)}"
    return row(sweep, f"`{other}`", len(sides), *(change(samples) for samples in means), shown)


def section(sweep: str, trials: Sequence[Run]) -> Iterator[str]:
    """Yield the tables of a sweep: of the first setting what was reached, of the others the difference from it."""
    first, *others = changes(sweep, trials)
    yield from ("", f"## {sweep}", "", f"`{first}`:", "", *table("world", "suite", "bases", "learnt", *LABELS))
    for cell in dict.fromkeys((trial["world"], trial["suite"]) for trial in trials):
        runs = of(trials, cell, first)
        learnt = sum(run["counts"].get(status, 0) for run in runs for status in ("learnt", "already-right")) / len(runs)
        levels = (percent(over_models([list(per_edit(runs, label).values())])) for label in LABELS)
        yield row(*cell, len(runs), f"{learnt:.0f}", *levels)
    for other in others:
        yield from ("", f"`{other}`, minus that:", "", *table("world", "suite", "bases", *LABELS))
        for cell, sides in pairs(sweep, trials, other).items():
            yield row(*cell, len(sides[1]), *(change([differences(*sides, label)]) for label in LABELS))


def changes(sweep: str, trials: Sequence[Run]) -> list[str]:
    """Return the settings of a sweep, the paper's own first."""
    if sweep == CALIBRATED:
        return list(SETTINGS)
    sweep = sweep.removesuffix(PAPER)
    values = tomllib.loads((SWEEPS / f"{sweep}.toml").read_text(encoding="utf-8"))
    own = " ".join(f"{name}={spelled(each[0])}" for name, each in dotted(values.get("settings", {})).items())
    if sweep == SEEDS:
        own = f"seed={values['seeds'][0]}"
    elif len(values["editors"]) > 1:
        own = FROZEN
    others = {run["change"] for run in trials} - {own}
    return [own, *sorted(others, key=lambda change: (len(change), change))]  # rank 8 before rank 16


def form_of(settings: Sequence[str]) -> tuple[str, str]:
    """Return what a trial's form of P adds to the name of its sweep, and the settings that are not of the form."""
    if "normalisation=paper" not in settings:
        return "", " ".join(settings)
    own = ("normalisation=", "default.step=")
    return PAPER, " ".join(setting for setting in settings if not setting.startswith(own))


def of(trials: Sequence[Run], cell: Cell, change: str) -> list[Run]:
    """Return the trials of a world and suite with a setting, one for each basis."""
    return [run for run in trials if (run["world"], run["suite"]) == cell and run["change"] == change]


def pairs(sweep: str, trials: Sequence[Run], other: str) -> dict[Cell, Sides]:
    """Return by world and suite the trials of the first setting and of another, with the bases that both have."""
    first, found = changes(sweep, trials)[0], dict[Cell, Sides]()
    for cell in dict.fromkeys((trial["world"], trial["suite"]) for trial in trials):
        ours, theirs = of(trials, cell, first), of(trials, cell, other)
        seeds = {run["seed"] for run in ours} & {run["seed"] for run in theirs}
        if seeds:
            found[cell] = [run for run in ours if run["seed"] in seeds], [run for run in theirs if run["seed"] in seeds]
    return found


def differences(ours: Sequence[Run], theirs: Sequence[Run], label: str) -> list[float]:
    """Return by edit what the second has more than the first, means over bases."""
    first, second = per_edit(ours, label), per_edit(theirs, label)
    return [second[edit] - value for edit, value in first.items()]


def change(samples: Sequence[Sequence[float]]) -> str:
    """Return the mean of a difference over worlds with its interval."""
    return points(*over_models(samples, shares=False)) if any(map(any, samples)) else "0.0"


def percent(found: tuple[float, float, float]) -> str:
    """Return a share and its 95 % interval over edits in percent."""
    value, low, high = (100 * number for number in found)
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def table(*columns: str) -> Iterator[str]:
    """Yield the head of a table."""
    yield row(*columns)
    yield row(*["---"] * len(columns))
