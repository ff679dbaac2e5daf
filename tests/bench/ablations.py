"""The paper's ablations on the embedded models and on the panel's development half: the tables of ABLATIONS.md.

    python tests/bench/ablations.py run OUT --workers 2 [--sweep statistics --world llava --seed 42]
    python tests/bench/ablations.py calibrate OUT [--world llava]
    python tests/bench/ablations.py show > more_lab/results/ABLATIONS.md

`run` gives each file of recipes/sweeps to `more sweep` once a world, with the models and suites of that world, and adds
to more_lab/results/ablations.jsonl. `calibrate` adds runs of three settings, each at the best of nine of its own. A
model of the panel needs its suites: OUT/suites/A1, as tests/worlds/panel/build.py writes them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from more_cli.cli.app import main as more
from more_cli.recipe.settings import spelled
from panel_runs import METRICS
from panel_show import FIVE, MEAN, over_models, per_edit
from streams import DATA, FAMILIES, model_of, suite_of

SWEEPS = Path(__file__).parents[2] / "recipes" / "sweeps"
RESULTS = Path(__file__).parents[2] / "more_lab" / "results" / "ablations.jsonl"
HEAD = Path(__file__).parent / "ablations_head.md"
PANEL = ("A1", "A2", "B1")
"""Models of the development half that are small enough."""
RECIPES = {
    "llava": "paper-llava",
    "blip2_opt": "paper-blip2",
    "qwen2_vl": "paper-qwen2-vl",
    "qwen3_vl": "paper-qwen3-vl",
}
FIXED = {("statistics", "blip2_opt"): {"visual.lambda": ["none"]}}
"""Settings of all trials of a sweep on a world: sites that share a P have one lambda, that of the text sites."""
LABELS = (*FIVE, MEAN)
FROZEN = "A frozen"
"""The setting of the recipe that a sweep compares itself with, changed."""
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Another number of threads gives other last digits."""
CALIBRATED = "calibrated"
"""Not a sweep: settings that are each calibrated first, with as many tries."""
SETTINGS = ("statistics=site", "statistics=shared", "pooling=none")
"""Those settings, the paper's own first."""
SEEDS = "seeds"
"""The sweep that compares bases; the others take their mean."""
Row = dict[str, Any]
Cell = tuple[str, str]
"""A world and a suite."""
Sides = tuple[list[Row], list[Row]]


def places(world: str, out: Path) -> tuple[str, dict[str, str]]:
    """Return the checkpoint of a world, and its suites by name as a sweep takes them."""
    if world in PANEL:
        return str(DATA / "panel" / world), {"mistakes": str(out / "suites" / world / "mistakes" / "eval.json")}
    names = ("e-vqa", "e-ic")
    if world == "llava":
        return "embedded:llava", {name: name for name in names}
    return str(model_of(world)), {name: str(suite_of(world, f"{name}-mini") / "eval.json") for name in names}


def sweep_file(name: str, world: str, seeds: Sequence[int], out: Path) -> Path:
    """Write a sweep of the repository for another world, and return its path."""
    values = tomllib.loads((SWEEPS / f"{name}.toml").read_text(encoding="utf-8"))
    model, suites = places(world, out)
    named = {"e-vqa", "mistakes"} if values["suites"] == ["e-vqa"] else set(suites)
    recipe = RECIPES.get(world, RECIPES["llava"])
    settings = {key.replace(RECIPES["llava"], recipe): each for key, each in values.pop("settings", {}).items()}
    settings |= FIXED.get((name, world), {})
    values |= {
        "editors": [editor.replace(RECIPES["llava"], recipe) for editor in values["editors"]],
        "models": [model],
        "suites": [path for suite, path in suites.items() if suite in named],
        "protocols": ["final"],
        "threads": 1,
    }
    if seeds:
        values["seeds"] = list(seeds)
    lines = [f"{key} = {spelled(value)}" for key, value in values.items()]
    lines += ["[settings]", *(f'"{key}" = {spelled(each)}' for key, each in flat(settings))]
    path = out / f"{world}-{name}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted names."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def run(arguments: argparse.Namespace) -> int:
    """Run sweeps one after the other, and add what they measured."""
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    worst = 0
    for name in arguments.sweep or sorted(path.stem for path in SWEEPS.glob("*.toml")):
        for world in arguments.world or (*FAMILIES, *PANEL):
            file = sweep_file(name, world, arguments.seed, out)
            command = ["sweep", str(file), "-o", str(out / world), "--workers", str(arguments.workers)]
            worst = max(worst, more(command))
            add(trials_of(name, world, out))
    return worst


