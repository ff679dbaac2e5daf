"""Sites that are too small for the recipe's rank: who is told, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from more_cli.recipe.files import is_set
from support.helpers import World, run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("rank") / "world")


def said_by_status(world: World) -> str:
    """The line about the rank, with single spaces."""
    (line,) = [text for text in run("status", world.model).out.splitlines() if text.startswith("rank ")]
    return " ".join(line.split())


def test_status_says_it_and_a_new_state_only_to_who_set_the_rank(world: World) -> None:
    planned = said_by_status(world)
    sentence = planned.replace(", but ", " is capped: ")
    assert sentence != planned
    new = iter(range(9))

    def made(*options: object) -> str:
        result = run("init", world.model, "--state", world.root / f"{next(new)}.more", *options)
        assert result.code == 0
        return result.err

    assert made() == ""
    assert made("-v").count(sentence) == 1
    assert made("--set", "rank=511") == f"note: {sentence.replace('512', '511')}\n"
    own = world.root / "own.toml"
    own.write_text('extends = "llava"\nrank = 510\n')
    assert made("--recipe", own) == f"note: {sentence.replace('512', '510')}\n"
    small = made("--set", "rank=1")
    assert small == "", "nothing is capped"
    notices = run("init", world.model, "--json").json["notices"]
    assert notices == [sentence]
    assert said_by_status(world) == planned, "the same with a state"


def test_edit_makes_a_state_without_a_note(world: World) -> None:
    world.edits(1)
    state = ("--state", world.root / "edited.more")
    assert "capped" not in run("edit", world.model, world.root / "edits.jsonl", "--set", "max_steps=1", *state).err


def test_a_key_is_set_by_a_setting_or_by_a_file_of_ones_own(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent.toml", tmp_path / "child.toml"
    parent.write_text('extends = "llava"\nrank = 9\n')
    child.write_text('extends = "parent.toml"\nlast = 1\n')
    assert is_set("rank", "llava", ["rank=3"])
    assert not is_set("rank", "llava", ["rank_share=1"])
    assert not is_set("rank", "paper-llava"), "the recipe comes with the tool"
    assert is_set("rank", str(child))
    assert is_set("last", str(child))
    assert not is_set("margin", str(child))
