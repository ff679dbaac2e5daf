"""What holds after a stream of edits, and what else changed: the tables of RETENTION.md.

    python tests/bench/retention.py run --table main --rows default,paper   # adds to more_lab/results/retention.jsonl
    python tests/bench/retention.py show > more_lab/results/RETENTION.md
    python tests/bench/retention.py run --table arrivals --streams FOLDER       # of tests/worlds/embedded/streams.py

Every run starts from the untouched embedded model, applies a stream of the evaluation pool and scores all edits and
their probes after the last edit (protocol `final`). Finished runs are skipped.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arrivals import ORDERS, RATES, STREAMS
from more_cli.evaluation.metrics import bootstrap, estimate
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.inputs.edits import Edit, read_edits
from more_cli.recipe.files import load_recipe
from more_lab.editors.none import NoEditor
from offline import train
from streams import FAMILIES, Run, anchors_of, growth, pool, run_stream, runtime

RESULTS = Path(__file__).parents[2] / "more_lab" / "results" / "retention.jsonl"
METRICS = {
    "Rel": "rel.tf_exact",
    "Rel gen": "rel.gen_exact",
    "T-Gen": "gen_text.tf_exact",
    "T-Gen gen": "gen_text.gen_exact",
    "M-Gen": "gen_image.tf_exact",
    "M-Gen gen": "gen_image.gen_exact",
    "T-Loc": "loc_text.loc_expkl_answer",
    "M-Loc": "loc_image.loc_expkl_answer",
}
FIVE = ("Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc")


@dataclass(frozen=True)
class Row:
    """One way to write a stream of edits into the model."""

    recipe: str = ""
    family: str = "llava"
    settings: tuple[str, ...] = ()
    anchors: int = 0
    consolidate: str = "off"
    batch: bool = False
    left: bool = False
    """Whether the rows of G P are scaled too."""
    epochs: int = 0
    rate: float = 1e-3


LOOP = Row("llava", anchors=128)
ALONE = ("rehearsal.size=0", "criterion=loss", "loss=nll", "target_nll=0.05", "default.lambda_rel=0.005")
ALONE += ("pooling=mean", "damping=none", "conjugate=0", "max_steps=10", 'sites=["text.ffn_out","projector"]')
METHODS = {
    "before": Row(),
    "paper": Row("paper-llava"),
    "authors": Row("authors-llava"),
    "naive": Row("paper-llava", settings=("precondition=false",)),
    "polyak": Row("llava", settings=ALONE),
    "default": LOOP,
    "default without anchors": Row("llava"),
    "default, consolidated": Row("llava", anchors=128, consolidate="all"),
    "default, --batch": Row("llava", anchors=128, batch=True),
    "LoRA, 10 epochs": Row(epochs=10),
    "LoRA, 10 epochs, rate 3e-3": Row(epochs=10, rate=3e-3),
    "LoRA, 20 epochs, anchors": Row(epochs=20, anchors=128),
    "LoRA, 41 epochs": Row(epochs=41),
}


def varied(*settings: str, **fields: Any) -> Row:
    """Return the default with something changed."""
    return Row("llava", settings=settings, **({"anchors": 128} | fields))


ABLATION = {
    "default": LOOP,
    "P = I": varied("precondition=false"),
    "no damping": varied("damping=none"),
    "mean key": varied("pooling=mean"),
    "left factor": varied(left=True),
    "along G P": varied("conjugate=0"),
    "no shorter steps": varied("halvings=0"),
    "NLL as loss": varied("loss=nll"),
    "margin 1": varied("margin=1"),
    "rehearsal 0": varied("rehearsal.size=0"),
    "rehearsal 8": varied("rehearsal.size=8"),
    "no anchors": varied(anchors=0),
    "anchors in P only": varied("anchors.size=0"),
    "anchors in writes only": varied("anchors.keys=false"),
    "4 anchors a write": varied("anchors.size=4"),
    "one step for all sites": varied("visual_share=none"),
    "FFN-out only": varied('sites=["text.ffn_out","projector"]'),
    "consolidated": varied(consolidate="all"),
    "--batch": varied(batch=True),
    "--batch, P = I": varied("precondition=false", batch=True),
}


ARRIVALS = {"default": LOOP} | {name: Row(epochs=10, rate=rate) for name, rate in RATES.items()}


def by_family() -> Iterator[tuple[str, Row]]:
    """Yield the recipes of every backbone of the paper, and its unedited model."""
    for family, name in zip(FAMILIES, ("llava", "blip2", "qwen2-vl", "qwen3-vl"), strict=True):
        yield f"{family}: before", Row(family=family)
        yield f"{family}: paper", Row(f"paper-{name}", family)
        yield f"{family}: authors", Row(f"authors-{name}", family)
        yield f"{family}: default", Row("default", family, anchors=128)
        yield f"{family}: default, consolidated", Row("default", family, anchors=128, consolidate="all")


# The last three of the four vision layers that features come from, as in the paper.
SITES = {
    "projector + text": (),
    "vision + projector": ('sites=["vision.ffn_out","projector"]', 'exclude=["vision.0.*"]'),
    "all three": ('sites=["text.ffn_out","vision.ffn_out","projector"]', 'exclude=["vision.0.*"]'),
}
VISION = {f"paper: {name}": Row("paper-llava", settings=settings) for name, settings in SITES.items()}
VISION |= {f"default: {name}": Row("llava", settings=settings, anchors=128) for name, settings in SITES.items()}
TABLES = {
    "main": METHODS,
    "arrivals": ARRIVALS,
    "all": METHODS,
    "emblems": METHODS,
    "ablation": ABLATION,
    "families": dict(by_family()),
    "vision": VISION,
}
SEEDS = {
    "main": (0, 1, 2),
    "arrivals": tuple(range(STREAMS * ORDERS)),
    "all": (0,),
    "emblems": (0,),
    "ablation": (0, 1, 2),
    "families": (0,),
    "vision": (0,),
}


def stream(table: str, seed: int, family: str, further: Path) -> list[Edit]:
    """Return records 1-100 of the evaluation pool, the whole pool, or its new emblems; a seed above 0 shuffles them.

    The arrivals have streams of their own in `further`, each in its own order and then shuffled.
    """
    if table == "arrivals":
        edits = list(read_edits(further / str(seed % STREAMS) / "edits.json").edits)
        if seed >= STREAMS:
            random.Random(seed).shuffle(edits)
        return edits
    if table == "main":
        return pool("e-vqa-mini", "eval.json", 100, seed)
    if table in ("ablation", "families", "vision"):
        return pool("e-vqa-mini", "eval.json", 100, family=family)
    edits = pool("e-vqa-mini", "eval.json", None, seed)
    return [edit for edit in edits if edit.tags.get("kind", "").startswith("new-")] if table == "emblems" else edits


def perform(table: str, name: str, seed: int, further: Path) -> dict[str, Any]:
    """Make one run and return its result."""
    row, started = TABLES[table][name], time.perf_counter()
    edits, loaded = stream(table, seed, row.family, further), runtime(row.family)
    anchors = anchors_of(loaded, row.anchors, row.family) if row.anchors else []
    run = Run([])
    if row.epochs:
        run.scores, cost = train(loaded, edits, row.epochs, anchors, rate=row.rate, seed=seed)
        run.cost = [cost]
    elif row.recipe:
        settings = [setting for setting in row.settings if not setting.endswith("=")]
        drop = [setting[:-1] for setting in row.settings if setting.endswith("=")]
        seeded = [f"rehearsal.seed={seed}"] if table == "ablation" else []
        run = run_stream(
            loaded,
            edits,
            row.recipe,
            [*settings, *seeded],
            anchors,
            drop=drop,
            family=row.family,
            consolidate=row.consolidate,
            batch=row.batch,
            left=row.left,
            generate=True,
        )
    else:
        with loaded.attached([]):
            run.scores = run_probes(loaded, NoEditor(), [probe for edit in edits for probe in probes_of(edit)])
    return {
        "table": table,
        "row": name,
        "seed": seed,
        "edits": len(edits),
        "values": {label: by_edit(run.scores, metric) for label, metric in METRICS.items()},
        "cost": run.cost,
        "writes": run.writes,
        "seconds": [round(value, 4) for value in run.seconds],
        "statuses": run.statuses,
        "consolidation": run.consolidation,
        "wall": round(time.perf_counter() - started, 1),
    }


def by_edit(scores: list[ProbeScore], metric: str) -> list[float]:
    """Return the mean of a metric over each edit's probes, in the order of the edits' ids."""
    kind, _, name = metric.partition(".")
    found: dict[str, list[float]] = {}
    for score in scores:
        if score.probe.kind == kind:
            found.setdefault(score.probe.edit, []).append(score.values[name])
    return [round(sum(values) / len(values), 5) for _, values in sorted(found.items())]


def results() -> list[dict[str, Any]]:
    """Return the runs made so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def show() -> Iterator[str]:
    """Yield RETENTION.md."""
    yield (Path(__file__).parent / "retention_head.md").read_text(encoding="utf-8")
    titles = {
        "main": "Records 1-100, three orders",
        "all": "The whole pool",
        "emblems": "New emblems alone",
        "ablation": "One thing changed, three seeds of the rehearsal",
        "families": "Records 1-100 of each family's own pool",
        "vision": "Which parts are edited: records 1-100 of LLaVA's pool",
    }
    for table, title in titles.items():
        runs = [run for run in results() if run["table"] == table]
        if not runs:
            continue
        yield f"\n## {title}\n"
        yield "| row | " + " | ".join((*METRICS, "mean of five", "cost per edit", "runs x edits")) + " |"
        yield "|---" * (len(METRICS) + 4) + "|"
        for name in TABLES[table]:
            if mine := [run for run in runs if run["row"] == name]:
                yield line(name, mine)

    yield from against_lora()
    yield from prices()


