"""The pages of results: rows are means over runs, differences are paired by edit, and a sweep leaves lines for them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from more_cli.demo.files import demo_model_dir
from more_lab.experiments.scaling import growth, trend
from more_lab.panel import ablations, editors, models, regimes, retention
from more_lab.panel.__main__ import main
from more_lab.panel.table import FIVE, METRICS, runs_of
from more_lab.sweep.file import read_sweep
from support.helpers import World, line, run
from support.paths import ROOT

SWEEPS = sorted((ROOT / "more_lab" / "panel").glob("*.toml"))


def made(model: str, variant: str, values: list[float], ids: str, half: str = "dev") -> dict[str, Any]:
    return {
        **dict(model=model, half=half, stream="s", pool="evaluation", limit=100, variant=variant, seed=0),
        **dict(ids=list(ids), n=len(ids), cost=[2.0] * len(ids), once=4.0, seconds=[0.5] * len(ids)),
        "statuses": {"learnt": len(ids)},
        "values": dict.fromkeys(FIVE, values),
    }


def test_differences_are_paired_by_edit_and_averaged_over_models() -> None:
    """Also in another order of the stream; a model that lacks one of the two variants counts in none."""
    runs = [made("m", "x", [1, 0, 0.5, 1], "abcd"), made("m", "y", [1, 1, 0.5, 1], "dbca")]
    runs += [made("k", "x", [0, 0], "ab"), made("k", "y", [1, 0], "ab"), made("j", "y", [1, 0], "ab")]
    runs += [made("m", "x", [0, 0, 0, 0], "abcd") | {"limit": 40}]
    means, paired, *each = "\n".join(models.tables(runs, models.Selection("x"))).split("\n##")[1:]
    assert "| x | 2 | 3L | 31.2 " in means
    assert "| 3.5 | 0.50 |" in means
    assert "| y | 2 | +37.5 (" in paired
    assert "[+25 to +50]" in paired
    assert len(each) == 3


def test_a_row_is_a_mean_over_runs_with_the_interval_over_edits() -> None:
    values = {label: [1.0, 0.0] for label in retention.COLUMNS}
    runs = [
        {"values": values, "cost": [3.0, 5.0], "consolidation": None, "edits": 2},
        {"values": values | {"Rel": [1.0, 1.0]}, "cost": [3.0, 5.0], "consolidation": 2.0, "edits": 2},
    ]
    name, rel, *_, five, cost, count = retention.line("x", runs).strip("| ").split(" | ")
    assert (name, five, cost, count) == ("x", "55.0", "4.5", "2 x 2")
    assert rel.startswith("75.0 (")
    assert rel.endswith("[50-100]")


def test_a_difference_of_zeros_and_ones_is_no_proportion() -> None:
    """Wilson's interval of a share would be wide where no edit differs."""
    runs = [made(model, name, [1, 1], "ab") for model in "mk" for name in "xy"]
    paired = "\n".join(models.tables(runs, models.Selection("x"))).split("\n##")[2]
    assert "| y | 2 | +0.0 (+0.0 to +0.0) [+0 to +0] |" in paired


def test_growth_is_the_slope_times_the_length() -> None:
    assert growth(10 + 0.01 * np.arange(200.0)) == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_of_growth_is_wider_where_values_come_in_runs() -> None:
    steps = np.repeat(np.random.default_rng(0).normal(size=20), 20)

    _, low, high = growth(steps)
    _, low_by_blocks, high_by_blocks = growth(steps, block=20)

    assert high_by_blocks - low_by_blocks > 2 * (high - low)


def test_a_trend_is_that_growth_as_a_share_of_the_median() -> None:
    values = 10 + np.repeat(np.random.default_rng(0).normal(size=20), 20)
    found = trend(values.tolist(), block=20)
    assert found is not None
    shares = [part / found.median for part in growth(values, block=20)]
    assert [found.growth, found.low, found.high] == pytest.approx(shares)


