"""`more init`: pick a recipe for a checkpoint, find its sites, write a state without edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from more_cli.checkpoint import Checkpoint, fingerprint, open_checkpoint
from more_cli.core import basis
from more_cli.editors.more import MoreEditor
from more_cli.errors import StateError, UsageError
from more_cli.journal import START
from more_cli.lock import writer_lock
from more_cli.model.backbones import Refusal, Site, find_sites
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.runtime import load_prompter
from more_cli.ops.session import Target, free_of_adapters
from more_cli.recipe import Recipe, load_recipe, pick_recipe
from more_cli.state import State, StateMeta, load_state, save_state


@dataclass(frozen=True)
class Plan:
    """What `init` would write for a checkpoint, and why some modules are left out."""

    checkpoint: Checkpoint
    recipe: Recipe
    sites: list[Site]
    refusals: list[Refusal]
    key_method: str
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class InitReport:
    """What `init` wrote, or found in place."""

    target: Target
    plan: Plan
    parameters: int
    """Numbers in B and P."""
    created: bool
    edits: int = 0


def plan(target: Target, recipe: str | None = None, settings: Sequence[str] = ()) -> Plan:
    """Read config and shard headers and say what would be edited; loads no weights.

    Raises:
        StateError: not a checkpoint that can be edited.
        UsageError: unknown recipe or value.
    """
    checkpoint = open_checkpoint(target.model)
    name = recipe or pick_recipe(str(checkpoint.config.get("model_type", "")))
    chosen = load_recipe(name, settings)
    model = meta_model(checkpoint)
    keys = key_map(model, checkpoint)
    found, refusals = find_sites(model, keys, checkpoint, chosen.sites, chosen.last)
    sites = [site for site in found if not chosen.excludes(site.name)]
    if not sites:
        raise UsageError(f"recipe `{chosen.name}` excludes every site", "change its `exclude`")
    return Plan(checkpoint, chosen, sites, refusals, keys.how, _notices(chosen, sites))


def initialise(target: Target, recipe: str | None = None, settings: Sequence[str] = ()) -> InitReport:
    """Write the sidecar of a checkpoint; an equal one that is there already is left as it is.

    Raises:
        StateError: the checkpoint cannot be edited, or another state lies there.
    """
    free_of_adapters(target)
    chosen = plan(target, recipe, settings)
    state = _fresh(chosen)
    with writer_lock(target.lock):
        return _write(target, chosen, state)


def _fresh(chosen: Plan) -> State:
    editor = MoreEditor.fresh(chosen.recipe, chosen.sites)
    meta = StateMeta(
        base=fingerprint(chosen.checkpoint, [site.disk_key for site in chosen.sites]),
        recipe=chosen.recipe,
        template=load_prompter(chosen.checkpoint).template,
        sites=editor.records,
        digest=START,
    )
    tensors = editor.state_dict()
    return State(
        meta,
        {site.name: tensors[f"{site.name}.B"] for site in meta.sites},
        {site.name: tensors[f"{site.name}.P"] for site in meta.sites},
    )


def _write(target: Target, chosen: Plan, state: State) -> InitReport:
    meta = state.meta
    if target.sidecar.exists():
        found = load_state(target.sidecar)
        if found.meta.base == meta.base and found.meta.recipe == meta.recipe:
            return InitReport(target, chosen, found.parameters, created=False, edits=found.meta.edits)
        what = "recipe" if found.meta.base == meta.base else "base"
        raise StateError(
            f"`{target.sidecar}` already holds a state with another {what} ({found.meta.edits} edits)",
            "name a new one with --state FILE, or move the old one with its `.d` folder away",
        )
    save_state(target.sidecar, state)
    return InitReport(target, chosen, state.parameters, created=True)


def _notices(recipe: Recipe, sites: Sequence[Site]) -> list[str]:
    capped = {site.shape[1] for site in sites if basis.usable_rank(recipe.rank, site.shape[1]) < recipe.rank}
    return [
        f"rank {recipe.rank} is capped at {basis.usable_rank(recipe.rank, width)} where sites have {width} inputs"
        for width in sorted(capped)
    ]
