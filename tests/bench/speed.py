"""The speed of `more`: the page more_lab/results/RESULTS.md, from results that each come from one command.

python tests/bench/speed.py FOLDER [demo] [270M] [290M] [ladder] [eval] [merge] [start] [busy]   # 20 GB of scratch
python -m more_lab.panel RESULTS.md
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crowded
from more_lab.panel.speed import ROUNDS
from more_lab.panel.table import RESULTS

REPEATS = 10
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


def main() -> None:
    """Measure sections."""
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or SECTIONS:
        before = os.getloadavg()[0]
        found = SECTIONS[name](folder)
        result = {"cores": os.cpu_count(), "load": [before, os.getloadavg()[0]], "found": found}
        (RESULTS / "speed" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
