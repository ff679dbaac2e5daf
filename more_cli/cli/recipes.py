"""`more recipes`: lists the recipes, or shows every key of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli import completion
from more_cli.cli.help import Command, Group
from more_cli.cli.layout import wrapped
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import UsageError
from more_cli.text import quoted

if TYPE_CHECKING:
    from more_cli.recipe.schema import Recipe


class _Recipes(Group):
    """Knows what `more recipes NAME` is meant to be."""

    def hint(self, ctx: Any, word: str) -> str:
        from more_cli.recipe.files import shipped_recipes

        is_recipe = word in shipped_recipes() or word.endswith(".toml")
        return f"type: more recipes show {quoted(word)}" if is_recipe else super().hint(ctx, word)


app = typer.Typer(
    cls=_Recipes,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List the recipes (the settings of an editor), or show every key of one.",
)
_INDENT, _ITEM = 4 * " ", "- "
_ABOUT = ("name", "description", "backbones", "published", "departures")
"""Keys that say what a recipe is, not what it does."""


@app.command("list", cls=Command)
@command
def list_(*, output: Output) -> None:
    """List the recipes that come with `more`.

    \b
    Examples:
      more recipes list
    """
    from more_cli.outputs.recipes import Recipe, RecipesListOutput
    from more_cli.recipe.files import load_recipe, shipped_recipes

    recipes = [load_recipe(name) for name in shipped_recipes()]
    output.json(RecipesListOutput(recipes=[Recipe.of(recipe, model_types=recipe.backbones) for recipe in recipes]))
    output.table(
        ("recipe", "for model_type", "description"),
        [(recipe.name, ", ".join(recipe.backbones), recipe.description) for recipe in recipes],
    )
    output.line()
    output.line("`init` takes the recipe for the checkpoint's model_type, and `default` for all others")


@app.command(cls=Command)
@command
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE",
            help="A recipe from `more recipes list`, or a TOML file.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one value of the recipe; repeatable.",
            autocompletion=completion.settings,
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Show every key of a recipe with its value and its meaning.

    Values are those that an edit would use: after `extends`, and after --set.

    \b
    Examples:
      more recipes show default
      more recipes show own.toml --set rehearsal.size=8
    """
    from more_cli.recipe.files import load_recipe, shipped_recipes

    if name is None:
        hint = f"there are {', '.join(shipped_recipes())}; for example: more recipes show default"
        raise UsageError("`recipes show` needs the name of a recipe", hint)
    _show_recipe(output, load_recipe(name, set_ or ()))


def _show_recipe(output: Output, recipe: Recipe) -> None:
    from more_cli.outputs.recipes import RecipeKey, RecipesShowOutput
    from more_cli.recipe.settings import described, spelled

    keys = {key: found for key, found in described(recipe).items() if key not in _ABOUT}
    shown = [
        RecipeKey.of(known, key=key, value=str(value) if isinstance(value, Path) else value)
        for key, (value, known) in keys.items()
    ]
    output.json(RecipesShowOutput.of(recipe, model_types=recipe.backbones, keys=shown))
    output.line(f"{recipe.name}: {recipe.description}")
    output.line()
    for departure in recipe.departures:
        first, *rest = wrapped(departure, output.width - len(_ITEM))
        output.line("\n".join([_ITEM + first, *(" " * len(_ITEM) + line for line in rest)]))
    if recipe.departures:
        output.line()
    for key, (value, known) in keys.items():
        output.line(f"{key} is not set" if value is None else f"{key} = {spelled(value)}")
        for line in wrapped(_first_sentence(known.meaning), output.width - len(_INDENT)):
            output.line(_INDENT + line)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0].rstrip(".")
