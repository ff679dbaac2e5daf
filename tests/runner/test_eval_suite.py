"""`more eval --suite`: M-ORE runs on a suite of edits; what is research only is an option of `more run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.helpers import Result, World, line, run, tree

LOOP = ("--set", "max_steps=6")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("eval-suite") / "world")
    asked = [{"question": "is it a dog ?"}, {"question": "what is in the image ?", "image": "img/black.png"}]
    world.write([line(n, rephrases=["which colour ?"], locality=asked) for n in range(3)])
    return world


def suite(world: World, *options: object) -> Result:
    where = "--cache", world.root / "cache", "--dtype", "float32"
    return run("eval", world.model, "--suite", world.root / "edits.jsonl", *where, *options, *LOOP)


def test_it_scores_every_protocol_from_the_untouched_base_and_a_second_run_reads_the_cache(world: World) -> None:
    before = tree(world.model)
    first = suite(world, "--json")
    assert first.code == 0, first.err
    assert (first.json["editor"], first.json["headline"], first.json["edits"]) == ("more", "final@3", 3)
    assert {"final@3", "online@3", "final@1", "online@1"} == set(first.json["protocols"])
    assert (first.json["fit"], first.json["preset"]) == (None, None)
    assert (tree(world.model), world.model.with_suffix(".more").exists()) == (before, False)
    again = suite(world, "--json")
    assert (again.json["resumed"], again.json["matrix"]) == (3, first.json["matrix"])
    assert "3 steps are from an earlier run" in suite(world).err


def test_it_writes_a_report_and_judges_gates(world: World, tmp_path: Path) -> None:
    page = tmp_path / "suite.html"
    missed = suite(world, "--report", page, "--gate", "rel.target_nll@online<=0")
    assert (missed.code, page.read_text(encoding="utf-8").count("<html")) == (6, 1)
    assert "MISSED" in missed.out


@pytest.mark.parametrize("option", ["--editor", "--calibrate", "--keep", "--keep-updates", "--metrics", "--protocol"])
def test_an_option_of_research_names_the_command_that_has_it(world: World, option: str) -> None:
    refused = run("eval", world.model, "--suite", "e-vqa", option, "x")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        f"error: `{option}` is an option of `more run`\nhint: type: more run MODEL --suite NAME {option} ...\n"
    )
