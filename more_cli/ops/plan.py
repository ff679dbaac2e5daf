"""What a recipe would edit in a checkpoint, and why it leaves some modules out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import UsageError
from more_cli.model.backbones import Refusal, Site, find_sites
from more_cli.model.families import family_in, is_tested
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import Blueprint, load_fitting_blueprint
from more_cli.recipe.files import is_set, load_recipe, pick_recipe
from more_cli.recipe.schema import VISUAL_GROUPS, Recipe
from more_cli.store.target import Target


@dataclass(frozen=True)
class Plan:
    """What `init` would write for a checkpoint, and why it leaves some modules out."""

    checkpoint: Checkpoint
    recipe: Recipe
    sites: list[Site]
    refusals: list[Refusal]
    key_method: str
    model: Any = field(repr=False)
    """The model without weights."""
    notices: list[str] = field(default_factory=list)
    """What is unusual, apart from ranks."""
    rank_set: bool = False
    """Whether the user set `rank`."""

    @cached_property
    def blueprint(self) -> Blueprint:
        """The model without weights, with the processor, which fits it; loaded on first use.

        Raises:
            StateError: processor or chat template are missing, do not load, or do not fit the model.
        """
        return load_fitting_blueprint(self.checkpoint, self.model, **self.recipe.asking)

    @property
    def capped(self) -> str:
        """Which sites have a smaller rank than the recipe's, in one sentence; empty if there are none."""
        found = self.recipe.capped({site.shape[1]: self.recipe.rank_at(site.shape[1]) for site in self.sites})
        return f"rank {self.recipe.rank} is capped: {found}" if found else ""


def plan(target: Target, recipe: str | None = None, settings: Sequence[str] = ()) -> Plan:
    """Read config and shard headers and return what would be edited; loads no weights.

    Raises:
        StateError: not a checkpoint that can be edited.
        UsageError: unknown recipe or value.
    """
    checkpoint = open_checkpoint(target.model)
    name = recipe or recipe_for(checkpoint)
    chosen = planned_for(checkpoint, load_recipe(name, settings))
    return replace(chosen, rank_set=is_set("rank", name, settings))


def recipe_for(checkpoint: Checkpoint) -> str:
    """Return the name of the recipe that a checkpoint gets unless the user names another."""
    return pick_recipe(str(checkpoint.config.get("model_type", "")))


def planned_for(checkpoint: Checkpoint, recipe: Recipe) -> Plan:
    """Return what a recipe edits in a checkpoint; loads no weights.

    Raises:
        StateError: not a checkpoint that can be edited.
        UsageError: the recipe leaves nothing to edit.
    """
    model = meta_model(checkpoint)
    keys = key_map(model, checkpoint)
    # In a plain language model the groups of the image's path may have no site either.
    optional = recipe.optional if sees(checkpoint) else (*recipe.optional, *VISUAL_GROUPS)
    layers = {"last": recipe.last, "last_vision": recipe.last_vision}
    candidates, refusals = find_sites(model, keys, checkpoint, recipe.sites, **layers, optional=optional)
    sites = [site for site in candidates if not recipe.excludes(site.name)]
    if not sites:
        raise UsageError(f"recipe `{recipe.name}` excludes every site", "change its `exclude`")
    return Plan(checkpoint, recipe, sites, refusals, keys.how, model, _notices(checkpoint, recipe, sites))


def sees(checkpoint: Checkpoint) -> bool:
    """Return whether the model takes images; of a plain language model no edit has a picture to make anchors of."""
    return family_in(checkpoint.config).sees


def _notices(checkpoint: Checkpoint, recipe: Recipe, sites: Sequence[Site]) -> list[str]:
    model_type = checkpoint.config.get("model_type")
    unlisted = [f"model_type {model_type!r} was never tested: its sites are found by structure alone"]
    absent = [group for group in recipe.optional if group not in {site.group for site in sites}]
    return [
        *([] if is_tested(str(model_type)) else unlisted),
        *(f"this model has nothing to edit in {group}, which is left out" for group in absent),
    ]