def against_lora() -> Iterator[str]:
    """Yield our rows minus LoRA's at equal compute, edit by edit, with the bootstrap interval over edits."""
    yield "\n## The default minus LoRA, mean of five, paired by edit\n"
    yield "| edits | row | minus | difference (95 % interval) |"
    yield "|---|---|---|---|"
    made = results()
    for table in ("main", "all", "emblems"):
        for ours in ("default", "default, consolidated", "default, --batch"):
            for theirs in ("LoRA, 20 epochs, anchors", "LoRA, 41 epochs"):
                change = 100 * (mean_of_five(made, table, ours) - mean_of_five(made, table, theirs))
                low, high = bootstrap(change.tolist())
                yield f"| {table} | {ours} | {theirs} | {change.mean():+.1f} ({low:+.1f} to {high:+.1f}) |"


def mean_of_five(made: list[dict[str, Any]], table: str, row: str) -> np.ndarray:
    """Return the mean of five per edit, in the order of their ids, over all runs of a row."""
    runs = [run["values"] for run in made if (run["table"], run["row"]) == (table, row)]
    return np.mean([[values[label] for label in FIVE] for values in runs], axis=(0, 1))


def prices() -> Iterator[str]:
    """Yield how the price of an edit grows: the slope of a straight line through it, times the number of edits.

    Counted from the edit at which rehearsal samples its full number of past edits: earlier edits are cheaper.
    """
    full = load_recipe("llava").rehearsal.size + 1
    yield f"\n## Price of an edit by its number, from the {full}th on\n"
    yield "| run | per edit | median | change over the stream, % of the median (95 % interval) |"
    yield "|---|---|---|---|"
    for run in results():
        if run["table"] == "all" and len(run["cost"]) > 1 and run["row"] == "default":
            for label in ("cost", "writes", "seconds"):
                values = np.asarray(run[label], dtype=float)[full - 1 :]
                change, low, high = (100 * value / np.median(values) for value in growth(values))
                median = f"{np.median(values):.2f}"
                name = f"{run['row']}, {run['edits']} edits"
                yield f"| {name} | {label} | {median} | {change:+.0f} ({low:+.0f} to {high:+.0f}) |"


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """Return one row: means over the runs, with the interval over edits; an edit's value is its mean over the runs."""
    cells, five = [], []
    for label in METRICS:
        means = np.mean([run["values"][label] for run in runs], axis=0)
        found = estimate([float(value) for value in means])
        five += [found.value] if label in FIVE else []
        cells.append(f"{100 * found.value:.1f} ({100 * found.low:.1f}-{100 * found.high:.1f})")
    spread = [np.mean(run["values"]["Rel"]) for run in runs]
    if len(runs) > 1:
        cells[0] += f" [{100 * min(spread):.0f}-{100 * max(spread):.0f}]"
    cost = np.mean([(sum(run["cost"]) + (run["consolidation"] or 0)) / max(1, len(run["cost"])) for run in runs])
    count = f"{len(runs)} x {runs[0]['edits']}"
    return "| " + " | ".join((name, *cells, f"{100 * np.mean(five):.1f}", f"{cost:.1f}", count)) + " |"


