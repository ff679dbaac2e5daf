"""M-ORE without its recursion, and in its published forms."""

from __future__ import annotations

from dataclasses import replace

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.registry import EditorOptions, editor, tries
from more_cli.errors import UsageError
from more_cli.recipe.files import named_in, shipped_recipes
from more_cli.runner.editors import more
from more_cli.text import shorten

FIXED_STEP = tries(
    ("default.step=0.3", "default.lambda=20.0"),
    default__step=(0.03, 0.3, 0.01),
    default__lambda=(200.0, 20.0, 2.0, 20000.0),
)


@editor(
    "naive",
    tries=tries(margin=(1.0, 3.0, 6.0, 12.0), rho=(0.5, 1.5), max_write=(0.02, 0.1)),
    takes_recipe=True,
)
def naive(options: EditorOptions) -> MoreEditor:
    """Make M-ORE with P = I."""
    return more(options.with_settings("precondition=false"))


@editor("more:paper", tries=FIXED_STEP)
def paper(options: EditorOptions) -> MoreEditor:
    """Make M-ORE with the paper's form of the recursion."""
    return _published("paper", options)


@editor("more:authors", tries=FIXED_STEP)
def authors(options: EditorOptions) -> MoreEditor:
    """Make M-ORE with the form of the authors' code."""
    return _published("authors", options)


@editor("more:strict", tries=FIXED_STEP)
def strict(options: EditorOptions) -> MoreEditor:
    """Make M-ORE with everything of the authors' code that has a switch."""
    return _published("strict", options)


def recipe_of_form(form: str, model_type: str) -> tuple[str, bool]:
    """Return the recipe of a published form for an architecture, and whether its constants were published.

    Without, it is the general recipe of that form.
    """
    forms = (name for name in shipped_recipes() if name.partition("-")[0] == form)
    found = next((name for name in forms if model_type in named_in("published", name)), None)
    return found or form, found is not None


def _published(form: str, options: EditorOptions) -> MoreEditor:
    """Make M-ORE in a published form: with the architecture's own constants, or LLaVA-1.5's."""
    if options.recipe is not None:
        raise UsageError(f"editor `more:{form}` has a fixed recipe", "drop --recipe, or use editor `more`")
    model_type = str(open_checkpoint(options.model).config.get("model_type", ""))
    name, known = recipe_of_form(form, model_type)
    made = more(replace(options, recipe=name))
    if not known:
        unknown = f"the paper published no constants for {shorten(model_type)}: these are LLaVA-1.5's"
        made.notices = (unknown, *made.notices)
    return made
