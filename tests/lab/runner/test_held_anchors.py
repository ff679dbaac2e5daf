"""Anchors of a run on a suite: held as in a state, made from its calibration pool, and never also a probe."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from more_cli.evaluation.probes import run_probes
from more_cli.store.state import load_state
from support.helpers import QUESTION, Result, World, forks, line, run, stopped_at
from support.refused import assert_refused

ANCHORS = [
    {"image": "img/purple.png", "question": "what is in the image ?"},
    {"image": "img/orange.png", "question": QUESTION, "answer": "o"},
    {"question": "a photo of"},
]
LOOP = ("--set", "max_steps=6", "--dtype", "float32")
WRITTEN = ("--set", "anchors.prompts=[]")
"""No made anchors join those of a file."""


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
    return run("run", world.model, "--suite", world.root / "edits.jsonl", *where, *LOOP, *options)


def anchored(world: World, *options: object, cache: str = "cache") -> dict[str, Any]:
    result = suite(world, "--anchors", world.root / "anchors.jsonl", *options, cache=cache)
    assert result.code == 0, result.err
    return result.json


def test_a_run_with_anchors_has_the_scores_of_a_state_with_them(world: World, tmp_path: Path) -> None:
    """Two ways to one number: `eval --suite --anchors`, and `init --anchors`, `edit`, `eval`."""
    anchors = "--anchors", world.root / "anchors.jsonl", *WRITTEN
    result, without = suite(world, *anchors).json, suite(world).json
    state = "--state", tmp_path / "other.more"
    run("init", world.model, *anchors, *LOOP[:2], *state, *LOOP[2:])
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


def test_probes_that_are_also_anchors_are_left_out_and_counted(world: World) -> None:
    world.write([*ANCHORS, {"question": "Is it a  DOG ?"}], "same.jsonl")
    anchors = "--anchors", world.root / "same.jsonl"
    result = suite(world, *anchors)
    assert result.code == 0, result.err
    assert result.json["left_out"] == 3
    assert not any(name.startswith("loc_text.") for name in result.json["metrics"])
    assert result.json["metrics"]["loc_image.loc_gen_same"]["n"] == 3
    assert [len(edit["answers"]) for edit in result.json["per_edit"]] == [2, 2, 2]
    assert anchored(world)["left_out"] == 0
    where = "--suite", world.root / "edits.jsonl", "--cache", world.root / "cache", *LOOP
    reports = [world.root / "left_out.md", world.root / "left_out.html"]
    shown = run("run", world.model, *where, *anchors, "--report", reports[0], "--report", reports[1])
    said = "3 of 6 locality probes are anchors too and were left out"
    assert all(said in text for text in (shown.out, *(report.read_text() for report in reports)))
    assert said not in run("run", world.model, *where, "--anchors", world.root / "anchors.jsonl").out


def test_a_comparison_leaves_them_out_for_every_editor(world: World) -> None:
    world.write([*ANCHORS, {"question": "is it a dog ?"}], "same.jsonl")
    where = "--suite", world.root / "edits.jsonl", "--model", world.model, "--cache", world.root / "cache"
    options = "--anchors", world.root / "same.jsonl", "--set", "more:max_steps=6", *LOOP[2:]
    compared = run("compare", "none", "more", *where, *options, "--json")
    assert compared.code == 0, compared.err
    assert {name: run["left_out"] for name, run in compared.json["editors"].items()} == {"none": 3, "more": 3}
    assert compared.json["skipped"] == {"more": {}}
    assert compared.json["differences"]["more"]["loc_image.loc_gen_same"]["n"] == 3
    shown = run("compare", "none", "more", *where, *options).out
    assert "3 of 6 locality probes are anchors too and were left out" in shown


def test_calibration_leaves_them_out_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    root, asked = world.mmedit(1), set[str]()

    def watched(runtime: Any, editor: Any, probes: Any, **options: Any) -> Any:
        asked.update(probe.query.question for probe in probes)
        return run_probes(runtime, editor, probes, **options)

    monkeypatch.setattr("more_lab.experiments.calibrate.run_probes", watched)
    world.write([{"question": "is it 1 ?"}], "pool.jsonl")
    where = "--data-root", root, "--image-root", world.root, "--cache", world.root / "cache"
    options = "--anchors", world.root / "pool.jsonl", "--calibrate", 2
    result = run("run", world.model, "--suite", "e-vqa", *where, *options, *LOOP, "--json")
    assert result.code == 0, result.err
    assert asked == {"what colour is it 1 ?", "which colour 1 ?", "what is it ?"}
    assert result.json["left_out"] == 0


def test_anchors_are_made_from_the_calibration_pool_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The anchors of `init --anchors auto` on the records of the pool, without what the base asks itself."""
    monkeypatch.setattr("more_cli.ops.auto_anchors.OWN", 0)
    colours = ("red", "green", "blue", "yellow")
    questions = ("who is it ?", "is it a dog ?", "how old is the fox ?", "where is the chair ?")
    record = {"pred": "x", "alt": "r", "loc": "a photo of", "loc_ans": "no", "m_loc_q": "why ?", "m_loc_a": "x"}
    pool = [
        {**record, "src": question, "rephrase": question, "image": f"img/{colour}.png", "m_loc": "img/black.png"}
        | {"image_rephrase": f"img/{colour}.png"}
        for question, colour in zip(questions, colours, strict=True)
    ]
    folder = tmp_path / "pools"
    folder.mkdir()
    other = pool[0] | {"image": "img/white.png", "image_rephrase": "img/white.png", "src": "what colour is it ?"}
    (folder / "vqa_train.json").write_text(json.dumps(pool))
    (folder / "vqa_eval.json").write_text(json.dumps([other]))
    few = "--set", 'anchors.prompts=["what is 2 plus 3 ?"]'
    where = "--data-root", folder, "--image-root", world.root, "--cache", tmp_path / "cache"
    result = run("run", world.model, "--suite", "e-vqa", *where, "--anchors", "auto", *few, *LOOP, "--json")
    assert result.code == 0, result.err
    state = "--state", tmp_path / "made.more"
    made = "--anchors", "auto", folder / "vqa_train.json", "--image-root", world.root, *few, *LOOP, *state
    assert run("init", world.model, *made).code == 0
    assert result.json["reproduce"]["anchors"] == load_state(tmp_path / "made.more").meta.anchors
    anchors = run("anchors", "list", world.model, *state, "--json").json["anchors"]
    assert {anchor["question"] for anchor in anchors} >= {*questions, "what is 2 plus 3 ?"}
    assert "what colour is it ?" not in {anchor["question"] for anchor in anchors}


def test_a_suite_without_a_calibration_pool_makes_no_anchors(world: World) -> None:
    refused = suite(world, "--anchors", "auto")
    assert_refused(refused, 2, "suite `edits` has no calibration pool here to make anchors from", "--anchors FILE")
    refused = suite(world, "--anchors", "auto", "--editor", "ft-l")
    assert refused.code == 2


@forks
def test_an_interrupted_run_resumes_with_its_anchors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from more_cli.runner import steps as run_steps

    monkeypatch.setattr(run_steps, "SAVE_EDITS", 1)
    started = partial(suite, world, "--anchors", world.root / "anchors.jsonl", cache="torn")
    assert stopped_at(3, run_steps.Run, "_edited", started) == 130
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
        *("run", world.model, "--suite", world.root / "edits.jsonl", "--editor", "ft-l"),
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