def test_an_ablation_is_a_mean_over_the_bases_of_both() -> None:
    def trial(change: str, seed: int, values: list[float]) -> dict[str, Any]:
        named = {"sweep": "rank", "world": "A1", "suite": "mistakes", "change": change, "seed": seed}
        return named | {"values": dict.fromkeys(FIVE, values), "ids": [0, 1]}

    first, other = "rank=32", "rank=8"
    trials = [trial(first, 42, [1.0, 0.0]), trial(first, 40, [0.0, 0.0]), trial(first, 41, [1.0, 1.0])]
    trials += [trial(other, 42, [1.0, 1.0]), trial(other, 40, [1.0, 1.0])]
    (sides,) = ablations.pairs("rank", trials, other).values()
    assert [len(side) for side in sides] == [2, 2]
    assert ablations.differences(*sides, "Rel") == [0.5, 1.0]
    assert "(+0.0 to" in ablations.change([[0.0] * 99 + [1.0]]), "a difference is no share: its interval has 0"
    assert ablations.change([[0.0, 0.0]]) == "0.0", "where no edit differs there is no interval"


def test_trials_in_the_form_of_the_paper_s_text_are_a_sweep_of_their_own() -> None:
    """They are compared with each other, not with those of the authors' form."""
    assert ablations.form_of(("default.lambda=100",)) == ("", "default.lambda=100")
    form, change = ablations.form_of(("normalisation=paper", "default.step=200.1", "default.lambda=100"))
    assert (form, change) == ("-paper", "default.lambda=100")
    ours = [run for run in runs_of("ablations.jsonl") if run["sweep"] == "lambda" + form]
    assert ablations.changes("lambda" + form, ours)[:2] == ["default.lambda=2000", change]


def test_online_uses_the_checkpoints_that_a_run_has() -> None:
    """`lora-all` has checkpoints after 1, .., 10, 20, .. edits: ten are used for a hundred edits, ten for ten."""
    scores = {
        t: [{"kind": "rel", "values": {"tf_exact": float(t <= 50)}}] for t in (*range(1, 11), *range(20, 101, 10))
    }
    matrix = [{"after": t, "edit": t, "scores": found} for t, found in scores.items()]
    matrix.append({"after": 100, "edit": 1, "scores": scores[100]})
    result = {"protocols": {}, "matrix": matrix}
    assert [editors.online(result, mark, "rel.tf_exact")["value"] for mark in (100, 10, 1)] == [0.5, 1.0, 1.0]
    assert [editors.online(result, mark, "rel.tf_exact")["n"] for mark in (100, 10, 1)] == [10, 10, 1]


def test_a_page_is_printed_and_reads_the_runs_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "RETENTION.md"])
    shown = capsys.readouterr().out
    assert all(
        f"\n| {row} | " in shown for row in {run["row"] for run in runs_of("retention.jsonl")} - {*retention.RATES}
    )


def test_the_worst_regime_of_a_model_is_bold() -> None:
    worst, best = regimes.rows("m", {"none": [90.0, 45.0], "made": [80.0, 46.0]})
    assert worst == "| m | **none (`--no-anchors`)** | **90.0** | **45.0** |"
    assert best == "| m | brought by the edits | 80.0 | 46.0 |"


def test_a_regime_is_a_mean_over_edits_that_have_such_a_probe() -> None:
    run = {"values": {key: [1.0, 1.0] for key in FIVE} | {"T-Loc": [0.5, None], "Rel": [1.0, 0.0]}}
    assert regimes.means(run) == [50.0, 100.0, 100.0, 50.0, 100.0, 80.0]


def test_the_table_of_regimes_is_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "regimes"])
    shown = capsys.readouterr().out
    assert [shown.count(f"| {model} | **") for model in ("E1", "E2", "F1", "F2")] == [1, 1, 1, 1]
    assert shown in (ROOT / "docs" / "research" / "unseen-models.md").read_text(encoding="utf-8")


