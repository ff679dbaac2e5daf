"""`EDITOR@RECIPE`: an editor with a recipe in its name, several times in one comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.helpers import Result, World, line, run

SMALL = 'extends = "default"\nlast = 1\nrank = 4\nmax_steps = 1\n'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two edits, and two recipes of one's own that differ in rank."""
    world = World(tmp_path_factory.mktemp("recipes") / "world")
    world.write([line(n, locality=[{"question": "is it a dog ?"}]) for n in range(2)])
    (world.root / "small.toml").write_text(SMALL)
    (world.root / "other.toml").write_text(SMALL.replace("4", "2"))
    return world


def compared(world: World, *words: object) -> Result:
    where = "--model", world.model, "--cache", world.root / "cache", "--dtype", "float32"
    return run("compare", *words, "--suite", world.root / "edits.jsonl", *where)


def alone(world: World, editor: str, *options: object) -> Result:
    where = "--cache", world.root / "cache", "--dtype", "float32"
    return run("run", world.model, "--suite", world.root / "edits.jsonl", "--editor", editor, *where, *options)


def test_one_editor_is_compared_with_itself_under_other_recipes(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(world.root)
    names = "more@small.toml", "more@other.toml", "naive@small.toml"
    page = tmp_path / "page.md"
    result = compared(world, *names, "--json", "--report", page)
    assert result.code == 0, result.err
    values = result.json
    assert (values["first"], set(values["editors"])) == (names[0], set(names))
    assert set(values["differences"]) == set(names[1:])
    for name, report in values["editors"].items():
        constants = report["reproduce"]["constants"]
        assert (report["editor"], report["reproduce"]["editor"]) == (name, name)
        assert constants["name"] == name.partition("@")[2].removesuffix(".toml")
        assert constants["rank"] == (2 if "other" in name else 4)
        assert constants["precondition"] == name.startswith("more")
        assert name in page.read_text()
    again = compared(world, *names)
    assert again.out.splitlines()[1].split() == ["metric", "protocol", *names]
    assert all(f"{name}: 2 steps are from an earlier run" in again.err for name in names), "each has its own cache key"


def test_an_editor_with_a_recipe_runs_alone_and_as_with_the_option(world: World) -> None:
    named = alone(world, f"more@{world.root / 'small.toml'}", "--json")
    option = alone(world, "more", "--recipe", world.root / "small.toml", "--json")
    assert named.code == option.code == 0, named.err + option.err
    assert named.json["metrics"] == option.json["metrics"]
    assert named.json["reproduce"]["constants"] == option.json["reproduce"]["constants"]
    shown = alone(world, "more@paper-llava", "--set", "max_steps=1", "--set", "last=1")
    assert "; editor more@paper-llava" in shown.out


def test_settings_reach_the_editor_with_the_longest_name(world: World) -> None:
    editors = "more", "more:paper", "more@paper-llava"
    small = [word for name in editors for key in ("last=1", "max_steps=1") for word in ("--set", f"{name}:{key}")]
    result = compared(
        world, *editors, *small, "--set", "more@paper-llava:rank=3", "--set", "more:paper:rank=2", "--json"
    )
    assert result.code == 0, result.err
    ranks = {name: report["reproduce"]["constants"]["rank"] for name, report in result.json["editors"].items()}
    assert ranks == {"more": 512, "more:paper": 2, "more@paper-llava": 3}


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("more", "more@defalt"), "no recipe `defalt`", "did you mean `default`?"),
        (("more", "more@none.toml"), "no recipe `none.toml`", "or give the path of a .toml file"),
        (("more", "more@"), "`more@` names no recipe", "for example more@default"),
        (("more", "ft-l@default"), "editor `ft-l` takes no recipe", "name it `ft-l`, or use `more@default`"),
        (("more", "none@default"), "editor `none` takes no recipe", "name it `none`, or"),
        (("more", "more:paper@default"), "editor `more:paper` takes no recipe", "name it `more:paper`, or"),
        (("more", "moer@default"), "unknown editor `moer@default`", "did you mean `more@default`?"),
        (("more@default", "more", "more@default"), "editor `more@default` is named twice", "name each once"),
        (
            ("none", "more@default", "--set", "more:rank=3"),
            "names none of the editors",
            "with one of none, more@default",
        ),
        (("none", "more@default", "--set", "more@default:rnk=3"), "there is no key `rnk`", "did you mean `rank`?"),
    ],
)
def test_a_mistake_in_a_name_is_one_line_and_a_hint(
    world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], error: str, hint: str
) -> None:
    monkeypatch.setattr("more_cli.runner.run.load_runtime", None)
    refused = compared(world, *words)
    assert (refused.code, refused.out) == (2, "")
    first, second = refused.err.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def test_a_recipe_is_named_once(world: World) -> None:
    refused = alone(world, "more@default", "--recipe", "paper-llava")
    assert refused.code == 2
    assert "error: editor `more@default` has its recipe in its name" in refused.err
