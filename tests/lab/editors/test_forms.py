"""Which recipe M-ORE gets in a published form."""

import pytest

from more_cli.model.families import FAMILIES
from more_cli.recipe.files import load_recipe
from more_lab.editors.forms import recipe_of_form


@pytest.mark.parametrize("form", ["paper", "authors", "strict"])
def test_a_published_form_has_a_recipe_for_every_architecture(form: str) -> None:
    known = {name: recipe_of_form(form, name) for name in FAMILIES}
    own = {"llava", "blip-2", "qwen2_vl", "qwen3_vl"}
    assert {name for name, (_, published) in known.items() if published} == own
    assert {recipe for name, (recipe, _) in known.items() if name not in own} == {form}
    assert recipe_of_form(form, "never-heard-of") == (form, False)
    general = load_recipe(form).canonical()
    for name in own - {"blip-2"}:
        assert load_recipe(known[name][0]).canonical() | {"name": form} == general, "the general numbers are LLaVA's"
    assert load_recipe(known["blip-2"][0]).rank == 128