def main() -> None:
    """Make runs, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "show"])
    parser.add_argument("--table", choices=list(TABLES), default="main")
    parser.add_argument("--rows", default="", help="names of rows, separated by `;` (default: all)")
    parser.add_argument("--seeds", default="", help="such as 0,1 (default: the table's)")
    parser.add_argument("--streams", type=Path, default=Path(), help="streams of tests/worlds (for arrivals)")
    arguments = parser.parse_args()
    if arguments.command == "show":
        print("\n".join(show()))
        return
    torch.set_num_threads(1)
    RESULTS.parent.mkdir(exist_ok=True)
    names = arguments.rows.split(";") if arguments.rows else list(TABLES[arguments.table])
    seeds = [int(s) for s in arguments.seeds.split(",")] if arguments.seeds else SEEDS[arguments.table]
    for seed in seeds:
        for name in names:
            made = {(run["table"], run["row"], run["seed"]) for run in results()}
            if (arguments.table, name, seed) in made or ("before" in name and seed):
                continue
            run = perform(arguments.table, name, seed, arguments.streams)
            with RESULTS.open("a") as file:
                file.write(json.dumps(run) + "\n")
            print(arguments.table, seed, line(name, [run]), f"{run['wall']} s", flush=True)


if __name__ == "__main__":
    main()
