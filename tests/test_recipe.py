"""Recipes: every shipped one loads, every mistake is named."""

from pathlib import Path

import pytest

from more_cli.errors import UsageError
from more_cli.model.families import FAMILIES
from more_cli.ops.status import extensions
from more_cli.recipe import Recipe, load_recipe, parse_recipe, pick_recipe, published_recipe, shipped_recipes
from more_cli.recipe_tables import Constants
from more_cli.settings import described


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads_and_survives_the_state(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description
    # The state has the anchors and the sites themselves, and what a recipe says about itself decides no number.
    anchors = recipe.anchors.model_copy(update={"questions": (), "prompts": ()})
    kept = {"anchors": anchors, "published": (), "departures": (), "optional": ()}
    assert parse_recipe(recipe.canonical(), "state") == recipe.model_copy(update=kept)


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


@pytest.mark.parametrize("form", ["paper", "authors", "strict"])
def test_a_published_form_has_a_recipe_for_every_architecture(form: str) -> None:
    known = {name: published_recipe(form, name) for name in FAMILIES}
    own = {"llava", "blip-2", "qwen2_vl", "qwen3_vl"}
    assert {name for name, (_, published) in known.items() if published} == own
    assert {recipe for name, (recipe, _) in known.items() if name not in own} == {form}
    assert published_recipe(form, "never-heard-of") == (form, False)
    general = load_recipe(form).canonical()
    for name in own - {"blip-2"}:
        assert load_recipe(known[name][0]).canonical() | {"name": form} == general, "the general numbers are LLaVA's"
    assert load_recipe(known["blip-2"][0]).rank == 128


@pytest.mark.parametrize(
    "name", [name for name in shipped_recipes() if name.startswith(("paper", "authors", "strict"))]
)
def test_a_published_form_says_what_it_leaves_out(name: str) -> None:
    recipe = load_recipe(name)
    said = " ".join(recipe.departures)
    left_out = {"end of sequence": recipe.end_of_sequence, "Short answer": recipe.prompts == "own"}
    for words, missing in (left_out | {"rank is capped": True, "warm up": True, "locality": True}).items():
        assert (words in said) == missing, words


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


def test_settings_change_single_values() -> None:
    recipe = load_recipe("llava", ["max_steps=3", "default.lambda_rel=0.5", "system=Answer briefly."])
    assert (recipe.max_steps, recipe.default.ridge_rel, recipe.system) == (3, 0.5, "Answer briefly.")


def test_none_unsets_what_a_recipe_inherits(tmp_path: Path) -> None:
    settings = ["damping=none", "visual_share=none", "default.lambda_rel=none", "default.lambda=3"]
    recipe = load_recipe("default", settings)
    assert (recipe.damping, recipe.visual_share) == (None, None)
    assert recipe.default == Constants(step="polyak", ridge=3.0)
    file = tmp_path / "r.toml"
    file.write_text('extends = "default"\ndamping = "none"')
    assert load_recipe(str(file)).damping is None
    assert load_recipe("default", ["pooling=none"]).pooling == "none"


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


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("eta=1", "there is no key `eta`", "did you mean `default.step`?"),
        ("default.eta=1", "there is no key `default.eta`", "did you mean `default.step`?"),
        ("steps=3", "there is no key `steps`", "did you mean `default.step` or `sites` or `max_steps`?"),
        ("layers=4", "there is no key `layers`", "did you mean `last`?"),
        ("lamda=1", "there is no key `lamda`", "did you mean `default.lambda`?"),
        ("rehearsal.sise=3", "there is no key `rehearsal.sise`", "did you mean `rehearsal.size`?"),
        ("site.a.sted=1", "there is no key `site.a.sted`", "did you mean `default.step` or `seed`?"),
        ("zzz=1", "there is no key `zzz`", ""),
        ("rank=abc", "`rank` cannot be `abc`; it takes a whole number >= 1", "for example --set rank=512;"),
        ("rank=", "`rank` has no value; it takes a whole number >= 1", "for example --set rank=512;"),
        ("rank=[1, 2]", "`rank` cannot be `[1, 2]`; it takes a whole number >= 1", "for example --set rank=512;"),
        ("max_steps=5000", "`max_steps` cannot be `5000`; it takes a whole number >= 1 and <= 1000", ""),
        ("max_steps=1.5", "`max_steps` cannot be `1.5`; it takes a whole number", "for example --set max_steps=10;"),
        ("visual_share=1", "`visual_share` cannot be `1`; it takes a number > 0 and < 1 or `none`", ""),
        ("stop_early=maybe", "`stop_early` cannot be `maybe`; it takes true or false", "--set stop_early=true;"),
        ("absorb=never", '`absorb` cannot be `never`; it takes `"edit"` or `"write"`', "--set 'absorb=\"edit\"';"),
        ("default.step=fast", '`default.step` cannot be `fast`; it takes `"polyak"` or a number > 0', ""),
        ("site.a.step=fast", '`site.a.step` cannot be `fast`; it takes `"polyak"` or a number > 0', ""),
        ("sites=projector", "`sites` cannot be `projector`; it takes a list of text", '--set \'sites=["text.ffn_out",'),
        ("sites=[1]", "`sites` cannot be `1`; it takes a list of text", ""),
        ("default=3", "`default` is a table; its keys are default.step, default.lambda, default.lambda_rel", ""),
        ("default.lambda=1", "`default`: give `lambda` or `lambda_rel`, not both", ""),
    ],
)
def test_a_bad_setting_is_told_what_to_type(setting: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("default", [setting])
    assert caught.value.message.startswith(f"recipe `default`: {message}")
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.hint.endswith("`more recipes show default` lists all keys")


def test_every_key_has_a_value_and_a_meaning(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "default"\n[site."text.*"]\nlambda = 3.0\n')
    keys = described(load_recipe(str(tmp_path / "own.toml"), ["rank=7"]))
    assert all(key.meaning and key.takes for _, key in keys.values())
    values = {name: value for name, (value, _) in keys.items()}
    default = load_recipe("default")
    assert (values["rank"], values['site."text.*".lambda']) == (7, 3.0)
    assert (values["rehearsal.size"], values["default.step"]) == (default.rehearsal.size, "polyak")
    assert values["top_k"] is None


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("rank = 0\nscale = 'x'\nlats = 3")
    with pytest.raises(UsageError) as caught:
        load_recipe(str(file))
    assert len(caught.value.message.split("\nerror: ")) == 3


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


def test_an_unknown_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("llama")
    assert "paper-llava" in caught.value.hint
    with pytest.raises(UsageError, match="no `=`"):
        load_recipe("llava", ["rank"])


def test_the_guard_of_older_recipes_is_read_as_shorter_steps() -> None:
    assert [Recipe.model_validate({"guard": guard}).halvings for guard in (False, True)] == [0, 5]
    assert Recipe.model_validate({"guard": True, "halvings": 2}).halvings == 2
