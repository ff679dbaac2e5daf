"""`compare EDITOR... --suite`: editors side by side, each as `eval --suite` runs it, compared with the first."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from more_lab.experiments.paired import compare
from more_lab.experiments.presets import preset_of
from support.helpers import Result, World, forks, line, run, stopped_at

QUICK_FT = ("--set", "ft-l:rate=0.01", "--set", "ft-l:steps=40")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three edits with a rephrase and a locality probe each, on a tiny model."""
    world = World(tmp_path_factory.mktemp("compare") / "world")
    world.write([line(n, rephrases=["which colour ?"], locality=[{"question": "is it a dog ?"}]) for n in range(3)])
    return world


def side_by_side(world: World, *words: object, cache: str = "cache") -> Result:
    where = "--model", world.model, "--cache", world.root / cache, "--dtype", "float32"
    return run("compare", *words, "--suite", world.root / "edits.jsonl", *where)


def alone(world: World, editor: str, *options: object) -> dict[str, Any]:
    where = "--cache", world.root / "cache", "--dtype", "float32", "--json"
    return run("run", world.model, "--suite", world.root / "edits.jsonl", "--editor", editor, *where, *options).json


def test_every_editor_has_the_results_of_eval_and_is_not_run_again(world: World) -> None:
    first = alone(world, "none")
    result = side_by_side(world, "none", "ft-l", *QUICK_FT, "--json")
    assert result.code == 0, result.err
    editors = result.json["editors"]
    assert list(editors) == ["ft-l", "none"], "JSON objects are sorted; `first` names the first"
    assert (result.json["schema"], result.json["first"], result.json["headline"]) == (
        "more.compare-editors/1",
        "none",
        "final@3",
    )
    assert (editors["none"]["resumed"], editors["ft-l"]["resumed"]) == (3, 0)
    assert editors["none"]["protocols"] == first["protocols"]
    second = alone(world, "ft-l", "--set", "rate=0.01", "--set", "steps=40")
    assert second["resumed"] == 3, "and the other way round"
    assert editors["ft-l"]["metrics"] == second["metrics"]
    assert editors["ft-l"]["reproduce"] == second["reproduce"]


def test_differences_are_paired_by_edit(world: World) -> None:
    result = side_by_side(world, "none", "ft-l", *QUICK_FT, "--json").json
    values = {
        editor: [edit["values"]["rel.tf_exact"][0] for edit in alone(world, editor, *options)["per_edit"]]
        for editor, options in {"none": (), "ft-l": ("--set", "rate=0.01", "--set", "steps=40")}.items()
    }
    expected = compare(values["none"], values["ft-l"])
    measured = result["differences"]["ft-l"]["rel.tf_exact"]
    assert (measured["first"], measured["second"], measured["difference"]) == (
        expected.first,
        expected.second,
        expected.difference,
    )
    assert (measured["low"], measured["high"], measured["p"], measured["n"]) == (
        expected.low,
        expected.high,
        expected.p,
        3,
    )
    assert expected.up, "fine-tuning learns what the base answers wrong"
    assert result["skipped"] == {"ft-l": {}}


def test_editors_are_scored_by_a_preset(world: World) -> None:
    shown = side_by_side(world, "none", "ft-l", *QUICK_FT, "--metrics", "paper-appendix")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert "locality against the model just before each edit" in lines[0]
    assert lines[1].startswith("metrics of paper-appendix: ")
    metrics = [text.split()[0] for text in lines if text.startswith(("rel.", "gen_", "loc_"))]
    assert set(metrics) <= set(preset_of("paper-appendix").columns.values())
    assert {"rel.gen_exact", "loc_text.loc_expkl_answer"} <= set(metrics)
    refused = run("compare", "--paired", "a.json", "b.json", "--metrics", "paper-appendix")
    assert refused.code == 2


def test_the_tables_have_final_and_online(world: World) -> None:
    side_by_side(world, "none", "ft-l", *QUICK_FT)
    shown = side_by_side(world, "none", "ft-l", *QUICK_FT)
    lines = shown.out.splitlines()
    assert lines[0].endswith("edits, 3 edits; locality against the base; editors none, ft-l")
    assert lines[1].split() == ["metric", "protocol", "none", "ft-l"]
    assert [text.split()[:2] for text in lines if text.startswith("rel.gen_exact")] == [
        ["rel.gen_exact", "final@3"],
        ["rel.gen_exact", "online@3"],
        ["rel.gen_exact", "ft-l"],
    ]
    assert "final@3: mean difference from none over edits" in shown.out
    assert "none: 3 steps are from an earlier run" in shown.err


@forks
def test_an_interrupted_comparison_resumes(world: World) -> None:
    from more_cli.runner import steps as run_steps

    compared = partial(side_by_side, world, "none", "ft-l", *QUICK_FT, cache="torn")
    assert stopped_at(5, run_steps.Run, "_edited", compared) == 130
    rest = side_by_side(world, "none", "ft-l", *QUICK_FT, "--json", cache="torn").json["editors"]
    whole = side_by_side(world, "none", "ft-l", *QUICK_FT, "--json").json["editors"]
    assert rest["none"]["resumed"] == 3
    assert [rest[name]["protocols"] for name in rest] == [whole[name]["protocols"] for name in whole]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none", "moer"), "did you mean `more`"),
        (("none", "ft-l", "--set", "ft-l:rank=3"), "`ft-l`: there is no key `rank`"),
        (("none", "ft-l", "--set", "rate=3"), "names none of the editors"),
        (("none", "ft-l", "--set", "ft-m:rate=3"), "names none of the editors"),
        (("none", "none"), "`none` is named twice"),
        ((), "`compare` needs two editors or more and --suite"),
        (("none", "--paired", "a.json", "b.json"), "compares two files and takes no editors"),
        (("--paired", "a.json", "b.json", "--image-root", "."), "compares two files and takes no editors"),
    ],
)
def test_what_cannot_be_compared_is_named_before_anything_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("more_cli.runner.run.load_runtime", None)
    refused = side_by_side(world, *words)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err


def test_several_states_ask_for_the_argument_that_compare_has(world: World, tmp_path: Path, monkeypatch) -> None:
    for name in ("a.more", "b.more"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    refused = run("compare", "none", "ft-l", "--suite", world.root / "edits.jsonl")
    assert refused.code == 2
    assert "several `*.more` files are here: a.more, b.more" in refused.err
    assert "hint: name the checkpoint folder: more compare EDITOR... --suite NAME --model DIR" in refused.err


def test_a_suite_without_edits_is_refused(world: World, tmp_path: Path) -> None:
    refused = run("compare", "none", "more", "--suite", "mme", "--model", world.model, "--cache", tmp_path)
    assert refused.code == 2
    assert "`mme` has no edits, only questions" in refused.err


def test_settings_reach_the_editor_whose_name_has_a_colon() -> None:
    from more_lab.experiments.compare_editors import settings_by_editor

    spelled = ["more:paper:default.step=0.3", "more:margin=1.0", "more:paper:system=a:b=c"]
    assert settings_by_editor(["more", "more:paper"], spelled) == {
        "more": ["margin=1.0"],
        "more:paper": ["default.step=0.3", "system=a:b=c"],
    }
