"""`more sweep` on a grid: each trial is one run of `eval --suite`, whoever runs it, and after every interruption."""

from __future__ import annotations

import importlib.util
import json
import shutil
from functools import partial
from typing import Any

import pytest

from more_cli.errors import StateError
from more_cli.evaluation.metrics import TOO_FEW
from more_cli.runner import run as suite_run
from more_cli.runner import steps as run_steps
from more_lab.sweep.trials import Trial
from support.helpers import QUICK, Result, World, at_call, die, forks, in_child, line, run, stopped_at

GRID = """
editors = ["none", "ft-l"]
models = ["model"]
suites = ["edits.jsonl"]
limits = [2]
checkpoints = [1]
threads = 1
[settings]
"ft-l:rate" = [0.01, 0.1]
"ft-l:steps" = [5]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three edits with a rephrase and a locality probe each, on a tiny model; and the results of a grid on them."""
    world = World(tmp_path_factory.mktemp("sweep") / "world")
    world.write([line(n, rephrases=["which colour ?"], locality=[{"question": "is it a dog ?"}]) for n in range(3)])
    result = sweep(world, GRID, "whole", name="grid.toml")
    assert result.code == 0, result.err
    return world


def sweep(world: World, text: str, out: str, *options: object, name: str = "sweep.toml") -> Result:
    (world.root / name).write_text(text)
    where = "-o", world.root / out, "--cache", world.root / f"{out}.cache", "--dtype", "float32"
    return run("sweep", world.root / name, *where, *options)


def lines(world: World, out: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (world.root / out / "results.jsonl").read_text().splitlines()]


def files(world: World, out: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in (world.root / out).iterdir() if path.suffix != "" and path.is_file()
    }


def test_every_trial_has_the_numbers_of_eval(world: World) -> None:
    results = lines(world, "whole")
    assert [each["key"] for each in results] == sorted(each["key"] for each in results)
    trials = {(each["trial"]["editor"], *each["trial"]["settings"]): each for each in results}
    assert set(trials) == {("none",), ("ft-l", "rate=0.01", "steps=5"), ("ft-l", "rate=0.1", "steps=5")}
    where = "--suite", world.root / "edits.jsonl", "--limit", 2, "--checkpoints", 1, "--dtype", "float32", "--json"
    tuned = "--editor", "ft-l", "--set", "rate=0.1", "--set", "steps=5"
    alone = run("run", world.model, *where, *tuned, "--cache", world.root / "alone").json
    trial = trials["ft-l", "rate=0.1", "steps=5"]
    assert trial["reproduce"] == alone["reproduce"]
    assert trial["metrics"]["final@2"]["rel.tf_exact"]["value"] == alone["metrics"]["rel.tf_exact"]["value"]
    assert [each["values"] for each in trial["per_edit"]] == [each["values"] for each in alone["per_edit"]]


def test_times_are_kept_apart_from_results(world: World) -> None:
    assert "seconds" not in (world.root / "whole" / "results.jsonl").read_text()
    timings = (world.root / "whole" / "timings.jsonl").read_text().splitlines()
    assert {json.loads(text)["key"] for text in timings} == {each["key"] for each in lines(world, "whole")}


def test_the_page_has_the_trials_and_paired_differences_from_the_first(world: World) -> None:
    text = (world.root / "whole" / "report.md").read_text(encoding="utf-8")
    assert text.startswith("### more sweep: 3 of 3 trials done\n")
    rows = [[cell.strip() for cell in row.strip("| ").split("|")] for row in text.splitlines() if row.startswith("| `")]
    compared = {(row[0], row[1]): row[2:] for row in rows if row[3] == TOO_FEW}
    assert {label for label, _ in compared} == {"`ft-l, rate=0.01 steps=5`", "`ft-l, rate=0.1 steps=5`"}
    values = {each["trial"]["settings"][:1] == ["rate=0.1"]: each for each in lines(world, "whole")}
    where = world.root / "alone"
    options = (
        "--suite",
        world.root / "edits.jsonl",
        "--limit",
        2,
        "--model",
        world.model,
        "--dtype",
        "float32",
        "--json",
    )
    tuned = "--set", "ft-l:rate=0.1", "--set", "ft-l:steps=5", "--checkpoints", 1, "--cache", where
    expected = run("compare", "none", "ft-l", *options, *tuned).json["differences"]["ft-l"]["rel.tf_token_acc"]
    cells = compared["`ft-l, rate=0.1 steps=5`", "rel.tf_token_acc"]
    assert cells[0] == f"{expected['difference']:+.3f}"
    assert cells[2:5] == [str(expected[name]) for name in ("up", "down", "same")]
    assert True in values
    assert "<svg" in (world.root / "whole" / "report.html").read_text(encoding="utf-8")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_without_the_first_trial_there_are_no_differences(world: World) -> None:
    def stopped(trial: Trial, *rest: Any) -> tuple[dict[str, Any], bool]:
        if trial.names.editor == "none":
            raise StateError("the first one fails")
        return run_trial(trial, *rest)

    run_trial = Trial.run
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trial, "run", stopped)
        result = sweep(world, GRID, "without")
    assert result.code == 3
    assert "failed: none: the first one fails" in result.out
    page = (world.root / "without" / "report.md").read_text()
    assert page.count("the first trial, none, has no result") == 2
    assert "rel.tf_exact |" not in page.partition("#### Differences")[2].partition("####")[0]


