"""Anchors of a run on a suite: held as in a state, and never also a probe."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.helpers import QUESTION, Result, World, forks, line, run, stopped_at

ANCHORS = [
    {"image": "img/purple.png", "question": "what is in the image ?"},
    {"image": "img/orange.png", "question": QUESTION, "answer": "o"},
    {"question": "a photo of"},
]
LOOP = ("--set", "max_steps=6", "--dtype", "float32")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three edits with a locality probe of each kind, and three anchors that ask something else."""
    world = World(tmp_path_factory.mktemp("suite-anchors") / "world", text_layers=2)
    asked = [{"question": "is it a dog ?"}, {"question": QUESTION, "image": "img/black.png"}]
    world.write([line(n, locality=asked) for n in range(3)])
    world.write(ANCHORS, "anchors.jsonl")
    return world


def suite(world: World, *options: object, cache: str = "cache") -> Result:
    where = "--cache", world.root / cache, "--json"
    return run("eval", world.model, "--suite", world.root / "edits.jsonl", *where, *LOOP, *options)


def anchored(world: World, *options: object, cache: str = "cache") -> dict[str, Any]:
    result = suite(world, "--anchors", world.root / "anchors.jsonl", *options, cache=cache)
    assert result.code == 0, result.err
    return result.json


def test_a_run_with_anchors_has_the_scores_of_a_state_with_them(world: World, tmp_path: Path) -> None:
    """Two ways to one number: `eval --suite --anchors`, and `init --anchors`, `edit`, `eval`."""
    result, without = anchored(world), suite(world).json
    state = "--state", tmp_path / "other.more"
    run("init", world.model, "--anchors", world.root / "anchors.jsonl", *LOOP[:2], *state, *LOOP[2:])
    run("edit", world.model, world.root / "edits.jsonl", *state, *LOOP[2:])
    scored = run("eval", world.model, *state, *LOOP[2:], "--json").json
    for name, value in scored["metrics"].items():
        assert result["metrics"][name]["value"] == pytest.approx(value["value"], abs=1e-4), name
    assert result["reproduce"]["anchors"] == scored["reproduce"]["anchors"]
    assert without["reproduce"]["anchors"] is None
    assert without["metrics"]["rel.target_nll"]["value"] != result["metrics"]["rel.target_nll"]["value"]


def test_a_recipe_that_names_anchors_is_run_with_them(world: World) -> None:
    recipe = world.root / "mine.toml"
    recipe.write_text('extends = "llava"\nbackbones = ["llava"]\n\n[anchors]\nfile = "anchors.jsonl"\n')
    result = suite(world, "--recipe", recipe)
    assert result.code == 0, result.err
    assert result.json["reproduce"]["anchors"] == anchored(world)["reproduce"]["anchors"]
    assert result.json["metrics"] == anchored(world)["metrics"]


def test_probes_that_are_also_anchors_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.experiments.run.load_runtime", None)
    world.write([*ANCHORS, {"question": "Is it a  DOG ?"}], "same.jsonl")
    refused = suite(world, "--anchors", world.root / "same.jsonl")
    assert refused.code == 4
    assert "edits.jsonl:1: locality 1 is also an anchor" in refused.err
    assert refused.out == ""


def test_calibration_edits_are_compared_with_anchors_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.experiments.run.load_runtime", None)
    root = world.mmedit(1)
    world.write([{"question": "is it 1 ?"}], "pool.jsonl")
    where = "--data-root", root, "--image-root", world.root, "--cache", world.root / "cache"
    options = "--anchors", world.root / "pool.jsonl", "--calibrate", 2
    refused = run("eval", world.model, "--suite", "e-vqa", *where, *options)
    assert refused.code == 4
    assert "vqa_train.json:1: locality 1 is also an anchor" in refused.err


@forks
def test_an_interrupted_run_resumes_with_its_anchors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from more_cli.experiments import run as suite_run

    monkeypatch.setattr(suite_run, "SAVE_EDITS", 1)
    started = partial(suite, world, "--anchors", world.root / "anchors.jsonl", cache="torn")
    assert stopped_at(3, suite_run._Run, "_edited", started) == 130
    rest = anchored(world, cache="torn")
    assert rest["resumed"] == 2
    assert rest["matrix"] == anchored(world)["matrix"]


def test_single_edits_hold_the_anchors_each(world: World) -> None:
    single = anchored(world, "--protocol", "single")["matrix"]
    online = anchored(world)["matrix"]
    first = next(row for row in single if row["edit"] == 1)
    assert first["scores"] == next(row for row in online if (row["after"], row["edit"]) == (1, 1))["scores"]


def test_editors_without_anchors_refuse_them(world: World) -> None:
    refused = run(
        *("eval", world.model, "--suite", world.root / "edits.jsonl", "--editor", "ft-l"),
        *("--anchors", world.root / "anchors.jsonl"),
    )
    assert (refused.code, "`ft-l` does not use anchors" in refused.err) == (2, True)
    alone = run("eval", world.model, "--anchors", world.root / "anchors.jsonl")
    assert (alone.code, "--suite" in alone.err) == (2, True)
    where = "--suite", world.root / "edits.jsonl", "--model", world.model, "--cache", world.root / "cache"
    anchors = "--anchors", world.root / "anchors.jsonl"
    none = run("compare", "none", "ft-l", *where, *anchors)
    assert (none.code, "no editor uses anchors" in none.err) == (2, True)
    result = run("compare", "none", "more", "--set", "more:max_steps=6", *where, *anchors, *LOOP[2:], "--json").json
    assert result["editors"]["none"]["reproduce"]["anchors"] is None
    assert result["editors"]["more"]["metrics"] == anchored(world)["metrics"]
