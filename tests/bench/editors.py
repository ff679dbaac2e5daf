"""Editors side by side on two suites: the tables of EDITORS.md, from the results of `more eval --suite`.

    for suite in e-vqa e-ic; do
      for editor in none more more:paper more:authors naive ft-l ft-m lora; do
        more eval --suite $suite --editor $editor --calibrate 5 --json > $suite-${editor/:/-}.json
      done
      more eval --suite $suite --editor lora-all --calibrate 5 --protocol final \\
        --checkpoints 1,2,3,4,5,6,7,8,9,10,20,30,40,50,60,70,80,90 --json > $suite-lora-all.json
    done
    python tests/bench/editors.py keep *.json > tests/bench/results/editors.jsonl
    python tests/bench/editors.py > tests/bench/EDITORS.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from more_cli.evaluation.metrics import estimate
from more_cli.evaluation.paired import compare, mean
from more_cli.files import sha256_bytes
from more_cli.text import canonical_json

RESULTS = Path(__file__).parent / "results" / "editors.jsonl"
ORDER = ("none", "more", "naive", "more:paper", "more:authors", "ft-l", "ft-m", "lora", "lora-all")
FIVE = {
    "Rel": "rel.tf_exact",
    "T-Gen": "gen_text.tf_exact",
    "M-Gen": "gen_image.tf_exact",
    "T-Loc": "loc_text.loc_expkl_answer",
    "M-Loc": "loc_image.loc_expkl_answer",
}
MARKS = (100, 10, 1)


def kept(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a result that the page and paired comparisons need."""
    reproduce = run["reproduce"]
    return {
        "suite": run["source"],
        "editor": run["editor"],
        "edits": reproduce["edits"],
        "base": sha256_bytes(canonical_json(reproduce["base"]).encode()),
        "constants": reproduce["constants"],
        "versions": reproduce["versions"],
        "tried": {", ".join(trial["setting"]): trial["score"] for trial in reproduce["calibration"]["tried"]},
        "chosen": ", ".join(reproduce["calibration"]["chosen"]),
        "cost": round(run["cost"], 2),
        "readouts": {
            f"{protocol}@{mark}": {label: short(found(run, mark, name)) for label, name in FIVE.items()}
            for mark in MARKS
            for protocol, found in (("final", final), ("online", online))
        },
        "per_edit": {
            label: [round(mean(edit["values"][name]), 4) for edit in run["per_edit"]] for label, name in FIVE.items()
        },
    }


def short(found: Mapping[str, Any]) -> list[float]:
    """Return value, ends of the 95 % interval and n."""
    return [*(round(found[name], 5) for name in ("value", "low", "high")), found["n"]]


def final(run: Mapping[str, Any], mark: int, name: str) -> dict[str, Any]:
    """Return a metric over the first `mark` edits, scored after the last of them."""
    return dict(run["protocols"][f"final@{mark}"][name])


def online(run: Mapping[str, Any], mark: int, name: str) -> dict[str, Any]:
    """Return a metric right after each edit; for a run with few checkpoints, over ten at equal distances."""
    if f"online@{mark}" in run["protocols"]:
        return dict(run["protocols"][f"online@{mark}"][name])
    kind, metric = name.split(".")
    step = max(1, mark // 10)
    checked = {row["after"]: row["scores"] for row in run["matrix"] if row["after"] == row["edit"]}
    scores = [score for t in range(step, mark + 1, step) for score in checked[t] if score["kind"] == kind]
    return asdict(estimate([score["values"][metric] for score in scores]))


def show() -> Iterator[str]:
    """Yield EDITORS.md."""
    yield (Path(__file__).parent / "editors_head.md").read_text(encoding="utf-8")
    results = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    for suite in dict.fromkeys(run["suite"] for run in results):
        runs = sorted((run for run in results if run["suite"] == suite), key=lambda run: ORDER.index(run["editor"]))
        for mark in MARKS:
            for protocol in ("final", "online"):
                yield from table(f"{suite}, {protocol}@{mark}", runs, f"{protocol}@{mark}")
        yield from differences(suite, runs)
        yield from budget(suite, runs)


def table(title: str, runs: Sequence[Mapping[str, Any]], readout: str) -> Iterator[str]:
    """Yield the editors of one readout: values in % with their 95 % interval."""
    yield from head(title, ("editor", *FIVE, "mean of five"))
    for run in runs:
        found = [run["readouts"][readout][label] for label in FIVE]
        cells = [f"{100 * value:.1f} ({100 * low:.1f}-{100 * high:.1f})" for value, low, high, _ in found]
        yield row(run["editor"], *cells, f"{100 * mean([one[0] for one in found]):.1f}")


def differences(suite: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each editor's difference from `more`, edit by edit, in points with the 95 % interval of the mean."""
    (first,) = [run for run in runs if run["editor"] == "more"]
    yield from head(f"{suite}, final@100 minus `more`", ("editor", *FIVE, "mean of five"))
    for run in runs:
        if run is not first:
            assert run["edits"] == first["edits"], "the same edits in the same order"
            pairs = [(first["per_edit"][label], run["per_edit"][label]) for label in FIVE]
            fives = [[mean(values) for values in zip(*side, strict=True)] for side in zip(*pairs, strict=True)]
            found = [compare(*pair) for pair in (*pairs, (fives[0], fives[1]))]
            yield row(
                run["editor"],
                *(f"{100 * d.difference:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})" for d in found),
            )


def budget(suite: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the calibrated settings and the cost of an edit."""
    yield from head(f"{suite}, calibration and cost", ("editor", "settings tried", "chosen", "cost per edit"))
    for run in runs:
        chosen = f"`{run['chosen']}`" if run["chosen"] else "default settings"
        yield row(run["editor"], str(len(run["tried"])), chosen, f"{run['cost']:.1f}")


def head(title: str, columns: Sequence[str]) -> Iterator[str]:
    """Yield a heading and the first lines of a table."""
    yield f"\n## {title}\n"
    yield row(*columns)
    yield "|---" * len(columns) + "|"


def row(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["keep"]:
        for path in sys.argv[2:]:
            print(json.dumps(kept(json.loads(Path(path).read_text(encoding="utf-8")))))
    else:
        print("\n".join(show()))