def test_the_figure_is_drawn_where_matplotlib_is(world: World) -> None:
    assert (world.root / "whole" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"ft-l" in (world.root / "whole" / "figure.svg").read_bytes()


def test_a_second_run_runs_nothing_and_writes_the_same_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(world, "whole")
    monkeypatch.setattr(suite_run, "load_runtime", None)
    again = sweep(world, GRID, "whole", name="grid.toml")
    assert again.code == 0, again.err
    assert files(world, "whole") == before


@forks
@pytest.mark.parametrize("killed", [False, True])
def test_a_sweep_that_was_cut_short_ends_with_the_same_bytes(world: World, killed: bool) -> None:
    out = f"cut{killed:d}"
    start = partial(sweep, world, GRID, out, name="grid.toml")

    def until_killed() -> Result:
        at_call(4, [(run_steps.Run, "_edited")], die)
        return start()

    code = in_child(until_killed) if killed else stopped_at(4, run_steps.Run, "_edited", start)
    assert code == (-9 if killed else 130), "in the second of three trials"
    assert len(list((world.root / out / "parts").iterdir())) == 1
    assert start().code == 0
    same = {name: data for name, data in files(world, out).items() if name != "timings.jsonl"}
    assert same == {name: data for name, data in files(world, "whole").items() if name != "timings.jsonl"}


def test_the_order_of_the_trials_does_not_matter(world: World) -> None:
    turned = GRID.replace('["none", "ft-l"]', '["ft-l", "none"]').replace("[0.01, 0.1]", "[0.1, 0.01]")
    assert sweep(world, turned, "turned").code == 0
    assert files(world, "turned")["results.jsonl"] == files(world, "whole")["results.jsonl"]


def test_what_an_earlier_grid_has_is_not_run_again(world: World) -> None:
    shutil.copytree(world.root / "whole", world.root / "wider")
    planned = sweep(world, GRID.replace("[0.01, 0.1]", "[0.01, 0.1, 0.5]"), "wider", "--dry-run")
    assert planned.code == 0, planned.err
    (row,) = [text.split() for text in planned.out.splitlines() if "rate=" in text]
    assert row[1:4] == ["ft-l,", "rate=0.5", "steps=5"]
    assert row[-1] == "s", "the median of the two that are done"
    assert planned.out.endswith(" s one after the other; nothing written\n")


def test_a_time_that_nobody_knows_is_unknown(world: World) -> None:
    planned = sweep(world, GRID, "nowhere", "--dry-run")
    assert planned.code == 0, planned.err
    assert [text.split()[-1] for text in planned.out.splitlines()[1:4]] == ["unknown"] * 3
    assert planned.out.endswith("3 of 3 to run: time unknown; nothing written\n")
    assert not (world.root / "nowhere").exists()


def test_seeds_are_for_editors_that_draw(world: World) -> None:
    text = GRID.partition("[settings]")[0].replace('"ft-l"', '"more"') + "seeds = [1, 2]\norders = [0, 3]\n[settings]\n"
    keys = "\n".join(f'"more:{key}" = [{value}]' for key, _, value in (word.partition("=") for word in QUICK[1::2]))
    planned = sweep(world, text + keys, "seeds", "--dry-run")
    assert planned.code == 0, planned.err
    labels = [text.split(maxsplit=1)[1].rsplit(maxsplit=1)[0].strip() for text in planned.out.splitlines()[1:-1]]
    assert labels == [
        "none, order=0",
        "none, order=3",
        *(f"more, max_steps=1 last=1, seed={seed}, order={order}" for order in (0, 3) for seed in (1, 2)),
    ]


def test_anchors_go_to_the_editors_that_use_them_and_score_no_trial(world: World) -> None:
    held = [{"question": "is it a dog ?", "answer": "a dog"}, {"question": "what is it ?", "answer": "a cat"}]
    (world.root / "held.jsonl").write_text("".join(json.dumps(each) + "\n" for each in held))
    text = GRID.partition("[settings]")[0] + 'anchors = "held.jsonl"\n'
    refused = sweep(world, text, "held")
    assert refused.code == 2
    assert "sweep.toml: no editor uses anchors with these settings\nhint: leave `anchors` out" in refused.err
    more = text.replace('"ft-l"', '"more"') + '[settings]\n"more:max_steps" = [1]\n"more:sites" = [["projector"]]\n'
    done = sweep(world, more, "held")
    assert done.code == 0, done.err
    none, edited = sorted(lines(world, "held"), key=lambda each: each["trial"]["editor"] == "more")
    assert (none["reproduce"]["anchors"], edited["reproduce"]["anchors"] is None) == (None, False)
    assert (none["left_out"], edited["left_out"]) == (2, 2), "the locality question of both edits"


def test_a_broken_checkpoint_is_named_and_the_others_are_done(world: World) -> None:
    broken = world.root / "broken"
    shutil.copytree(world.model, broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    text = GRID.replace('["model"]', '["broken", "model"]').replace('["none", "ft-l"]', '["none"]')
    result = sweep(world, text.partition("[settings]")[0], "half")
    assert result.code == 3
    (failed,) = [text for text in result.out.splitlines() if text.startswith("failed: ")]
    assert failed.startswith("failed: broken, none: ")
    assert str(broken) in failed
    said = "the lines `failed` say why; mend that, then the same command tries them again"
    assert result.err.endswith(f"error: 1 of 2 trials failed\nhint: {said}\n")
    assert [each["trial"]["model"] for each in lines(world, "half")] == ["model"]
    assert "broken, none" in (world.root / "half" / "report.md").read_text()


@pytest.mark.slow
def test_worker_processes_give_the_same_bytes(world: World) -> None:
    result = sweep(world, GRID, "spread", "--workers", 2, name="grid.toml")
    assert result.code == 0, result.err
    for name in ("results.jsonl", "report.md", "report.html"):
        assert files(world, "spread")[name] == files(world, "whole")[name]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra `cluster`)")
def test_a_ray_cluster_gives_the_same_bytes(world: World) -> None:
    result = sweep(world, GRID, "cluster", "--address", "local", name="grid.toml")
    assert result.code == 0, result.err
    assert files(world, "cluster")["results.jsonl"] == files(world, "whole")["results.jsonl"]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_a_cluster_is_refused_with_what_to_type(world: World) -> None:
    refused = sweep(world, GRID, "nowhere", "--address", "auto")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == 'error: `--address` needs Ray\nhint: pip install "more-vlm[cluster]"\n'


def test_as_json_a_plan_and_a_result_name_every_trial(world: World) -> None:
    planned = sweep(world, GRID, "nowhere", "--dry-run", "--json").json
    assert (planned["schema"], planned["done"], planned["problems"]) == ("more.sweep.plan/1", 0, [])
    assert [job["seconds"] for job in planned["jobs"]] == [None] * 3
    found = sweep(world, GRID, "whole", "--json", name="grid.toml").json
    assert found["schema"] == "more.sweep/1"
    keys = [trial["key"] for trial in found["trials"]]
    assert keys == [job["key"] for job in planned["jobs"]]
    assert sorted(keys) == [each["key"] for each in lines(world, "whole")]


def test_edits_are_written_together_where_the_editor_can(world: World) -> None:
    """Beside it an editor that cannot runs once, and a suite in a folder named after the model is found."""
    shutil.copytree(world.root, world.root / "of" / "model", ignore=shutil.ignore_patterns("of", "model*", "whole*"))
    text = 'editors = ["more", "none"]\nmodels = ["model"]\nsuites = ["of/{model}/edits.jsonl"]\nlimits = [2]\n'
    text += 'writings = ["online", "batch"]\nprotocols = ["final"]\n[settings]\n"more:max_steps" = [4]\n'
    result = sweep(world, text, "together")
    assert result.code == 0, result.err
    assert "1 combination left out" in result.err
    found = {(one["trial"]["editor"], one["trial"].get("writing")): one for one in lines(world, "together")}
    assert set(found) == {("more", None), ("more", "batch"), ("none", None)}
    where = "--suite", world.root / "edits.jsonl", "--limit", 2, "--dtype", "float32", "--json"
    alone = run("run", world.model, *where, "--set", "max_steps=4", "--batch", "--cache", world.root / "alone").json
    values = [one["values"] for one in found["more", "batch"]["per_edit"]]
    assert values == [one["values"] for one in alone["per_edit"]]