def test_what_edit_and_eval_print_is_a_line_of_regimes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited, scored = tmp_path / "edit.json", tmp_path / "eval.json"
    edited.write_text(json.dumps({"counts": {"learnt": 1, "refused": 1}}))
    values = [{name: [1.0, 0.0] for name in METRICS.values()}, {METRICS["Rel"]: [1.0]}]
    scored.write_text(json.dumps({"per_edit": [{"values": each} for each in values]}))
    main(["keep-regime", "E1", "text", str(edited), str(scored)])
    kept = json.loads(capsys.readouterr().out)
    assert kept["statuses"] == {"learnt": 1, "refused": 1}
    assert (kept["model"], kept["anchors"], kept["n"]) == ("E1", "text", 2)
    assert kept["values"] == {key: [0.5, None] for key in FIVE} | {"Rel": [0.5, 1.0]}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_every_file_of_the_panel_is_a_grid(path: Path) -> None:
    found = read_sweep(path)
    assert len(list(found.combinations())) > 1


@pytest.mark.slow
def test_a_file_of_the_panel_runs_and_leaves_lines_for_its_page(tmp_path: Path, capsys) -> None:
    """The panel's own file, for one edit on a tiny model in place of its models."""
    world = World(tmp_path / "tiny")
    asked = [{"question": "is it a dog ?"}, {"question": "what is in the image ?", "image": "img/black.png"}]
    world.write([line(0, rephrases=["which colour ?"], locality=asked)])
    anchor = {"image": "img/green.png", "question": "a photo ?", "answer": "a dog"}
    (world.root / "anchors.jsonl").write_text(json.dumps(anchor))
    values = tomllib.loads((ROOT / "more_lab" / "panel" / "mistakes.toml").read_text(encoding="utf-8"))
    own = {"models": ["model"], "suites": ["edits.jsonl"], "anchors": "anchors.jsonl", "limits": [1], "orders": [0]}
    values = {key: value for key, value in (values | own).items() if key != "data_root"}
    settings = values.pop("settings", {})
    text = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    text += ["[settings]", *(f"{json.dumps(key)} = {json.dumps(value[:1])}" for key, value in settings.items())]
    (world.root / "mistakes.toml").write_text("\n".join(text))
    out = world.root / "out"
    swept = run("sweep", world.root / "mistakes.toml", "-o", out, "--cache", world.root / "cache", "--dtype", "float32")
    assert swept.code == 0, swept.err
    main(["keep", str(out), "--stream", "mistakes", "--half", "held"])
    kept = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert {"none", "more", "more, batch", "more, anew"} <= {one["variant"] for one in kept}
    shown = "\n".join(models.tables(kept, models.Selection("none", limit=1)))
    assert "### mistakes, held: minus `none`, paired by edit" in shown
    assert "nan" not in shown


def test_single_edits_of_a_run_are_a_line_with_the_curve_of_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = run(
        *("run", demo_model_dir(), "--suite", "e-vqa", "--limit", 2, "--editor", "ft-l", "--set", "steps=2"),
        *("--protocol", "single", "--protocol", "final", "--cache", tmp_path, "--json"),
    )
    assert scored.code == 0, scored.err
    path = tmp_path / "run.json"
    result = scored.json | {
        "fit": {
            **dict(right=19, held_out=20, seconds=1.5, undertrained=False, records=700, key="k"),
            "facts": {"curve": [[500, 2.5]]},
        }
    }
    path.write_text(json.dumps(result))
    main(["keep-single", str(path)])
    kept = json.loads(capsys.readouterr().out)
    assert (kept["editor"], kept["suite"], kept["protocol"]) == ("ft-l", "e-vqa", "single@2")
    assert kept["fit"]["facts"] == {"curve": [[500, 2.5]]}
    value, low, high, n = kept["single"]["Rel"]
    assert n == len(kept["per_edit"]) == 2
    assert value == sum(kept["per_edit"]) / 2
    assert low <= value <= high
