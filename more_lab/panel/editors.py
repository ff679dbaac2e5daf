"""EDITORS.md: editors side by side on two suites, from the results of `more run --json`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from more_cli.evaluation.metrics import estimate
from more_cli.files import sha256_json
from more_lab.experiments.paired import compare
from more_lab.experiments.published import EDITORS
from more_lab.experiments.published import table as table_of
from more_lab.panel.ranked import left_out, obstacle, ranked
from more_lab.panel.table import FIVE, MEAN, METRICS, head, points, row, runs_of, share, text_of

PAPER = EDITORS | {"IKE": "ike"}
"""Our editors by the paper's names; IKE is the one that has to find its facts, as an editor of a stream must."""
RESULTS = "editors.jsonl"
RIVALS = "rivals.jsonl"
"""Runs without calibration, of all editors."""
NINE = "nine.jsonl"
"""Runs with `--calibrate 9`; those of RESULTS had five settings each."""
FAMILIES = {
    "LLaVA": (RIVALS, "LLaVA-v1.5"),
    "BLIP2": ("blip2.jsonl", "BLIP2-OPT"),
    "Qwen2-VL": ("qwen2.jsonl", "LLaVA-v1.5"),
    "Qwen3-VL": ("qwen3.jsonl", "LLaVA-v1.5"),
}
"""Runs without calibration on the small models, of the paper's editors and some more; and the backbone whose printed
numbers they are compared with: on Qwen the paper has none of other editors than its own."""
SUITES = "e-vqa", "e-ic"
ORDERS = "orders.jsonl"
"""Runs of NINE's editors with the settings that were chosen there, in two other orders (`--order 1`, `--order 2`)."""
THOUSAND = "thousand.jsonl"
"""Runs of 1,000 edits on `e-vqa`, with the settings that were chosen in NINE."""
BATCHES = "batches.jsonl"
"""Runs of editors that write 100 edits in one system, and of the same editors one by one."""
LOOPS = {
    "LLaVA": "loop.jsonl",
    "BLIP2": "loop_blip2.jsonl",
    "Qwen2-VL": "loop_qwen2.jsonl",
    "Qwen3-VL": "loop_qwen3.jsonl",
}
"""Runs of editors that write in M-ORE's loop, named `EDITOR, GROUP`; on LLaVA of P = I in the paper's form too."""
LOOPED = "loop_nine.jsonl"
"""Runs with `--calibrate 9` of editors that write in M-ORE's loop."""
GROUPS = "as published", "loop", "loop and anchors"
FACTORIAL = {
    "ft-l": "ft-l",
    "lora": "lora",
    "alphaedit": "alphaedit",
    "memit": "memit",
    "mend": "mend",
    "more:paper": "more",
}
"""Editors of RIVALS that stand for `as published`, with the names that they have there."""
MARKS = (100, 10, 1)
MEANS = "Mean of five by suite and model, final@100, own constants"
LONG_MARKS = (1, 10, 100, 1000)
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ORDER = list(PROJECT["entry-points"]["more.editors"])
"""Editors in the order of the page's rows."""
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
        "base": sha256_json(reproduce["base"]),
        "constants": reproduce["constants"],
        "versions": reproduce["versions"],
        "tried": {", ".join(trial["setting"]): trial["score"] for trial in calibration["tried"]},
        "chosen": ", ".join(calibration["chosen"]),
        "at_edge": list(calibration["at_edge"]),
        "fit": {name: run["fit"][name] for name in FIT} if run["fit"] else None,
        "footprint": list(run["footprints"].values())[-1],
        "cost": round(run["cost"], 2),
        "readouts": {
            f"{protocol}@{mark}": {label: short(found(run, mark, name)) for label, name in METRICS.items()}
            for mark in (*MARKS, LONG_MARKS[-1])
            if f"final@{mark}" in run["protocols"]
            for protocol, found in (("final", final), ("online", online))
            if protocol == "final" or f"online@{mark}" in run["protocols"] or asked(run, mark)
        },
        "per_edit": {
            label: [round(fmean(edit["values"][name]), 4) for edit in run["per_edit"]]
            for label, name in METRICS.items()
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
    for label, name in METRICS.items():
        kind, metric = name.split(".")
        found[label] = [round(fmean(s["values"][metric] for s in row if s["kind"] == kind), 4) for row in rows]
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


def page() -> Iterator[str]:
    """Yield EDITORS.md."""
    yield text_of("editors")
    for family, path in LOOPS.items():
        yield from factorial(family, path)
    yield from calibrated_loops()
    yield from table("e-vqa, 100 edits in one system and one by one, final@100", runs_of(BATCHES), "final@100")
    yield from sections(NINE, " (nine settings each)", whole=False)
    yield from orders()
    yield from thousand()
    yield from sections(RESULTS, "", whole=True)
    yield from means()
    yield from everywhere()
    for family, (path, backbone) in FAMILIES.items():
        where = "" if path == RIVALS else f" on {family}"
        yield from sections(path, f"{where} (own constants)", whole=True, backbone=backbone)


def on_suite(runs: Sequence[dict[str, Any]], suite: str) -> dict[str, dict[str, Any]]:
    """Return the runs of a suite, by name."""
    return {named(run): run for run in runs if run["suite"].removesuffix("-mini") == suite}


def average(run: Mapping[str, Any], readout: str) -> float:
    """Return the mean of five of a readout, in %."""
    return 100 * fmean(value for value, *_ in run["readouts"][readout].values())


def means() -> Iterator[str]:
    """Yield the mean of five of every editor on every model; empty where it stands in no ranking."""
    runs = {(suite, model): on_suite(runs_of(FAMILIES[model][0]), suite) for suite in SUITES for model in FAMILIES}
    for model, path in LOOPS.items():
        (anchored,) = [run for run in runs_of(path) if named(run) == "more, loop and anchors"]
        runs["e-vqa", model]["more, anchors made"] = anchored
    yield from head("editor", *(f"{suite}, {model}" for suite, model in runs), title=MEANS)
    names = {name for one in runs.values() for name in one}
    for editor in sorted(names, key=lambda name: (ORDER.index(name.partition(", ")[0]), name)):
        cells = []
        for one in runs.values():
            found = one.get(editor, {})
            cells.append(f"{average(found, 'final@100'):.1f}" if found and not obstacle(found) else "")
        yield row(editor, *cells)
    for path, _ in FAMILIES.values():
        for suite in SUITES:
            if others := left_out(list(on_suite(runs_of(path), suite).values())):
                yield f"\n{suite}, {path}: {others}"


def everywhere() -> Iterator[str]:
    """Yield the paper's order on every model at once: final@100, own constants."""
    title = "The paper's order at t = 100, by suite and model, final, own constants"
    yield from head("suite", "pair", *FAMILIES, title=title)
    for suite in SUITES:
        ours = {model: on_suite(runs_of(path), suite) for model, (path, _) in FAMILIES.items()}
        printed = {model: averages(backbone, suite) for model, (_, backbone) in FAMILIES.items()}
        pairs = {frozenset(pair): pair for one in printed.values() for pair in neighbours(one)}
        for first, second in pairs.values():
            cells = []
            for model, order in printed.items():
                gap = order[first] - order[second]
                shown, said = verdict(ours[model], first, second, gap, "per_edit")
                cells.append(f"{said}: {gap:+.1f} printed, {shown}")
            yield row(suite, f"{first} - {second}", *cells)


def orders() -> Iterator[str]:
    """Yield the mean of five of NINE's editors in three orders of the same edits."""
    marks = "final@100", "online@100"
    for suite in SUITES:
        found: dict[str, dict[int, list[float]]] = {}
        for run in (run for path in (NINE, ORDERS) for run in runs_of(path) if run["suite"] == suite):
            found.setdefault(run["editor"], {})[run.get("order", 0)] = [average(run, mark) for mark in marks]
        whole = sorted((editor for editor in found if len(found[editor]) == 3), key=ORDER.index)
        if whole:
            columns = [f"{mark}, order {number}" for mark in marks for number in range(3)]
            yield from head("editor", *columns, title=f"{suite} (nine settings each): mean of five in three orders")
        for editor in whole:
            yield row(editor, *(f"{found[editor][number][i]:.1f}" for i in range(len(marks)) for number in range(3)))


def thousand() -> Iterator[str]:
    """Yield the editors after 1, 10, 100 and 1,000 edits: the mean of five, then each metric after the last."""
    runs = sorted(runs_of(THOUSAND), key=lambda run: ORDER.index(run["editor"]))
    chosen = {run["editor"]: f"`{run['chosen']}`" for run in runs_of(NINE) if run["suite"] == "e-vqa"}
    title = "e-vqa, 1,000 edits, settings chosen among nine"
    marks = (f"t = {mark:,}" for mark in LONG_MARKS)
    yield from head("editor", "setting", *marks, title=f"{title}: mean of five, final")
    for run in runs:
        known = (f"final@{mark}" for mark in LONG_MARKS)  # what is written together is scored at the end alone
        scores = (f"{average(run, mark):.1f}" if mark in run["readouts"] else "" for mark in known)
        yield row(run["row"], chosen.get(run["row"], "own"), *scores)
    yield from table(f"{title}, final@1000", runs, "final@1000")
    yield from differences(title, runs, mark=1000)


def factorial(family: str, path: str) -> Iterator[str]:
    """Yield editors as published, in M-ORE's loop, and in the loop with anchors: mean of five, then each metric."""
    groups: dict[str, dict[str, dict[str, Any]]] = {group: {} for group in GROUPS}
    looped = {run["row"].partition(", ")[0] for run in runs_of(path)}
    for editor, run in on_suite(runs_of(FAMILIES[family][0]), "e-vqa").items():
        if (name := FACTORIAL.get(editor, "")) in looped:
            groups[GROUPS[0]][name] = run | {"row": name}
    for run in runs_of(path):
        name, _, group = run["row"].partition(", ")
        groups[group][name] = run | {"row": name}
    names = dict.fromkeys(name for found in groups.values() for name in found)
    where = "" if FAMILIES[family][0] == RIVALS else f" on {family}"
    title = f"e-vqa{where}, what the loop gives and what P gives (own constants)"
    yield from head("editor", *GROUPS, title=f"{title}: mean of five, final@100, and samples an edit")
    for name in names:
        found = [groups[group].get(name) for group in GROUPS]
        shown = [run if run and not obstacle(run) else None for run in found]
        yield row(name, *(f"{average(run, 'final@100'):.1f}, {run['cost']:.1f}" if run else "" for run in shown))
    for group, runs in list(groups.items())[1:]:
        yield from table(f"{title}, {group}, final@100", list(runs.values()), "final@100")
        yield from differences(f"{title}, {group}", list(runs.values()))


def calibrated_loops() -> Iterator[str]:
    """Yield editors in M-ORE's loop, each with the best of nine settings; `more` and P = I are NINE's."""
    nine = on_suite(runs_of(NINE), "e-vqa")
    runs, title = [nine["more"], nine["naive"], *runs_of(LOOPED)], "e-vqa, in the loop, nine settings each"
    yield from table(f"{title}, final@100", runs, "final@100")
    yield from differences(title, runs)
    yield from budget(title, runs)


def sections(path: str, what: str, *, whole: bool, backbone: str = "LLaVA-v1.5") -> Iterator[str]:
    """Yield the tables of a file of runs, suite by suite; `whole` names the pairs of the paper that it lacks.

    `backbone` is the paper's model that theirs is shaped like.
    """
    results = runs_of(path)
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
    """Yield the editors of one readout that a ranking shows: values in % with their 95 % interval."""
    yield from head("editor", *FIVE, MEAN, title=title)
    for run in ranked(runs):
        found = [run["readouts"][readout][label] for label in FIVE]
        cells = [share(value, low, high) for value, low, high, _ in found]
        yield row(named(run), *cells, f"{average(run, readout):.1f}")
    if others := left_out(runs):
        yield f"\n{others}"


def differences(title: str, runs: Sequence[Mapping[str, Any]], mark: int = 100) -> Iterator[str]:
    """Yield each editor's difference from `more`, edit by edit, in points with the 95 % interval of the mean."""
    (first,) = [run for run in runs if named(run) == "more"]
    yield from head("editor", *FIVE, MEAN, title=f"{title}, final@{mark} minus `more`")
    for run in ranked(runs):
        if run is not first:
            assert run["edits"] == first["edits"], "the same edits in the same order"
            pairs = [(first["per_edit"][label], run["per_edit"][label]) for label in FIVE]
            fives = [[fmean(values) for values in zip(*side, strict=True)] for side in zip(*pairs, strict=True)]
            found = [compare(*pair) for pair in (*pairs, (fives[0], fives[1]))]
            yield row(
                named(run),
                *(points(d.difference, d.low, d.high) for d in found),
            )


def averages(backbone: str, suite: str) -> dict[str, float]:
    """Return the mean of five that the paper prints for each editor after 100 edits."""
    at = backbone, suite, 100
    return {
        PAPER[row.name]: float(row.values["Avg"])
        for row in table_of("table-1")
        if (row.backbone, row.suite, row.edits) == at
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
    ours = {named(run): run for run in runs}
    pairs = [pair for pair in neighbours(printed) if whole or set(pair) <= set(ours)]
    yield from head("pair", "printed", "final", "", "online", "", title=f"{title}: the paper's order at t = 100")
    for first, second in pairs:
        gap = printed[first] - printed[second]
        cells = [cell for name in ("per_edit", "online_per_edit") for cell in verdict(ours, first, second, gap, name)]
        yield row(f"{first} - {second}", f"{gap:+.1f}", *cells)


def verdict(ours: Mapping[str, Any], first: str, second: str, printed: float, name: str) -> tuple[str, str]:
    """Return the difference of two editors' means of five, and whether its 95 % interval lies on the printed side."""
    if not all(ours.get(editor, {}).get(name) for editor in (first, second)):
        return "", "not measured"
    one, other = (
        [fmean(values) for values in zip(*ours[editor][name].values(), strict=True)] for editor in (first, second)
    )
    found = compare(other, one)
    shown = points(found.difference, found.low, found.high)
    if any(obstacle(ours[editor]) for editor in (first, second)):
        return shown, "undertrained"
    same = printed * found.difference > 0
    return shown, "not decided" if found.low <= 0 <= found.high else "as printed" if same else "the other way"


def budget(title: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the calibrated settings, the fit, the cost of an edit and what is kept."""
    columns = "editor", "tried", "chosen", "at the edge", "learns alone", "cost per edit", "kB fixed", "kB per edit"
    yield from head(*columns, title=f"{title}, calibration, cost and memory")
    for run in runs:
        chosen = f"`{run['chosen']}`" if run["chosen"] else "default settings"
        fit = f"{run['fit']['right']} of {run['fit']['held_out']}" if run.get("fit") else ""
        kept = memory(run)
        edge = ", ".join(run.get("at_edge", ()))
        yield row(named(run), str(len(run["tried"])), chosen, edge, fit, f"{run['cost']:.1f}", *kept)
