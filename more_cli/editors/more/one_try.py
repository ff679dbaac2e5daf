"""A state's recipe with other settings for a single edit (`edit --retry --set`)."""

from __future__ import annotations

from collections.abc import Sequence

from more_cli.errors import UsageError
from more_cli.recipe.files import parse_recipe
from more_cli.recipe.schema import Recipe
from more_cli.recipe.settings import apply_setting

ONE_TRY = (
    *("max_steps", "stop_early", "criterion", "margin", "target_nll", "loss", "rho", "max_write"),
    *("halvings", "conjugate", "visual_share", "damping", "captions", "top_k"),
    *("rehearsal", "anchors.size", "anchors.max_drift"),
)
"""Keys that may differ for a single edit: those that say how it is written, not what the state is made of."""


def for_one_try(recipe: Recipe, settings: Sequence[str]) -> Recipe:
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
        if known and not any(key == name or key.startswith(f"{name}.") for name in ONE_TRY):
            hint = f"for one try you can change {', '.join(ONE_TRY)}"
            raise UsageError(f"`--set {setting}`: `{key}` is the same for all edits of a state", hint)
        apply_setting(values, setting)
    return parse_recipe(values, f"recipe `{recipe.name}`", settings)
