"""Editors side by side on two suites: the tables of EDITORS.md, from the results of `more eval --suite`.

    for suite in e-vqa e-ic; do
      for editor in none more more:paper more:authors naive ft-l ft-m lora ...; do
        more run --suite $suite --editor $editor --calibrate 9 --json > $suite-${editor/:/-}.json
      done
      more run --suite $suite --editor lora-all --calibrate 9 --protocol final \\
        --checkpoints 1,2,3,4,5,6,7,8,9,10,20,30,40,50,60,70,80,90 --json > $suite-lora-all.json
    done
    python tests/bench/editors.py keep *.json > more_lab/results/editors.jsonl    # NAME=FILE names a row otherwise
    python tests/bench/editors.py > more_lab/results/EDITORS.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from more_cli.evaluation.metrics import estimate
from more_cli.files import sha256_bytes
from more_cli.text import canonical_json
from more_lab.experiments.paired import compare, mean
from more_lab.experiments.published import EDITORS as PAPER
from more_lab.experiments.published import table as table_of

RESULTS = Path(__file__).parents[2] / "more_lab" / "results" / "editors.jsonl"
RIVALS = RESULTS.with_name("rivals.jsonl")
"""Runs without calibration, of all editors."""
NINE = RESULTS.with_name("nine.jsonl")
"""Runs with `--calibrate 9`; those of RESULTS had five settings each."""
FAMILIES = {
    "LLaVA": (RIVALS, "LLaVA-v1.5"),
    "BLIP2": (RESULTS.with_name("blip2.jsonl"), "BLIP2-OPT"),
    "Qwen2-VL": (RESULTS.with_name("qwen2.jsonl"), "LLaVA-v1.5"),
    "Qwen3-VL": (RESULTS.with_name("qwen3.jsonl"), "LLaVA-v1.5"),
}
"""Runs without calibration on the small models, of the paper's editors and some more; and the backbone whose printed
numbers they are compared with: on Qwen the paper has none of other editors than its own."""
SUITES = "e-vqa", "e-ic"
ORDERS = RESULTS.with_name("orders.jsonl")
"""Runs of NINE's editors with the settings that were chosen there, in two other orders (`--order 1`, `--order 2`)."""
THOUSAND = RESULTS.with_name("thousand.jsonl")
"""Runs of 1,000 edits on `e-vqa`, with the settings that were chosen in NINE."""
FIVE = {
    "Rel": "rel.tf_exact",
    "T-Gen": "gen_text.tf_exact",
    "M-Gen": "gen_image.tf_exact",
    "T-Loc": "loc_text.loc_expkl_answer",
    "M-Loc": "loc_image.loc_expkl_answer",
}
MARKS = (100, 10, 1)
MEANS = "Mean of five by suite and model, final@100, own constants"
LONG_MARKS = (1, 10, 100, 1000)
ORDER = (
    *("none", "more", "more:paper", "more:authors", "more:strict", "naive", "ft-l", "ft-m", "lora", "lora-all"),
    *("liveedit", "mend", "ultraedit", "scopeedit", "ike", "grace", "wise", "alphaedit", "alphaedit:last_prompt"),
    *("memit", "rome", "serac"),
)
"""Rows of the tables, from the first one on."""
FIT = ("right", "held_out", "seconds", "undertrained")


