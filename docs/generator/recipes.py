"""`recipes.md`: every key of a recipe, from the pydantic model, and the recipes that come with `more`."""

from __future__ import annotations

import inspect
import tomllib
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from generator.markdown import fence, page, table
from more_cli.recipe.files import load_recipe, shipped_recipes
from more_cli.recipe.schema import Recipe
from more_cli.recipe.settings import meanings, spelled, takes
from more_cli.recipe.tables import AnchorUse, Constants, Joint, Rehearsal

_INTRO = """\
A recipe holds every number of a run. `more init` stores it in the state, so later commands use the same numbers. Pick
one with `--recipe NAME` or `--recipe FILE.toml`; change single values with `--set key=value`, such as
`--set rehearsal.size=8`. The value `none` unsets an optional number. Without `--recipe`, `init` picks by the
checkpoint's `model_type`.

A file of your own names a recipe to start from and what differs:"""

_EXAMPLE = """\
extends = "default"
description = "Fewer writes for each edit"
max_steps = 6

[rehearsal]
size = 8"""

_LONG = 200
"""Characters from which on a list is not shown in full."""
_TABLES = (
    (
        "constants",
        '`[default]`, `[text]`, `[visual]`, `[site."REGEX"]`',
        Constants,
        'Step and lambda. `[text]` and `[visual]` override `[default]` for their sites, `[site."REGEX"]` overrides '
        "both for the sites whose whole name the regular expression matches.",
    ),
    ("rehearsal", "`[rehearsal]`", Rehearsal, ""),
    ("anchors", "`[anchors]`", AnchorUse, ""),
    ("joint", "`[joint]`", Joint, ""),
)


def recipes_page() -> str:
    """Return the page of recipes and their keys."""
    nested = {"default", "text", "visual", "site", "rehearsal", "anchors", "joint"}
    scalars = [name for name in Recipe.model_fields if name not in nested]
    parts = [_INTRO, fence("toml", _EXAMPLE), _shipped(), "## Keys", _keys(Recipe, scalars), "Tables of a recipe:"]
    parts.append(
        table(
            ("table", "default", "meaning"),
            [
                (f"`[{name}]`", _table_default(Recipe.model_fields[name]), meanings(Recipe)[name])
                for name in _ordered(nested)
            ],
        )
    )
    for anchor, title, model, text in _TABLES:
        parts.append(f"### {title} {{#{anchor}}}\n\n{text or _first_sentence(model)}\n\n{_keys(model)}")
    parts.append(_contents())
    return page("Recipes", "more_cli/recipe/schema.py and recipes/*.toml", *parts)


def _ordered(names: set[str]) -> list[str]:
    return [name for name in Recipe.model_fields if name in names]


def _first_sentence(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").split())


def _keys(model: type[BaseModel], names: list[str] | None = None) -> str:
    docs = meanings(model)
    rows = []
    for name, field in model.model_fields.items():
        if names is None or name in names:
            rows.append(
                (f"`{field.alias or name}`", takes(field).removeprefix("a "), _default(field), docs.get(name, ""))
            )
    return table(("key", "type", "default", "meaning"), rows)


def _default(field: FieldInfo) -> str:
    return "" if field.default is None else f"`{spelled(field.default)}`"


def _table_default(field: FieldInfo) -> str:
    value = field.default
    if not isinstance(value, BaseModel):
        return ""
    given = value.model_dump(exclude_defaults=True, by_alias=True)
    return ", ".join(f"`{key} = {spelled(item)}`" for key, item in given.items())


def _shipped() -> str:
    rows = []
    for name in shipped_recipes():
        recipe = load_recipe(name)
        backbones = ", ".join(f"`{item}`" for item in recipe.backbones)
        rows.append((f"[`{name}`](#recipe-{name})", backbones, recipe.description))
    text = "`init` takes `default` for a `model_type` that no recipe names."
    return (
        "## Recipes that come with more\n\n"
        + table(("recipe", "picked for `model_type`", "description"), rows)
        + f"\n\n{text}"
    )


def _contents() -> str:
    """Return what each recipe says; recipes that say the same stand together."""
    groups: dict[str, list[str]] = {}
    for name, path in shipped_recipes().items():
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        for key in ("backbones", "description", "published", "departures"):
            values.pop(key, None)
        groups.setdefault(_says(values), []).append(name)
    parts = [
        f"### {', '.join(f'`{name}`' for name in names)}\n\n"
        + "".join(f'<a id="recipe-{name}"></a>' for name in names)
        + f"\n\n{text}"
        for text, names in groups.items()
    ]
    return "\n\n".join(["## What each recipe changes", *parts])


def _says(values: dict[str, Any]) -> str:
    base = values.pop("extends", "")
    defaults = {} if base else dict(_flat(Recipe().model_dump(mode="json", by_alias=True)))
    lines = [f"{key} = {_short(item)}" for key, item in _flat(values) if defaults.get(key, ...) != item]
    if not lines:
        return f"The numbers of [`{base}`](#recipe-{base})."
    start = f"Starts from [`{base}`](#recipe-{base}) and changes:" if base else "Changes these defaults:"
    return f"{start}\n\n{fence('text', chr(10).join(lines))}"


def _short(item: Any) -> str:
    """Return a value as TOML; of a long list the first item alone."""
    whole = spelled(item)
    return f"[{spelled(item[0])}, ...]  # {len(item)} in all" if len(whole) > _LONG else whole


def _flat(values: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    for key, value in values.items():
        lines += _flat(value, f"{above}{key}.") if isinstance(value, dict) else [(above + key, value)]
    return lines
