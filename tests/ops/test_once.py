"""What one command needs several times it reads or builds once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from more_cli.model import loading, versions
from more_cli.ops import init, plan, session
from support.helpers import QUICK, World, line


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, text_layers=1)
    world.edits(3)
    return world


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often what reads a checkpoint's files or a package's metadata was called."""
    found = Counter[str]()

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for module in (loading, plan):
        counted(module, "meta_model")
    counted(loading, "load_processor")
    counted(session, "load_runtime")
    counted(init, "load_runtime")
    counted(versions, "version")
    return found


@pytest.mark.parametrize("anchors", [("--no-anchors",), ("--anchors", "--set", 'anchors.prompts=["why ?"]')], ids=str)
def test_a_new_state_and_its_edits_take_one_model_and_one_processor(
    world: World, calls: Counter[str], anchors: tuple[str, ...]
) -> None:
    assert world.edit(*QUICK, *anchors).code in (0, 3)
    assert (calls["meta_model"], calls["load_processor"], calls["load_runtime"]) == (1, 1, 1)


def test_probes_that_may_be_anchors_too_take_no_model_more(world: World, calls: Counter[str]) -> None:
    world.write([line(0, locality=[{"question": "why ?"}])])
    done = world.edit(*QUICK, "--anchors", "--set", 'anchors.prompts=["why ?"]')
    assert done.code in (0, 3), done.err
    assert calls["meta_model"] == 1


def test_an_edit_of_a_state_that_is_there_takes_no_more(world: World, calls: Counter[str]) -> None:
    assert world.edit(*QUICK, "--limit", 1).code in (0, 3)
    calls.clear()
    assert world.edit().code in (0, 3)
    assert (calls["meta_model"], calls["load_processor"], calls["load_runtime"]) == (1, 1, 1)


def test_the_versions_of_packages_are_read_once_and_not_for_every_ledger_line(
    world: World, calls: Counter[str]
) -> None:
    versions._version_of.cache_clear()
    assert world.edit(*QUICK).code in (0, 3)
    assert [set(entry["versions"]) >= {"numpy", "transformers"} for entry in world.entries()] == [True] * 3
    assert calls["version"] == 2
