"""`--set`, and what a wrong value is told."""

from pathlib import Path

import pytest

from more_cli.errors import UsageError
from more_cli.recipe.files import load_recipe
from more_cli.recipe.settings import described
from more_cli.recipe.tables import Constants


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


@pytest.mark.parametrize("name", ['"text.*"', "'text\\.3\\..*'", '"text"', "text"])
def test_a_setting_names_sites_as_a_recipe_file_does(tmp_path: Path, name: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(f"[site.{name}]\nlambda = 3.0\n")
    assert load_recipe("default", [f"site.{name}.lambda=3.0"]).site == load_recipe(str(file)).site


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ('site."a.b".sted=1', "there is no key `site.a.b.sted`", "did you mean"),
        ('site."a.b=1', 'there is no key `site."a.b`', ""),
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
        ("rank=true", "`rank` cannot be `true`; it takes a whole number >= 1", ""),
        ("default.lambda=nan", "`default.lambda` cannot be `nan`; it takes a number > 0", ""),
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
