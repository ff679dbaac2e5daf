"""Recipes as TOML files: those that come with `more`, and which one an architecture gets."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from more_cli.errors import UsageError
from more_cli.recipe.older import advice_on
from more_cli.recipe.schema import Recipe
from more_cli.recipe.settings import apply_setting, filled, parse_toml, toml_problem
from more_cli.text import did_you_mean

OF_EDIT = (
    *("max_steps", "stop_early", "criterion", "margin", "target_nll", "loss", "rho", "max_write"),
    *("halvings", "conjugate", "visual_share", "damping", "captions", "top_k"),
    *("rehearsal", "anchors.size", "anchors.max_drift"),
)
"""Keys that may differ for a single edit: those that say how it is written, not what the state is made of."""


def data_folder(name: str) -> Path:
    """Return the folder `recipes` or `sample_edits`: inside the wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parents[1]
    packed = here / "_data" / name
    return packed if packed.is_dir() else here.parent / name


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with `more`, by name."""
    return {path.stem: path for path in sorted(data_folder("recipes").glob("*.toml"))}


def load_recipe(name_or_path: str, settings: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name or a TOML file by path, with `key=value` settings on top.

    A file can name another recipe in `extends` and inherits the values that it does not set.

    Raises:
        UsageError: unknown name, unreadable file, or invalid values; the error lists all of them.
    """
    path = _recipe_file(name_or_path, Path())
    values = _read_values(path)
    for setting in settings:
        apply_setting(values, setting)
    where = f"recipe `{name_or_path}`" if name_or_path in shipped_recipes() else str(path)
    return parse_recipe(values, where, settings)


def _recipe_file(name_or_path: str, folder: Path) -> Path:
    shipped = shipped_recipes()
    path = shipped.get(name_or_path, folder / name_or_path)
    if not path.is_file():
        near = did_you_mean(name_or_path, shipped)
        hint = f"{near} shipped recipes: {', '.join(shipped)}; or give the path of a .toml file".lstrip()
        raise UsageError(f"no recipe `{name_or_path}`", hint)
    return path


def _read_values(path: Path, children: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the values of a recipe file, with those of the recipe that it extends."""
    file = path.resolve()  # one file has many paths: `../folder/a.toml` in `folder/a.toml`
    if file in children:
        raise UsageError(f"{path}: extends itself", "a chain of `extends` must end")
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        values = parse_toml(text)
    except (OSError, ValueError) as error:
        raise UsageError(toml_problem(path, text, error), "a recipe is a TOML file") from None
    values = {"name": path.stem} | values
    anchors = values.get("anchors")
    if isinstance(anchors, dict) and "file" in anchors:
        anchors["file"] = str(path.parent / str(anchors["file"]))
    if (base := values.pop("extends", None)) is None:
        return values
    return _merged(_read_values(_recipe_file(str(base), path.parent), (*children, file)), values)


def _merged(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return both tables merged, inner tables too; `values` wins where both have a key."""
    tables = [key for key in base.keys() & values if isinstance(base[key], dict) and isinstance(values[key], dict)]
    return base | values | {key: _merged(base[key], values[key]) for key in tables}


def is_set(key: str, name_or_path: str, settings: Sequence[str] = ()) -> bool:
    """Return whether a user gives a key its value: by a setting, or in a recipe file that does not come with `more`.

    Raises:
        UsageError: unknown name or unreadable file.
    """
    if any(setting.partition("=")[0].strip() == key for setting in settings):
        return True
    own, path = set(shipped_recipes().values()), _recipe_file(name_or_path, Path())
    while path not in own:
        values = parse_toml(path.read_text(encoding="utf-8"))
        if key in values:
            return True
        if "extends" not in values:
            return False
        path = _recipe_file(str(values["extends"]), path.parent)
    return False


def parse_recipe(values: dict[str, Any], where: str, typed: Sequence[str] = ()) -> Recipe:
    """Check plain values and return the recipe; `where` names it in messages, `typed` are the values from `--set`.

    Raises:
        UsageError: invalid values; the error lists all of them.
    """
    if old := advice_on(values):
        raise UsageError(f"{where}: there is no key `{old[0]}` any more", old[1])
    name = str(values.get("name"))
    listed = f"`more recipes show {name if name in shipped_recipes() else 'default'}` lists all keys"
    return filled(Recipe, values, where, listed=listed, typed=typed)


def recipe_of_edit(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return a state's recipe with `key=value` settings for a single edit.

    Raises:
        UsageError: a key that belongs to the state, or an invalid value.
    """
    if not settings:
        return recipe
    values = recipe.model_dump(mode="json", by_alias=True)
    for setting in settings:
        key = setting.partition("=")[0].strip()
        known = key.partition(".")[0] in Recipe.model_fields
        if known and not any(key == name or key.startswith(f"{name}.") for name in OF_EDIT):
            hint = f"for one try you can change {', '.join(OF_EDIT)}"
            raise UsageError(f"`--set {setting}`: `{key}` is the same for all edits of a state", hint)
        apply_setting(values, setting)
    return parse_recipe(values, f"recipe `{recipe.name}`", settings)


def pick_recipe(model_type: str) -> str:
    """Return the name of the shipped recipe for an architecture, or the general one."""
    return next((name for name in shipped_recipes() if model_type in named_in("backbones", name)), "default")


def named_in(key: str, name: str) -> Sequence[str]:
    """Return the architectures that a shipped recipe's own file names in a list."""
    values = tomllib.loads(shipped_recipes()[name].read_text(encoding="utf-8"))
    return list(values.get(key, ()))
