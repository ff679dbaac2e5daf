"""The speed of `more`: the page more_lab/results/RESULTS.md, from results that each come from one command.

python tests/bench/speed.py FOLDER [demo] [270M] [290M] [ladder] [eval] [merge] [start] [busy]   # 20 GB of scratch
python tests/bench/speed.py show > more_lab/results/RESULTS.md
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import arrivals
import crowded
from more_lab.experiments.scaling import trend

RESULTS = Path(__file__).parents[2] / "more_lab" / "results" / "speed"
LONG = RESULTS.parent / "long.json"
REPEATS = 10
ROUNDS = 3
"""Rounds of an evaluation."""
ALONE = ("--set", "rehearsal.size=0")
SHORT = (*ALONE, "--set", "max_steps=3")
TEXT = ("--set", 'sites=["text.ffn_in", "text.ffn_out"]')
DEMO: dict[str, tuple[str, ...]] = {
    "default": (),
    "default, edits one by one": ALONE,
    "paper-llava": ("--recipe", "paper-llava"),
}
SMALL: dict[str, tuple[str, ...]] = {
    "projector and text": SHORT,
    "text alone": (*SHORT, *TEXT),
    "paper-llava": ("--recipe", "paper-llava"),
}
PROPORTIONED = ("--set", "rank=96")
"""512 of 4096, as in the paper, for a width of 768."""
THIN: dict[str, tuple[str, ...]] = {
    "projector and text": (*SHORT, *PROPORTIONED),
    "text alone": (*SHORT, *PROPORTIONED, *TEXT),
}
RATIOS = {
    "edit_over_floor": "edit over floor",
    "step_over_floor": "its writes over floor",
    "lora_step_over_step": "LoRA step over write",
    "lora_step_over_later_step": "LoRA step over later writes",
}
COMMANDS = ("--help", "--version", "status", "log")


def demo(folder: Path) -> dict[str, Any]:
    """The embedded model, 48 edits of its suite."""
    from more_cli.demo.files import demo_model_dir

    return benches(demo_model_dir(), DEMO, "48")


def small(folder: Path) -> dict[str, Any]:
    """270 million random parameters, 576 image tokens, random edits."""
    return benches(built(folder, "270M-576"), SMALL, "8")


def thin(folder: Path) -> dict[str, Any]:
    """290 million in the proportions of LLaVA-1.5-7B: 32 layers, the last 7 edited, width 768, rank 96."""
    return benches(built(folder, "290M-576"), THIN, "8")


def ladder(folder: Path) -> dict[str, Any]:
    """What a LoRA step does beyond a write: the 270 million parameters, one edit, projector and text."""
    from ladder import measure

    return measure(built(folder, "270M-576"))


def built(folder: Path, shape: str) -> Path:
    """Return a random model, built on first use."""
    from checkpoints import build

    return folder / shape if (folder / shape).exists() else build(shape, folder / shape)


def benches(model: Path, runs: dict[str, tuple[str, ...]], limit: str) -> dict[str, Any]:
    """Run `more bench` with each of these options."""
    more = (sys.executable, "-m", "more_cli", "bench", str(model), "--limit", limit, "--floor", "--peers")
    return {name: summary(json.loads(output(*more, "--json", "-q", *options))) for name, options in runs.items()}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Drop single edits and paths."""
    counts = {"edits": len(found["edits"]), "writes": sum(edit["writes"] for edit in found["edits"])}
    return {key: value for key, value in found.items() if key not in ("edits", "model", "source")} | {"counts": counts}


def scoring(folder: Path) -> dict[str, Any]:
    """Evaluation: 100 edits of the embedded model, five probes each."""
    from scoring import measure

    return measure(folder / "eval", rounds=ROUNDS)


def merge(folder: Path) -> dict[str, Any]:
    """4 GB in three shards."""
    from merge import measure

    return measure(folder / "merge")


