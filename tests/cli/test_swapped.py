"""Words in the wrong order: the error says which word is the model, and what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.helpers import World, run
from support.refused import assert_refused


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("swapped") / "world")
    world.edits(1)
    return world


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("edit", "edits.jsonl", "model"), "more edit model edits.jsonl"),
        (("edit", "e1", "model", "--retry"), "more edit model e1 --retry"),
        (("ask", "What is it?", "model"), "more ask model 'What is it?'"),
        (("init", "edits.jsonl", "model"), "more init model --anchors edits.jsonl"),
        (("init", "edits.jsonl", "model", "--anchors", "auto"), "more init model --anchors auto edits.jsonl"),
        (("anchors", "add", "edits.jsonl", "model"), "more anchors add model edits.jsonl"),
        (("merge", "out", "-o", "model"), "more merge model -o out"),
        (("export", "out", "-o", "model"), "more export model -o out"),
        (("eval", "edits.jsonl", "model"), "more eval model --probes edits.jsonl"),
        (("eval", "model", "edits.jsonl"), "more eval model --probes edits.jsonl"),
        (("merge", "model", "out"), "more merge model -o out"),
        (("merge", "model", "-o"), "-o DIR; see `more merge --help`"),
    ],
    ids=lambda words: words if isinstance(words, str) else "",
)
def test_swapped_words_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch, typed: tuple[Any, ...], meant: str
) -> None:
    monkeypatch.chdir(world.root)
    assert_refused(run(*typed), 2, f"hint: type: {meant}")


def test_a_mistyped_model_beside_a_merged_folder_is_not_swapped(world: World, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("config.json", "more.json"):
        (tmp_path / "out" / name).write_text("{}")
    assert_refused(run("merge", tmp_path / "modle", "-o", tmp_path / "out", "--force"), 5, "modle: no such directory")
