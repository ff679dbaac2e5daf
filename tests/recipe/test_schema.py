"""What a recipe may say, and constants by site."""

from pathlib import Path

import pytest

from more_cli.errors import UsageError
from more_cli.recipe.files import load_recipe
from more_cli.recipe.older import without_old_keys
from more_cli.recipe.schema import Recipe
from more_cli.recipe.tables import Constants


def test_overrides_go_from_default_over_modality_to_site() -> None:
    recipe = Recipe.model_validate(
        {
            "default": {"step": 0.1, "lambda": 10.0},
            "visual": {"step": 0.03},
            "site": {r"projector\..*": {"lambda_rel": 0.5}},
        }
    )
    assert recipe.constants_of("text.1.down_proj", "text") == Constants(step=0.1, ridge=10.0)
    assert recipe.constants_of("vision.1.fc2", "visual") == Constants(step=0.03, ridge=10.0)
    assert recipe.constants_of("projector.linear_1", "visual") == Constants(step=0.03, ridge_rel=0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank = 0", "rank"),
        ("rigde = 1", "rigde"),
        ("sites = ['text.ffn']", "unknown site group `text.ffn`"),
        ("[default]\nstep = 'polyak'\nlambda = 1.0\nlambda_rel = 1.0", "not both"),
        ("[default]\nstep = 0.1\nlambda = -1.0", "default.lambda"),
        ("[default]\nstep = 'polyak'\nlambda = 1.0\n[visual]\nstep = 0.1", "do not mix"),
        ("normalisation = 'paper'", "needs an absolute `lambda`"),
        ("[site.'(']\nlambda = 1.0", "not a regular expression"),
        ("sites = ['re:(']", "not a regular expression"),
        ("exclude = ['a{99999999999}']", "not a regular expression: the repetition number is too large"),
        (f"exclude = ['{'(' * 3000}{')' * 3000}']", "not a regular expression: nested more than"),
        ("max_steps = nan", "max_steps"),
        ("x = [", "r.toml"),
        (f"rank = {'9' * 5000}", "r.toml"),
        (f"sites = {'[' * 5000}", "r.toml"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_recipe(str(file))
    assert expected in caught.value.message
    assert "r.toml" in caught.value.message
    assert not any(words in caught.value.message for words in ("Value error", "Input should be", "Extra inputs"))


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("rank = 0\nscale = 'x'\nlats = 3")
    with pytest.raises(UsageError) as caught:
        load_recipe(str(file))
    assert len(caught.value.message.split("\nerror: ")) == 3


def test_the_guard_of_older_recipes_is_read_as_shorter_steps() -> None:
    assert [without_old_keys({"guard": guard})["halvings"] for guard in (False, True)] == [0, 5]


def test_keys_of_older_recipes_that_became_constants_are_read_and_others_refused() -> None:
    old = {
        "batch": {"margin": 12.0, "rounds": 16, "size": 16},
        "consolidation": {"margin": 4.0, "rounds": 6, "size": 16},
        "rehearsal": {"size": 8, "cap": 6.0, "bonus": 1.0, "seed": 0},
        "anchors": {"size": 8, "near": 8, "sweep": 32},
    }
    expected = {"joint": {"margin": 4.0, "rounds": 16}, "rehearsal": {"size": 8}, "anchors": {"size": 8}}
    assert without_old_keys(old) == expected
    for kept in (
        {"rehearsal": {"cap": 3.0}},
        {"rehearsal": {"bonus": True}},
        {"batch": {"size": 32}, "consolidation": 5},
        {"joint": {}, "batch": {"margin": 12.0}},
    ):
        assert without_old_keys(kept) == kept, "a state with these is refused"
    assert without_old_keys({"batch": {"size": 32}, "consolidation": {"size": 16}}) == {"joint": {"size": 32}}


@pytest.mark.parametrize(
    ("text", "key", "advice"),
    [
        ("[batch]\nmargin = 6", "batch", "write [joint], or --set joint.margin=6"),
        ("[consolidation]\nrounds = 3", "consolidation", "write [joint], or --set joint.margin=6"),
        ("[rehearsal]\ncap = 6.0", "rehearsal.cap", "leave it out"),
        ("guard = true", "guard", "`halvings = 5`"),
    ],
)
@pytest.mark.parametrize("base", ["", "extends = 'paper-llava'\n", "extends = 'default'\n"])
def test_a_recipe_with_an_old_key_says_what_to_write_today(
    tmp_path: Path, base: str, text: str, key: str, advice: str
) -> None:
    file = tmp_path / "r.toml"
    file.write_text(base + text)
    with pytest.raises(UsageError) as caught:
        load_recipe(str(file))
    assert caught.value.message.endswith(f"r.toml: there is no key `{key}` any more")
    assert advice in caught.value.hint


def test_a_rank_reaches_a_share_of_a_site_s_inputs() -> None:
    recipe = Recipe(rank=512)
    assert [recipe.rank_at(width) for width in (11008, 384, 3)] == [512, 96, 1]
    assert [Recipe(rank=512, rank_share=1).rank_at(width) for width in (11008, 384, 3)] == [512, 384, 3]
    assert "rank_share" not in recipe.canonical()  # the bytes of states from before the key stay what they were
    assert Recipe(rank_share=0.5).canonical()["rank_share"] == 0.5