def start(folder: Path) -> dict[str, Any]:
    """Commands that need no weights, on an edited copy of the embedded model."""
    from more_cli.demo.files import demo_model_dir
    from more_cli.recipe.files import data_folder

    model = folder / "start" / "llava"
    if not model.exists():
        shutil.copytree(demo_model_dir(), model)
        edits = data_folder("sample_edits") / "edits.jsonl"
        output(sys.executable, "-m", "more_cli", "edit", str(model), str(edits), "-q")
    found = {"python -c pass": [wall(sys.executable, "-c", "pass") for _ in range(REPEATS)]}
    for command in COMMANDS:
        arguments = (command,) if command.startswith("-") else (command, str(model))
        found[f"more {command}"] = [wall(sys.executable, "-m", "more_cli", *arguments) for _ in range(REPEATS)]
    return found


def busy(folder: Path) -> dict[str, Any]:
    """Edits beside another busy process, on all cores."""
    from more_cli.demo.files import demo_model_dir

    return crowded.measure({"270M": built(folder, "270M-576"), "embedded": demo_model_dir()})


def wall(*command: str) -> float:
    """Return the seconds of a process."""
    started = time.perf_counter()
    output(*command)
    return time.perf_counter() - started


def output(*command: str) -> bytes:
    """Return the standard output of a process, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, capture_output=True, env=environment).stdout


SECTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "demo": demo,
    "270M": small,
    "290M": thin,
    "ladder": ladder,
    "eval": scoring,
    "merge": merge,
    "start": start,
    "busy": busy,
}


def show() -> Iterator[str]:
    """Yield RESULTS.md."""
    yield (Path(__file__).parent / "speed_head.md").read_text(encoding="utf-8").rstrip()
    for name, section in SECTIONS.items():
        yield f"\n## {(section.__doc__ or name).rstrip('.')}\n"
        yield f"    python tests/bench/speed.py FOLDER {name}\n"
        file = RESULTS / f"{name}.json"
        if not file.exists():
            yield "Not measured yet."
            continue
        result = json.loads(file.read_text(encoding="utf-8"))
        load = " to ".join(f"{value:.1f}" for value in result["load"])
        yield f"{result['cores']} cores, load average {load}.\n"
        yield from TABLES[name](result["found"])
    yield "\n## A LoRA trained again after every edit\n"
    yield "    python -m tests.worlds.embedded.streams FOLDER"
    yield "    python tests/bench/retention.py run --table arrivals --streams FOLDER\n"
    yield from arrivals.table()
    yield "\n## A long stream, rehearsal on\n"
    yield "    python tests/bench/long.py run\n"
    if LONG.exists():
        yield from long_table(json.loads(LONG.read_text(encoding="utf-8")))


def bench_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield ratios, and the parts of an edit."""
    yield "| recipe | edits, writes | ms an edit | " + " | ".join(RATIOS.values()) + " |"
    yield "|---" * (3 + len(RATIOS)) + "|"
    for name, run in found.items():
        edits, writes = run["counts"].values()
        ratios = [cell(run["ratios"].get(ratio)) for ratio in RATIOS]
        yield "| " + " | ".join((name, f"{edits}, {writes}", f"{1000 * run['seconds'] / edits:.0f}", *ratios)) + " |"
    yield "\nms an edit, by part:\n"
    parts = next(iter(found.values()))["parts"]
    yield "| recipe | " + " | ".join(parts) + " |"
    yield "|---" * (1 + len(parts)) + "|"
    for name, run in found.items():
        edits = run["counts"]["edits"]
        yield f"| {name} | " + " | ".join(f"{1000 * seconds / edits:.1f}" for seconds in run["parts"].values()) + " |"