def calibrate(arguments: argparse.Namespace) -> int:
    """Compare settings that are calibrated alike, on one basis."""
    for world in arguments.world or (*FAMILIES, *PANEL):
        model, suites = places(world, arguments.out.resolve())
        for suite, path in suites.items():
            named = "e-ic" if suite == "e-ic" else "e-vqa"
            where = ["--suite", named]
            if world != "llava":
                where = [model, *where, "--data-root", str(Path(path).parent)]
            for setting in SETTINGS:
                extra = [] if setting.startswith("pooling") else fixed_settings("statistics", world)
                changed = [part for each in (setting, *extra) for part in ("--set", each)]
                tuned = ["--calibrate", "9", "--protocol", "final", "--limit", "100", "--json"]
                command = [sys.executable, "-m", "more_cli", "eval", *where, "--editor", "more:paper", *changed, *tuned]
                done = subprocess.run(command, env=ONE_THREAD, stdout=subprocess.PIPE, check=True, text=True)
                add([measured(CALIBRATED, world, suite, setting, 42, json.loads(done.stdout))])
    return 0


def fixed_settings(sweep: str, world: str) -> list[str]:
    """Return the settings of all trials of a sweep on a world, as `--set` takes them."""
    return [f"{name}={spelled(each[0])}" for name, each in FIXED.get((sweep, world), {}).items()]


def add(new: Iterable[Row]) -> None:
    """Add trials, in place of older ones of the same name."""
    found = {key(row): row for row in (*rows(), *new)}
    kept_rows = [{name: value for name, value in found[each].items() if name != "ids"} for each in sorted(found)]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept_rows)
    RESULTS.write_text(text, encoding="utf-8")


