"""What `more recipes` prints."""

from __future__ import annotations

from typing import Any

from more_cli.outputs.base import Part, Printed


class Recipe(Part):
    """Name and purpose of a recipe."""

    name: str
    """name of the recipe"""
    description: str
    """what it is for"""
    model_types: list[str]
    """values of `model_type` that `init` picks it for"""


class RecipesListOutput(Printed, schema="more.recipes.list/1", command="more recipes list --json"):
    """The recipes."""

    recipes: list[Recipe]
    """the recipes that come with `more`"""


class RecipeKey(Part):
    """A key of a recipe."""

    key: str
    """key of the recipe, as `--set` takes it"""
    value: Any
    """its value; `null` where it is not set"""
    takes: str
    """what it can be, in words"""
    meaning: str
    """what it does"""


class RecipesShowOutput(Recipe, Printed, schema="more.recipes.show/1", command="more recipes show NAME --json"):
    """A recipe with all its keys."""

    departures: list[str]
    """how it differs from what was published"""
    keys: list[RecipeKey]
    """every key that says what it does"""