def cell(ratio: dict[str, float] | None) -> str:
    """Return a median with its interval; empty if it was not measured."""
    return "" if ratio is None else f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def ladder_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds, and shares."""
    bare = median(found["seconds"]["the bare loop"])
    yield f"{found['tokens']} tokens; medians of {len(found['seconds']['the bare loop'])} rounds.\n"
    yield "| way | s (lowest to highest) | over the bare loop |"
    yield "|---|---|---|"
    for way, times in found["seconds"].items():
        yield f"| {way} | {median(times):.2f} ({min(times):.2f}-{max(times):.2f}) | {median(times) / bare:.2f} |"
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in found["kinds"].items())
    yield f"\nThe bare loop's time by kind of operation: {shares}."


def eval_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds and ratios."""
    yield f"{found['probes']} probes, {found['held']} of {found['edits']} edits hold; medians of {ROUNDS} rounds.\n"
    yield "| way | s (lowest to highest) | times faster | scores apart by at most |"
    yield "|---|---|---|---|"
    alone = median(found["seconds"]["one by one"])
    for way, times in found["seconds"].items():
        apart = f"{found['apart'][way]:.0e}" if way in found["apart"] else ""
        cells = f"{median(times):.1f} ({min(times):.1f}-{max(times):.1f})", f"{alone / median(times):.1f}", apart
        yield f"| {way} | " + " | ".join(cells) + " |"
    yield (
        "\n`one by one`: every question by itself, with a vision pass and a generated answer each time, and the base "
        "asked as well. `base known`: the base's answers are read from disk, as in a second `more eval --suite`."
    )


def merge_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds and memory."""
    ways = list(found["warm"])
    yield "Median seconds (lowest to highest), in one process:\n"
    yield "| base | " + " | ".join(ways) + " | merge over copytree | with `--link` | with `--sha256` |"
    yield "|---" * (4 + len(ways)) + "|"
    for cache in ("cold", "warm"):
        times = found[cache]
        cells = [f"{median(times[way]):.2f} ({min(times[way]):.2f}-{max(times[way]):.2f})" for way in ways]
        copy = median(times["copytree"])
        over = [f"{median(times[way]) / copy:.2f}" for way in ("merge", "merge --link", "merge --sha256")]
        yield "| " + " | ".join((cache, *cells, *over)) + " |"
    ours, theirs, empty = found["merge, process"], found["PEFT, process"], found["imports MB"]
    yield (
        f"\nWhole processes: `more merge` {ours[0]:.1f} s and {ours[1]:.0f} MB, {ours[1] - empty:.0f} MB of it above "
        f"imports; PEFT {theirs[0]:.1f} s and {theirs[1]:.0f} MB."
    )
    yield "\n`--sha256`: the written shards are hashed too, for `more.json`."
    parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found["cores"].items())
    yield f"\nCore seconds of a merge with `--link`, {sum(found['cores'].values()):.2f} in all: {parts}."


def start_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds."""
    yield "| command | median s | lowest | highest |"
    yield "|---|---|---|---|"
    for command, times in found.items():
        yield f"| `{command}` | {median(times):.2f} | {min(times):.2f} | {max(times):.2f} |"


def long_table(made: dict[str, Any]) -> Iterator[str]:
    """Yield how the price of an edit changes over the stream."""
    from long import SETTLED, columns

    held = np.array([held["resident"] / 2**20 for held in made["held"] if held["edit"] > SETTLED])
    rows = columns(made) | {"resident MiB": held}
    yield f"{made['edits']:,} edits of the embedded model with its anchors and the default recipe. The change over"
    yield f"1,000 edits is the slope from edit {SETTLED + 1} on (by then every question was asked once), in % of the"
    yield "median (95 % interval). LONG.md explains the rows.\n"
    yield "| | median | over 1,000 edits |"
    yield "|---|---|---|"
    for name, values in rows.items():
        if (found := trend(values.tolist())) is None:
            continue
        share = 100_000 / (made["edits"] - SETTLED)
        cells = f"{share * found.growth:+.1f} ({share * found.low:+.1f} to {share * found.high:+.1f})"
        yield f"| {name} | {found.median:.4g} | {cells} |"
    first, last = made["state_bytes"]
    yield f"\nThe state has {first:,} bytes before the first edit and {last:,} after the last; its header counts edits."


TABLES = {
    "demo": bench_table,
    "270M": bench_table,
    "290M": bench_table,
    "ladder": ladder_table,
    "eval": eval_table,
    "merge": merge_table,
    "start": start_table,
    "busy": crowded.table,
}


def main() -> None:
    """Measure sections, or print the page."""
    if sys.argv[1:] == ["show"]:
        print("\n".join(show()))
        return
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or SECTIONS:
        before = os.getloadavg()[0]
        found = SECTIONS[name](folder)
        result = {"cores": os.cpu_count(), "load": [before, os.getloadavg()[0]], "found": found}
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
