"""RESULTS.md: the speed of `more`, from results that each come from one command of `tests/bench/speed.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from more_lab.experiments.scaling import trend
from more_lab.panel.long import SETTLED, columns, read
from more_lab.panel.retention import arrivals
from more_lab.panel.table import head, row, text_of

ROUNDS = 3
"""Rounds of an evaluation."""
RATIOS = {
    "edit_over_floor": "edit over floor",
    "step_over_floor": "its writes over floor",
    "lora_step_over_step": "LoRA step over write",
    "lora_step_over_later_step": "LoRA step over later writes",
}
EDITS = {"270M": 2, "embedded": 24}
"""Edits of a model beside a busy process."""


def page() -> Iterator[str]:
    """Yield RESULTS.md."""
    yield text_of("speed").rstrip()
    for name, (title, table) in SECTIONS.items():
        yield f"\n## {title}\n"
        yield f"    python tests/bench/speed.py FOLDER {name}\n"
        result = read(f"speed/{name}.json")
        load = " to ".join(f"{value:.1f}" for value in result["load"])
        yield f"{result['cores']} cores, load average {load}.\n"
        yield from table(result["found"])
    yield "\n## A LoRA trained again after every edit\n"
    yield "    python -m tests.worlds.embedded.streams FOLDER"
    yield "    more sweep more_lab/panel/arrivals.toml -o OUT    # beside FOLDER's streams 0 to 8\n"
    yield from arrivals()
    yield "\n## A long stream, rehearsal on\n"
    yield "    python tests/bench/long.py run\n"
    yield from long_table(read("long.json"))


def bench_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield ratios, and the parts of an edit."""
    yield from head("recipe", "edits, writes", "ms an edit", *RATIOS.values())
    for name, run in found.items():
        edits, writes = run["counts"].values()
        ratios = [cell(run["ratios"].get(ratio)) for ratio in RATIOS]
        yield row(name, f"{edits}, {writes}", f"{1000 * run['seconds'] / edits:.0f}", *ratios)
    yield "\nms an edit, by part:\n"
    parts = next(iter(found.values()))["parts"]
    yield from head("recipe", *parts)
    for name, run in found.items():
        edits = run["counts"]["edits"]
        yield row(name, *(f"{1000 * seconds / edits:.1f}" for seconds in run["parts"].values()))


def cell(ratio: dict[str, float] | None) -> str:
    """Return a median with its interval; empty if it was not measured."""
    return "" if ratio is None else f"{ratio['value']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def middle(times: Sequence[float], spec: str = ".2f") -> str:
    """Return the median of times, with the lowest and the highest."""
    return f"{median(times):{spec}} ({min(times):{spec}}-{max(times):{spec}})"


def ladder_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds, and shares."""
    bare = median(found["seconds"]["the bare loop"])
    yield f"{found['tokens']} tokens; medians of {len(found['seconds']['the bare loop'])} rounds.\n"
    yield from head("way", "s (lowest to highest)", "over the bare loop")
    for way, times in found["seconds"].items():
        yield row(way, middle(times), f"{median(times) / bare:.2f}")
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in found["kinds"].items())
    yield f"\nThe bare loop's time by kind of operation: {shares}."


def eval_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds and ratios."""
    yield f"{found['probes']} probes, {found['held']} of {found['edits']} edits hold; medians of {ROUNDS} rounds.\n"
    yield from head("way", "s (lowest to highest)", "times faster", "scores apart by at most")
    alone = median(found["seconds"]["one by one"])
    for way, times in found["seconds"].items():
        apart = f"{found['apart'][way]:.0e}" if way in found["apart"] else ""
        yield row(way, middle(times, ".1f"), f"{alone / median(times):.1f}", apart)
    yield (
        "\n`one by one`: every question by itself, with a vision pass and a generated answer each time, and the base "
        "asked as well. `base known`: the base's answers are read from disk, as in a second `more eval --suite`."
    )


def merge_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds and memory."""
    ways = list(found["warm"])
    yield "Median seconds (lowest to highest), in one process:\n"
    yield from head("base", *ways, "merge over copytree", "with `--link`", "with `--sha256`")
    for cache in ("cold", "warm"):
        times = found[cache]
        cells = [middle(times[way]) for way in ways]
        copy = median(times["copytree"])
        over = [f"{median(times[way]) / copy:.2f}" for way in ("merge", "merge --link", "merge --sha256")]
        yield row(cache, *cells, *over)
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
    yield from head("command", "median s", "lowest", "highest")
    for command, times in found.items():
        yield row(f"`{command}`", *(f"{value:.2f}" for value in (median(times), min(times), max(times))))


def long_table(made: dict[str, Any]) -> Iterator[str]:
    """Yield how the price of an edit changes over the stream."""
    held = [held for held in made["held"] if held["edit"] > SETTLED]
    apart = held[1]["edit"] - held[0]["edit"]
    rows = [(name, values, SETTLED) for name, values in columns(made).items()]
    rows.append(("resident MiB", np.array([each["resident"] / 2**20 for each in held]), round(SETTLED / apart)))
    yield f"{made['edits']:,} edits of the embedded model with its anchors and the default recipe. The change over"
    yield f"1,000 edits is the slope from edit {SETTLED + 1} on (by then every question was asked once), in % of the"
    yield f"median (95 % interval, over blocks of {SETTLED} edits in a row). LONG.md explains the rows.\n"
    yield "| | median | over 1,000 edits |"
    yield "|---|---|---|"
    for name, values, block in rows:
        if (found := trend(values.tolist(), block)) is None:
            continue
        share = 100_000 / (made["edits"] - SETTLED)
        cells = f"{share * found.growth:+.1f} ({share * found.low:+.1f} to {share * found.high:+.1f})"
        yield f"| {name} | {found.median:.4g} | {cells} |"
    first, last = made["state_bytes"]
    yield f"\nThe state has {first:,} bytes before the first edit and {last:,} after the last; its header counts edits."


def busy_table(found: dict[str, Any]) -> Iterator[str]:
    """Yield seconds an edit, and their ratio."""
    waits = "ours", "torch's own"
    yield from head("model", "beside", *(f"s an edit, {wait}" for wait in waits), "torch's own over ours")
    for name, rows in found.items():
        for beside, times in rows.items():
            edits = EDITS[name]
            each = [[seconds / edits for seconds in times[wait]] for wait in waits]
            yield row(name, beside, *map(middle, each), f"{median(each[1]) / median(each[0]):.2f}")


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], Iterator[str]]]] = {
    "demo": ("The embedded model, 48 edits of its suite", bench_table),
    "270M": ("270 million random parameters, 576 image tokens, random edits", bench_table),
    "290M": (
        "290 million in the proportions of LLaVA-1.5-7B: 32 layers, the last 7 edited, width 768, rank 96",
        bench_table,
    ),
    "ladder": (
        "What a LoRA step does beyond a write: the 270 million parameters, one edit, projector and text",
        ladder_table,
    ),
    "eval": ("Evaluation: 100 edits of the embedded model, five probes each", eval_table),
    "merge": ("4 GB in three shards", merge_table),
    "start": ("Commands that need no weights, on an edited copy of the embedded model", start_table),
    "busy": ("Edits beside another busy process, on all cores", busy_table),
}
"""Of the page: title and tables."""