def asked(run: Mapping[str, Any], mark: int) -> list[int]:
    """Return the edits whose answers right after them a run without `online` has: ten at equal distances, if all."""
    step = max(1, mark // 10)
    due = list(range(step, mark + 1, step))
    return due if set(due) <= {row["after"] for row in run["matrix"] if row["after"] == row["edit"]} else []


def kept(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a result that the page and paired comparisons need."""
    reproduce = run["reproduce"]
    calibration = reproduce.get("calibration", {"tried": (), "chosen": (), "at_edge": ()})
    return {
        "suite": run["source"],
        "editor": run["editor"],
        "edits": reproduce["edits"],
        "order": reproduce.get("order", 0),
        "base": sha256_bytes(canonical_json(reproduce["base"]).encode()),
        "constants": reproduce["constants"],
        "versions": reproduce["versions"],
        "tried": {", ".join(trial["setting"]): trial["score"] for trial in calibration["tried"]},
        "chosen": ", ".join(calibration["chosen"]),
        "at_edge": list(calibration["at_edge"]),
        "fit": {name: run["fit"][name] for name in FIT} if run["fit"] else None,
        "footprint": list(run["footprints"].values())[-1],
        "cost": round(run["cost"], 2),
        "readouts": {
            f"{protocol}@{mark}": {label: short(found(run, mark, name)) for label, name in FIVE.items()}
            for mark in (*MARKS, LONG_MARKS[-1])
            if f"final@{mark}" in run["protocols"]
            for protocol, found in (("final", final), ("online", online))
            if protocol == "final" or f"online@{mark}" in run["protocols"] or asked(run, mark)
        },
        "per_edit": {
            label: [round(mean(edit["values"][name]), 4) for edit in run["per_edit"]] for label, name in FIVE.items()
        },
        "online_per_edit": right_after(run),
    }


def named(run: Mapping[str, Any]) -> str:
    """Return the name of a run in tables: that of its editor, where it was kept under no other."""
    return str(run.get("row", run["editor"]))


def right_after(run: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return each edit's values right after it was made, by column; empty for a run with few checkpoints."""
    rows = [row["scores"] for row in run["matrix"] if row["after"] == row["edit"]]
    if len(rows) < len(run["per_edit"]):
        return {}
    found: dict[str, list[float]] = {}
    for label, name in FIVE.items():
        kind, metric = name.split(".")
        found[label] = [round(mean([s["values"][metric] for s in row if s["kind"] == kind]), 4) for row in rows]
    return found


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
    checked = {row["after"]: row["scores"] for row in run["matrix"] if row["after"] == row["edit"]}
    scores = [score for t in asked(run, mark) for score in checked[t] if score["kind"] == kind]
    return asdict(estimate([score["values"][metric] for score in scores]))


def show() -> Iterator[str]:
    """Yield EDITORS.md."""
    yield (Path(__file__).parent / "editors_head.md").read_text(encoding="utf-8")
    yield from sections(NINE, " (nine settings each)", whole=False)
    yield from orders()
    yield from thousand()
    yield from sections(RESULTS, "", whole=True)
    yield from means()
    yield from everywhere()
    for family, (path, backbone) in FAMILIES.items():
        where = "" if path == RIVALS else f" on {family}"
        yield from sections(path, f"{where} (own constants)", whole=True, backbone=backbone)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def on_suite(runs: Sequence[dict[str, Any]], suite: str) -> dict[str, dict[str, Any]]:
    """Return the runs of a suite, by editor."""
    return {run["editor"]: run for run in runs if run["suite"].removesuffix("-mini") == suite}


def average(run: Mapping[str, Any], readout: str) -> float:
    """Return the mean of five of a readout, in %."""
    return 100 * mean([value for value, *_ in run["readouts"][readout].values()])


def means() -> Iterator[str]:
    """Yield the mean of five of every editor on every model; in brackets where its fit is undertrained."""
    runs = [on_suite(read(path), suite) for suite in SUITES for path, _ in FAMILIES.values()]
    yield from head(MEANS, ("editor", *(f"{suite}, {model}" for suite in SUITES for model in FAMILIES)))
    for editor in (editor for editor in ORDER if any(editor in one for one in runs)):
        cells = []
        for one in runs:
            found = one.get(editor, {})
            shown = f"{average(found, 'final@100'):.1f}" if found else ""
            cells.append(f"({shown})" if (found.get("fit") or {}).get("undertrained") else shown)
        yield row(editor, *cells)


def everywhere() -> Iterator[str]:
    """Yield the paper's order on every model at once: final@100, own constants."""
    yield from head(
        "The paper's order at t = 100, by suite and model, final, own constants", ("suite", "pair", *FAMILIES)
    )
    counts: dict[str, Counter[str]] = {model: Counter() for model in FAMILIES}
    for suite in SUITES:
        ours = {model: on_suite(read(path), suite) for model, (path, _) in FAMILIES.items()}
        printed = {model: averages(backbone, suite) for model, (_, backbone) in FAMILIES.items()}
        pairs = {frozenset(pair): pair for one in printed.values() for pair in neighbours(one)}
        for first, second in pairs.values():
            cells = []
            for model, order in printed.items():
                gap = order[first] - order[second]
                shown, said = verdict(ours[model], first, second, gap, "per_edit")
                counts[model][said] += 1
                cells.append(f"{said}: {gap:+.1f} printed, {shown}")
            yield row(suite, f"{first} - {second}", *cells)
    totals = (", ".join(f"{n} {said}" for said, n in sorted(one.items())) for one in counts.values())
    yield row("both", "all", *totals)


def orders() -> Iterator[str]:
    """Yield the mean of five of NINE's editors in three orders of the same edits."""
    marks = "final@100", "online@100"
    for suite in SUITES:
        found: dict[str, dict[int, list[float]]] = {}
        for run in (run for path in (NINE, ORDERS) for run in read(path) if run["suite"] == suite):
            found.setdefault(run["editor"], {})[run.get("order", 0)] = [average(run, mark) for mark in marks]
        whole = sorted((editor for editor in found if len(found[editor]) == 3), key=ORDER.index)
        if whole:
            columns = [f"{mark}, order {number}" for mark in marks for number in range(3)]
            yield from head(f"{suite} (nine settings each): mean of five in three orders", ("editor", *columns))
        for editor in whole:
            yield row(editor, *(f"{found[editor][number][i]:.1f}" for i in range(len(marks)) for number in range(3)))


def thousand() -> Iterator[str]:
    """Yield the editors after 1, 10, 100 and 1,000 edits: the mean of five, then each metric after the last."""
    runs = sorted(read(THOUSAND), key=lambda run: ORDER.index(run["editor"]))
    chosen = {run["editor"]: f"`{run['chosen']}`" for run in read(NINE) if run["suite"] == "e-vqa"}
    title = "e-vqa, 1,000 edits, settings chosen among nine"
    yield from head(f"{title}: mean of five, final", ("editor", "setting", *(f"t = {mark:,}" for mark in LONG_MARKS)))
    for run in runs:
        scores = (f"{average(run, f'final@{mark}'):.1f}" for mark in LONG_MARKS)
        yield row(run["row"], chosen.get(run["row"], "own"), *scores)
    yield from table(f"{title}, final@1000", runs, "final@1000")
    yield from differences(title, runs, mark=1000)


def sections(path: Path, what: str, *, whole: bool, backbone: str = "LLaVA-v1.5") -> Iterator[str]:
    """Yield the tables of a file of runs, suite by suite; `whole` names the pairs of the paper that it lacks.

    `backbone` is the paper's model that theirs is shaped like.
    """
    results = read(path)
    for suite in dict.fromkeys(run["suite"] for run in results):
        runs = sorted((run for run in results if run["suite"] == suite), key=lambda run: ORDER.index(run["editor"]))
        title = suite + what
        yield from ordering(title, averages(backbone, suite.removesuffix("-mini")), runs, whole=whole)
        for mark in MARKS:
            for protocol in ("final", "online"):
                yield from table(f"{title}, {protocol}@{mark}", runs, f"{protocol}@{mark}")
        yield from differences(title, runs)
        yield from budget(title, runs)


def memory(run: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kilobytes that do not grow with the edits, and those of each edit, if either is known."""
    fixed, growing = (run.get("footprint", {}).get(name, 0) / 1e3 for name in ("fixed", "growing"))
    return f"{fixed:,.0f}" if fixed else "", f"{growing / len(run['per_edit']['Rel']):,.1f}" if growing else ""


def table(title: str, runs: Sequence[Mapping[str, Any]], readout: str) -> Iterator[str]:
    """Yield the editors of one readout: values in % with their 95 % interval."""
    yield from head(title, ("editor", *FIVE, "mean of five"))
    for run in runs:
        found = [run["readouts"][readout][label] for label in FIVE]
        cells = [f"{100 * value:.1f} ({100 * low:.1f}-{100 * high:.1f})" for value, low, high, _ in found]
        yield row(named(run), *cells, f"{average(run, readout):.1f}")


def differences(title: str, runs: Sequence[Mapping[str, Any]], mark: int = 100) -> Iterator[str]:
    """Yield each editor's difference from `more`, edit by edit, in points with the 95 % interval of the mean."""
    (first,) = [run for run in runs if named(run) == "more"]
    yield from head(f"{title}, final@{mark} minus `more`", ("editor", *FIVE, "mean of five"))
    for run in runs:
        if run is not first:
            assert run["edits"] == first["edits"], "the same edits in the same order"
            pairs = [(first["per_edit"][label], run["per_edit"][label]) for label in FIVE]
            fives = [[mean(values) for values in zip(*side, strict=True)] for side in zip(*pairs, strict=True)]
            found = [compare(*pair) for pair in (*pairs, (fives[0], fives[1]))]
            yield row(
                named(run),
                *(f"{100 * d.difference:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})" for d in found),
            )


def averages(backbone: str, suite: str) -> dict[str, float]:
    """Return the mean of five that the paper prints for each editor after 100 edits."""
    at = backbone, suite, 100
    return {
        PAPER[row.name]: row.values["Avg"] for row in table_of("table-1") if (row.backbone, row.suite, row.edits) == at
    }


def neighbours(printed: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return M-ORE with every other editor, then pairs of neighbours in the printed order, the higher one first."""
    ranked = sorted(printed, key=lambda editor: -printed[editor])
    pairs = [("more:paper", other) for other in ranked if other != "more:paper"]
    return pairs + [pair for pair in pairwise(ranked) if "more:paper" not in pair]


def ordering(
    title: str, printed: Mapping[str, float], runs: Sequence[Mapping[str, Any]], *, whole: bool
) -> Iterator[str]:
    """Yield the order of the paper's editors where it is printed; `whole` names the pairs that were not measured."""
    ours = {run["editor"]: run for run in runs}
    pairs = [pair for pair in neighbours(printed) if whole or set(pair) <= set(ours)]
    yield from head(f"{title}: the paper's order at t = 100", ("pair", "printed", "final", "", "online", ""))
    for first, second in pairs:
        gap = printed[first] - printed[second]
        cells = [cell for name in ("per_edit", "online_per_edit") for cell in verdict(ours, first, second, gap, name)]
        yield row(f"{first} - {second}", f"{gap:+.1f}", *cells)


def verdict(ours: Mapping[str, Any], first: str, second: str, printed: float, name: str) -> tuple[str, str]:
    """Return the difference of two editors' means of five, and whether its 95 % interval lies on the printed side."""
    if not all(ours.get(editor, {}).get(name) for editor in (first, second)):
        return "", "not measured"
    one, other = (
        [mean(values) for values in zip(*ours[editor][name].values(), strict=True)] for editor in (first, second)
    )
    found = compare(other, one)
    shown = f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    if any((ours[editor].get("fit") or {}).get("undertrained") for editor in (first, second)):
        return shown, "undertrained"
    same = printed * found.difference > 0
    return shown, "undecided" if found.low <= 0 <= found.high else "confirmed" if same else "refuted"


def budget(title: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the calibrated settings, the fit, the cost of an edit and what is kept."""
    columns = "editor", "tried", "chosen", "at the edge", "learns alone", "cost per edit", "kB fixed", "kB per edit"
    yield from head(f"{title}, calibration, cost and memory", columns)
    for run in runs:
        chosen = f"`{run['chosen']}`" if run["chosen"] else "default settings"
        fit = f"{run['fit']['right']} of {run['fit']['held_out']}" if run.get("fit") else ""
        kept = memory(run)
        edge = ", ".join(run.get("at_edge", ()))
        yield row(run["editor"], str(len(run["tried"])), chosen, edge, fit, f"{run['cost']:.1f}", *kept)


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
        for argument in sys.argv[2:]:
            row_name, _, path = argument.rpartition("=")
            run = kept(json.loads(Path(path).read_text(encoding="utf-8")))
            print(json.dumps({"row": row_name or run["editor"], **run}))
    else:
        print("\n".join(show()))
