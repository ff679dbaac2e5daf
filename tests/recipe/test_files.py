"""The recipes that come with `more`, their numbers and which architecture gets which; files that extend others."""

import errno
import os
from pathlib import Path

import pytest

from more_cli.errors import UsageError
from more_cli.ops.status import extensions
from more_cli.recipe.files import load_recipe, parse_recipe, pick_recipe, shipped_recipes
from more_cli.recipe.tables import Constants
from support.paths import ROOT


def test_the_folder_of_recipes_has_nothing_else() -> None:
    assert {path.suffix for path in (ROOT / "recipes").rglob("*") if path.is_file()} == {".toml"}


def test_every_shipped_recipe_loads_and_survives_the_state() -> None:
    for name in shipped_recipes():
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.description, name
        # The state has the anchors and the sites themselves, and what a recipe says about itself decides no number.
        anchors = recipe.anchors.model_copy(update={"questions": (), "prompts": ()})
        kept = {"anchors": anchors, "published": (), "departures": (), "optional": ()}
        assert parse_recipe(recipe.canonical(), "state") == recipe.model_copy(update=kept), name


def test_what_a_recipe_does_beyond_the_paper_is_named() -> None:
    assert extensions(load_recipe("paper-llava"), 0) == []
    plain = extensions(load_recipe("default", ["pooling=mean"]), 0)
    assert set(extensions(load_recipe("default"), 0)) - set(plain) == {"the key of every token in P"}
    assert any("moment of its own keys" in name for name in plain)


def test_paper_and_authors_recipes_hold_the_published_numbers() -> None:
    paper, authors = load_recipe("paper-llava"), load_recipe("authors-llava")
    for recipe in (paper, authors):
        constants = recipe.constants_of("text.31.down_proj", "text")
        assert (constants.step, constants.ridge, recipe.rank, recipe.scale) == (0.1, 2000.0, 512, 2.0)
        assert not recipe.stop_early
    assert (paper.last, paper.max_steps, paper.top_k, paper.absorb) == (7, 1, None, "edit")
    assert authors.excludes("text.31.gate_proj")
    assert not authors.excludes("text.31.up_proj")
    assert (authors.last, authors.max_steps, authors.top_k, authors.absorb) == (12, 5, 7, "write")


def test_a_published_form_says_what_it_leaves_out() -> None:
    for name in (name for name in shipped_recipes() if name.startswith(("paper", "authors", "strict"))):
        recipe = load_recipe(name)
        said = " ".join(recipe.departures)
        left_out = {"end of sequence": recipe.end_of_sequence, "Short answer": recipe.prompts == "own"}
        for words, missing in (left_out | {"rank is capped": True, "warm up": True, "locality": True}).items():
            assert (words in said) == missing, (name, words)


def test_the_strict_form_is_the_authors_with_three_switches() -> None:
    for strict, authors in (("strict", "authors"), ("strict-blip2", "authors-blip2")):
        ours, theirs = load_recipe(strict), load_recipe(authors)
        switched = {"end_of_sequence": False, "prompts": "mmedit"}
        assert ours.canonical() == theirs.canonical() | switched | {
            "name": strict,
            "description": ours.description,
            "anchors": theirs.canonical()["anchors"] | {"per_edit": 2},
        }
        assert extensions(ours, 160) == extensions(theirs, 0), "keys of locality questions are the paper's"


def test_the_other_backbones_have_llavas_numbers_or_their_own() -> None:
    for family in ("qwen2-vl", "qwen3-vl"):
        for kind in ("paper", "authors"):
            ours, llava = load_recipe(f"{kind}-{family}"), load_recipe(f"{kind}-llava")
            assert ours.canonical() | {"name": llava.name} == llava.canonical()
    for kind in ("paper", "authors"):
        recipe = load_recipe(f"{kind}-blip2")
        assert recipe.constants_of("text.31.fc2", "text") == Constants(step=0.06, ridge=5000.0)
        assert recipe.constants_of("projector.language_projection", "visual") == Constants(step=0.03, ridge=20000.0)
        assert (recipe.rank, recipe.scale, recipe.stop_early) == (128, 2.0, False)


def test_gemma3_has_the_general_numbers() -> None:
    ours, general = load_recipe("gemma3"), load_recipe("default")
    assert set(general.sites) - set(ours.sites) == {"projector"}
    same = {"name": "", "backbones": (), "sites": general.sites, "visual_share": None}
    assert ours.model_copy(update=same) == general.model_copy(update=same)


@pytest.mark.parametrize(
    ("model_type", "recipe"),
    [
        *(("llava", "llava"), ("llava_next", "llava"), ("gemma3", "gemma3")),
        *((name, "default") for name in ("blip-2", "qwen2_vl", "qwen3_vl", "internvl")),
    ],
)
def test_an_architecture_picks_its_recipe_and_an_unknown_one_the_general(model_type: str, recipe: str) -> None:
    assert pick_recipe(model_type) == recipe
    assert pick_recipe("never-heard-of") == "default"


def test_a_recipe_extends_another(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text('extends = "default"\nmargin = 3.0\n[rehearsal]\nsize = 4\n')
    (tmp_path / "own.toml").write_text('extends = "below.toml"\n[rehearsal]\ndraws = 5\n')
    own, default = load_recipe(str(tmp_path / "own.toml")), load_recipe("default")
    assert (own.name, own.margin, own.rehearsal.size, own.rehearsal.draws) == ("own", 3.0, 4, 5)
    assert own.anchors == default.anchors
    assert load_recipe("llava").canonical() == default.canonical() | {"name": "llava"} | {
        "backbones": list(load_recipe("llava").backbones)
    }


def test_a_recipe_that_extends_nothing_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"')
    with pytest.raises(UsageError, match=r"no recipe `b\.toml`"):
        load_recipe(str(tmp_path / "a.toml"))
    (tmp_path / "b.toml").write_text('extends = "a.toml"')
    with pytest.raises(UsageError, match="extends itself"):
        load_recipe(str(tmp_path / "a.toml"))
    (tmp_path / "b.toml").write_text(f'extends = "../{tmp_path.name}/b.toml"')
    with pytest.raises(UsageError, match="extends itself"):
        load_recipe(str(tmp_path / "b.toml"))


def test_a_recipe_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.toml"
    path.write_text("rank = 8\n")

    def refused(self: Path, **_: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "read_text", refused)  # root may read every file
    with pytest.raises(UsageError) as error:
        load_recipe(str(path))
    assert error.value.message == f"{path}: permission denied"


def test_an_unknown_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("llama")
    assert "paper-llava" in caught.value.hint
    with pytest.raises(UsageError, match="no `=`"):
        load_recipe("llava", ["rank"])
