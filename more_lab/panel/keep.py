"""What the pages need of runs, as lines for the files of results: of folders of `more sweep`, or `more run --json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from more_lab.panel.ablations import FROZEN, SEEDS, form_of
from more_lab.panel.editors import kept, short
from more_lab.panel.table import METRICS, lines_of


def panel_lines(out: Path, stream: str, half: str) -> Iterator[dict[str, Any]]:
    """Yield the trials of a sweep over models of the panel, one line each; a trial is named by what it changes."""
    timings = {line["key"]: line["seconds"] for line in lines_of(out / "timings.jsonl")}
    for line in lines_of(out / "results.jsonl"):
        trial, edits = line["trial"], line["per_edit"]
        count = max(1, len(edits))
        yield {
            "key": line["key"],
            "model": _world(trial["model"]),
            "half": half,
            "stream": stream,
            "pool": "evaluation",
            "limit": trial["limit"],
            "seed": trial["order"],
            "variant": ", ".join(
                [trial["editor"], *trial["settings"], *([trial["writing"]] if "writing" in trial else ())]
            ),
            "n": len(edits),
            "ids": [edit["id"] for edit in edits],
            "statuses": line["counts"],
            "values": values_of(edits),
            "cost": [line["cost"]] * len(edits),
            "once": 0.0,
            "seconds": [timings.get(line["key"], 0.0) / count] * len(edits),
        }


def ablation_lines(out: Path, sweep: str) -> Iterator[dict[str, Any]]:
    """Yield the trials of a sweep of the paper's ablations, one line each."""
    for line in lines_of(out / "results.jsonl"):
        trial = line["trial"]
        form, changed = form_of(trial["settings"])
        yield {
            "sweep": sweep + form,
            "world": _world(trial["model"]),
            "suite": trial["suite"],
            "change": f"seed={trial['seed']}" if sweep == SEEDS else changed or FROZEN,
            "seed": 0 if sweep == SEEDS else trial["seed"],
            "counts": line["counts"],
            "cost": round(line["cost"], 3),
            "values": values_of(line["per_edit"]),
        }


def run_lines(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield runs, one line each: outputs of `more run --json`, as `FILE` or, under another name, as `ROW=FILE`."""
    for text in files:
        name, _, path = text.rpartition("=")
        run = kept(json.loads(Path(path).read_text(encoding="utf-8")))
        yield {"row": name or run["editor"], **run}


def single_lines(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield single edits, one line per run: outputs of `more run --protocol single --json`, beside other protocols."""
    for path in files:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
        line = kept(run)
        (name,) = [name for name in run["protocols"] if name.startswith("single@")]
        first = [row["scores"] for row in run["matrix"] if row["after"] == 0]
        rel = [score["values"]["tf_exact"] for row in first for score in row if score["kind"] == "rel"]
        yield {
            **{key: line[key] for key in ("suite", "editor", "edits", "base", "constants", "versions")},
            "protocol": name,
            "fit": line["fit"] and line["fit"] | {"facts": run["fit"]["facts"], "records": run["fit"]["records"]},
            "single": {label: short(run["protocols"][name][metric]) for label, metric in METRICS.items()},
            "per_edit": rel,
        }


def regime_lines(model: str, anchors: str, edited: Path, scored: Path) -> Iterator[dict[str, Any]]:
    """Yield the line of anchors.jsonl: what `more edit --json` and `more eval --json` printed of a model's mistakes."""
    edits = json.loads(scored.read_text(encoding="utf-8"))["per_edit"]
    counts = json.loads(edited.read_text(encoding="utf-8"))["counts"]
    named = {"model": model, "stream": "mistakes", "anchors": anchors}
    yield {**named, "n": len(edits), "statuses": counts, "values": values_of(edits)}


def values_of(edits: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return each edit's mean over the probes of a metric, by column; None for an edit without such a probe."""
    return {label: [_mean(edit["values"].get(name, ())) for edit in edits] for label, name in METRICS.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 7) if known else None


def _world(model: str) -> str:
    return PurePath(model.removeprefix("embedded:")).name
