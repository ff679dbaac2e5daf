"""`more init`: pick a recipe for a checkpoint, find its sites, write a state without edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from more_cli.checkpoint import Checkpoint, fingerprint, open_checkpoint
from more_cli.core import basis
from more_cli.editors.more import MoreEditor
from more_cli.edits import Probe, read_probes
from more_cli.entry import START
from more_cli.errors import StateError, UsageError
from more_cli.lock import writer_lock
from more_cli.model.backbones import Refusal, Site, find_sites
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.runtime import load_prompter, load_runtime
from more_cli.ops.anchors import anchors_digest, ask_anchors, keep_anchors
from more_cli.ops.session import Machine, Target, anchors_cache, free_of_adapters, take_over
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
    anchors: int = 0


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


def initialise(
    target: Target,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    anchors: Path | None = None,
    machine: Machine | None = None,
    image_root: Path | None = None,
) -> InitReport:
    """Write the sidecar of a checkpoint; an equal one that is there already is left as it is.

    With a file of `anchors` the model is loaded: lambda is settled from their keys, and P absorbs them.

    Raises:
        StateError: the checkpoint cannot be edited, or another state lies there.
        StreamErrors: the file of anchors has problems.
    """
    free_of_adapters(target)
    chosen = plan(target, recipe, settings)
    questions = read_probes(anchors, image_root) if anchors else ()
    state = _fresh(chosen)
    with writer_lock(target.lock):
        if questions:
            state.meta.anchors = anchors_digest(questions)
        if found := _found(target, chosen, state.meta):
            return found
        if questions:
            keep_anchors(target.folder, questions)
            _calibrate(target, state, questions, machine or Machine())
        save_state(target.sidecar, state)
        return InitReport(target, chosen, state.parameters, created=True, anchors=len(questions))


def _calibrate(target: Target, state: State, questions: Sequence[Probe], machine: Machine) -> None:
    meta = state.meta
    runtime = load_runtime(
        open_checkpoint(target.model), system=meta.recipe.system, device=machine.device, dtype=machine.dtype
    )
    editor = MoreEditor(meta.recipe, meta.sites, state.B, state.P)
    with editor.attach(runtime):
        editor.calibrate(ask_anchors(runtime, questions, anchors_cache(target, meta, machine)))
    take_over(state, editor)


def _fresh(chosen: Plan) -> State:
    editor = MoreEditor.fresh(chosen.recipe, chosen.sites)
    meta = StateMeta(
        base=fingerprint(chosen.checkpoint, [site.disk_key for site in chosen.sites]),
        recipe=chosen.recipe,
        template=load_prompter(chosen.checkpoint).template,
        sites=editor.records,
        digest=START,
    )
    state = State(meta)
    take_over(state, editor)
    return state


def _found(target: Target, chosen: Plan, meta: StateMeta) -> InitReport | None:
    """Report an equal state that is there already; another one is in the way."""
    if not target.sidecar.exists():
        return None
    found = load_state(target.sidecar)
    differs = [name for name in ("base", "recipe", "anchors") if getattr(found.meta, name) != getattr(meta, name)]
    if not differs:
        return InitReport(target, chosen, found.parameters, created=False, edits=found.meta.edits)
    raise StateError(
        f"`{target.sidecar}` already holds a state with another {differs[0]} ({found.meta.edits} edits)",
        "name a new one with --state FILE, or move the old one with its `.d` folder away",
    )


def _notices(recipe: Recipe, sites: Sequence[Site]) -> list[str]:
    capped = {site.shape[1] for site in sites if basis.usable_rank(recipe.rank, site.shape[1]) < recipe.rank}
    return [
        f"rank {recipe.rank} is capped at {basis.usable_rank(recipe.rank, width)} where sites have {width} inputs"
        for width in sorted(capped)
    ]