def trials_of(sweep: str, world: str, out: Path) -> Iterator[Row]:
    """Yield the trials that a sweep has just written."""
    suites = {path: name for name, path in places(world, out)[1].items()}
    fixed = fixed_settings(sweep, world)
    for text in (out / world / "results.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        trial = line["trial"]
        changed = " ".join(setting for setting in trial["settings"] if setting not in fixed) or FROZEN
        change, seed = (f"seed={trial['seed']}", 0) if sweep == SEEDS else (changed, trial["seed"])
        yield measured(sweep, world, suites[trial["suite"]], change, seed, line)


def measured(sweep: str, world: str, suite: str, change: str, seed: int, line: Mapping[str, Any]) -> Row:
    """Return what the tables need of a run."""
    return {
        "sweep": sweep,
        "world": world,
        "suite": suite,
        "change": change,
        "seed": seed,
        "counts": line["counts"],
        "cost": round(line["cost"], 3),
        "values": {
            label: [one(edit["values"], name) for edit in line["per_edit"]]
            for label, name in METRICS.items()
            if label in FIVE
        },
    }


def one(values: Mapping[str, Sequence[float | None]], name: str) -> float | None:
    """Return an edit's mean over the probes of a metric; None without one."""
    known = [value for value in values.get(name, ()) if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def key(row: Row) -> tuple[str, str, str, str, int]:
    """Return the name of a trial."""
    return row["sweep"], row["world"], row["suite"], row["change"], row["seed"]


def rows() -> list[Row]:
    """Return all trials; an edit is named by its place, since a suite has the same edits in the same order in all."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    trials = [json.loads(line) for line in lines]
    return [trial | {"ids": list(range(len(trial["values"]["Rel"])))} for trial in trials]


def show() -> Iterator[str]:
    """Yield the page: first the means over worlds, then every world."""
    everything = rows()
    sweeps = {
        sweep: [row for row in everything if row["sweep"] == sweep]
        for sweep in sorted({r["sweep"] for r in everything})
    }
    yield HEAD.read_text(encoding="utf-8").rstrip()
    yield from (
        "",
        "## Means over worlds and suites",
        "",
        *table(("sweep", "setting, minus the first", "in", *LABELS, "up, down")),
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
    return line(sweep, f"`{other}`", len(sides), *(change(samples) for samples in means), shown)


def section(sweep: str, trials: Sequence[Row]) -> Iterator[str]:
    """Yield the tables of a sweep: of the first setting what was reached, of the others the difference from it."""
    first, *others = changes(sweep, trials)
    yield from ("", f"## {sweep}", "", f"`{first}`:", "", *table(("world", "suite", "bases", "learnt", *LABELS)))
    for cell in dict.fromkeys((row["world"], row["suite"]) for row in trials):
        runs = of(trials, cell, first)
        learnt = sum(run["counts"].get(status, 0) for run in runs for status in ("learnt", "already-right")) / len(runs)
        levels = (percent(over_models([list(per_edit(runs, label).values())])) for label in LABELS)
        yield line(*cell, len(runs), f"{learnt:.0f}", *levels)
    for other in others:
        yield from ("", f"`{other}`, minus that:", "", *table(("world", "suite", "bases", *LABELS)))
        for cell, runs in pairs(sweep, trials, other).items():
            yield line(*cell, len(runs[1]), *(change([differences(*runs, label)]) for label in LABELS))


def changes(sweep: str, trials: Sequence[Row]) -> list[str]:
    """Return the settings of a sweep, the paper's own first."""
    if sweep == CALIBRATED:
        return list(SETTINGS)
    values = tomllib.loads((SWEEPS / f"{sweep}.toml").read_text(encoding="utf-8"))
    own = " ".join(f"{name}={spelled(each[0])}" for name, each in flat(values.get("settings", {})))
    if sweep == SEEDS:
        own = f"seed={values['seeds'][0]}"
    elif len(values["editors"]) > 1:
        own = FROZEN
    others = {row["change"] for row in trials} - {own}
    return [own, *sorted(others, key=lambda change: (len(change), change))]  # rank 8 before rank 16


def of(trials: Sequence[Row], cell: Cell, change: str) -> list[Row]:
    """Return the trials of a world and suite with a setting, one for each basis."""
    return [row for row in trials if (row["world"], row["suite"]) == cell and row["change"] == change]


def pairs(sweep: str, trials: Sequence[Row], other: str) -> dict[Cell, Sides]:
    """Return by world and suite the trials of the first setting and of another, with the bases that both have."""
    first, found = changes(sweep, trials)[0], dict[Cell, Sides]()
    for cell in dict.fromkeys((row["world"], row["suite"]) for row in trials):
        ours, theirs = of(trials, cell, first), of(trials, cell, other)
        seeds = {row["seed"] for row in ours} & {row["seed"] for row in theirs}
        if seeds:
            found[cell] = [row for row in ours if row["seed"] in seeds], [row for row in theirs if row["seed"] in seeds]
    return found


def differences(ours: Sequence[Row], theirs: Sequence[Row], label: str) -> list[float]:
    """Return by edit what the second has more than the first, means over bases."""
    first, second = per_edit(ours, label), per_edit(theirs, label)
    return [second[edit] - value for edit, value in first.items()]


def change(samples: Sequence[Sequence[float]]) -> str:
    """Return the mean of a difference over worlds with its interval."""
    return percent(over_models(samples, shares=False), "+") if any(map(any, samples)) else "0.0"


def percent(found: tuple[float, float, float], sign: str = "") -> str:
    """Return a share and its 95 % interval over edits in percent."""
    value, low, high = (100 * number for number in found)
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def table(columns: Sequence[str]) -> Iterator[str]:
    """Yield the head of a table."""
    yield line(*columns)
    yield line(*["---"] * len(columns))


def line(*cells: object) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show")
    running = commands.add_parser("run")
    calibrating = commands.add_parser("calibrate")
    for command in (running, calibrating):
        command.add_argument("out", type=Path)
        command.add_argument("--world", action="append", choices=(*FAMILIES, *PANEL))
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--sweep", action="append", choices=sorted(path.stem for path in SWEEPS.glob("*.toml")))
    running.add_argument("--seed", action="append", type=int, help="of the basis; default: those of the sweep")
    arguments = parser.parse_args()
    if arguments.command == "show":
        print("\n".join(show()))
        return 0
    return run(arguments) if arguments.command == "run" else calibrate(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
