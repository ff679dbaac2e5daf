"""`more init`: pick a recipe for a checkpoint, find its sites, write a state without edits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from more_cli.checkpoint.hub import pin_of
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint, fingerprint
from more_cli.editors.anchors import Anchor
from more_cli.editors.more.editor import MoreEditor
from more_cli.errors import DataError, StateError, UsageError
from more_cli.files import sha256_file
from more_cli.inputs.edits import Edit, Probe, read_edits
from more_cli.model.backbones import Refusal, Site, find_sites
from more_cli.model.families import family_in, is_tested
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import Blueprint, load_fitting_blueprint, load_runtime
from more_cli.model.machine import Machine
from more_cli.model.quantised import import_library, require_right
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import (
    FILE,
    anchors_digest,
    ask_anchors,
    identities,
    keep_anchors,
    leave_out,
    left_out_sentence,
    load_anchors,
    read_anchors,
    require_anchors,
    require_askable,
)
from more_cli.ops.auto_anchors import (
    AUTO,
    OWN,
    PICTURED,
    Candidates,
    of_edits,
    of_folder,
    of_prompts,
    own_questions,
    with_prompts,
    without_corrected_answers,
)
from more_cli.ops.calibrate import calibrate, stream_digest, with_calibrated
from more_cli.ops.estimate import estimate, require
from more_cli.ops.holding import answers_name
from more_cli.ops.session import update_state
from more_cli.options import FileOptions
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import is_set, load_recipe, pick_recipe
from more_cli.recipe.schema import VISUAL_GROUPS, Recipe
from more_cli.store.entry import START
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.pin import write_pin
from more_cli.store.snapshots import require_ledger
from more_cli.store.state import State, StateMeta, load_meta, load_state, save_state
from more_cli.store.target import Target
from more_cli.text import counted

USE_OF_ANCHORS = "--set anchors.size=8 --set anchors.keys=true"
TEXT_ALONE = (
    "all anchors are text only: any question about a picture of `{}` may be about one of its edits; "
    f"--anchors {AUTO} FOLDER takes other pictures"
)

JOINED = "few anchors had no picture, so {:,} text-only ones were added: they hold answers without a picture"
JOINED_TEXT = "few anchors were given, so {:,} were added"
"""The same of a plain language model."""


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


@dataclass(frozen=True)
class InitReport:
    """What `init` wrote, or the equal state that existed already."""

    target: Target
    plan: Plan
    parameters: int
    """Numbers in B, P and a stored A."""
    created: bool
    state: StateMeta
    anchors: int = 0
    pictured: int = 0
    """Anchors that ask about a picture."""
    runtime: Runtime | None = field(default=None, repr=False)
    """The model, if it was loaded."""


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
    optional = recipe.optional if _sees(checkpoint) else (*recipe.optional, *VISUAL_GROUPS)
    layers = {"last": recipe.last, "last_vision": recipe.last_vision}
    candidates, refusals = find_sites(model, keys, checkpoint, recipe.sites, **layers, optional=optional)
    sites = [site for site in candidates if not recipe.excludes(site.name)]
    if not sites:
        raise UsageError(f"recipe `{recipe.name}` excludes every site", "change its `exclude`")
    return Plan(checkpoint, recipe, sites, refusals, keys.how, model, _notices(checkpoint, recipe, sites))


@dataclass(frozen=True)
class Wanted:
    """The anchors that a new state is to hold."""

    questions: Sequence[Probe]
    """The questions of a file, or the first candidates, which the base has not answered yet."""
    candidates: Candidates | None = None
    prompts: int = 0
    """How many of the questions are prompts of the recipe that join those of a file."""

    def chosen(self, runtime: Runtime, recipe: Recipe) -> Sequence[Probe]:
        """Return the questions, or the candidates that remain once the base has answered them.

        Made ones, and prompts that join those of a file, are followed by questions that the base asks itself.
        """
        if self.candidates:
            questions = without_corrected_answers(runtime, self.candidates).anchors
        else:
            questions = list(self.questions)
        return [*questions, *(own_questions(runtime, recipe, questions) if self.candidates or self.prompts else ())]

    def fits(self, anchors: Sequence[Probe]) -> bool:
        """Return whether a state's anchors are these questions or, if there are candidates, some of them.

        What is text only may differ: the base asks itself some, and an older version added none.
        """
        if self.candidates:
            pictured = [anchor for anchor in anchors if anchor.images]
            return bool(anchors) == bool(self.questions) and identities(pictured) <= identities(self.candidates)
        given = len(self.questions) - self.prompts
        added = anchors[given:]
        same = anchors_digest(anchors[:given]) == anchors_digest(self.questions[:given])
        return same and (not added or bool(self.prompts)) and not _pictured(added)


@dataclass(frozen=True)
class Inputs:
    """Files that prepare a state, beside its recipe; with any of them the model is loaded."""

    anchors: Path | None = None
    """Questions whose answers must not move; by default the file that the recipe names."""
    auto: Path | None = None
    """File of edits or folder of pictures to make anchors from, in place of `anchors`."""
    arriving: bool = False
    """Start from the recipe's prompts, and let every edit bring anchors of its own picture; see `brings`."""
    calibrate: Path | None = None
    """Corrections that the constants are calibrated on."""
    editing: bool = False
    """Edits follow at once: the model is loaded first, so that one that does not load has no state."""
    files: FileOptions = field(default_factory=FileOptions)
    place: str = ""
    """File and line that name `anchors`; empty for what was typed."""

    def wanted(self, chosen: Plan) -> Wanted:
        """Return the anchors of the file that is given or named by the recipe, or what they are made from.

        Raises:
            UsageError: there are some, and the recipe does not use any.
            StreamErrors: the file has problems, or a question that the model cannot be asked.
            DataError: the file or a picture cannot be read, the folder holds no pictures, or no anchors can be made.
        """
        wanted = self._wanted(chosen)
        if (wanted.questions or self.auto) and not chosen.recipe.uses_anchors:
            what = f"recipe `{chosen.recipe.name}` does not use anchors"
            if self.place:
                raise UsageError(f"{self.place}: {what}", "remove `anchors` there, or add --no-anchors")
            raise UsageError(what, f"drop --anchors, or add {USE_OF_ANCHORS}")
        if self.auto is not None and not wanted.questions:
            raise DataError(
                f"no anchors can be made from `{self.auto}`", f"take other pictures: --anchors {AUTO} FOLDER"
            )
        require_anchors(chosen.recipe, wanted.questions)
        return wanted

    def _wanted(self, chosen: Plan) -> Wanted:
        if candidates := self._candidates(chosen.recipe):
            candidates = candidates.only(partial(_askable, chosen))
            return Wanted(candidates.anchors, candidates)
        given = self.questions(chosen.recipe)
        if file := self.anchors or chosen.recipe.anchors.file:
            require_askable(file, given, family_in(chosen.checkpoint.config))
        questions = [*given, *filter(partial(_askable, chosen), with_prompts(given, chosen.recipe)[len(given) :])]
        return Wanted(questions, prompts=len(questions) - len(given))

    def questions(self, recipe: Recipe) -> Sequence[Probe]:
        """Read the anchors of a file, given or named by the recipe."""
        file = self.anchors or recipe.anchors.file
        root = self.files.image_root if self.anchors else None
        return read_anchors(file, root, strict_paths=self.files.strict_paths) if file else ()

    def _candidates(self, recipe: Recipe) -> Candidates | None:
        if self.auto is None:
            return of_prompts(recipe) if self.brings(recipe) else None
        if self.auto.is_dir():
            return of_folder(self.auto, recipe, strict_paths=self.files.strict_paths)
        return of_edits(self._edits(self.auto), recipe)

    def brings(self, recipe: Recipe) -> bool:
        """Return whether edits bring anchors: if they shall, the recipe takes anchors, and it names no file of them."""
        return self.arriving and recipe.uses_anchors and not recipe.anchors.file

    def corrections(self) -> Sequence[Edit]:
        """Read the calibration stream."""
        return () if self.calibrate is None else self._edits(self.calibrate)

    def _edits(self, file: Path) -> Sequence[Edit]:
        return read_edits(file, self.files.image_root, strict_paths=self.files.strict_paths).edits


def initialise(
    target: Target,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    inputs: Inputs | None = None,
    machine: Machine | None = None,
    progress: Progress = no_progress,
    runtime: Runtime | None = None,
) -> InitReport:
    """Write the sidecar of a checkpoint, unless an equal one exists.

    With anchors or a calibration stream the model is loaded: constants are calibrated, lambda is fixed from the
    anchors' keys, and P absorbs these keys. `runtime` is the model if it is loaded already.

    Raises:
        StateError: the checkpoint cannot be edited, its processor does not fit it, or another state exists.
        StreamErrors: the file of anchors or of corrections has problems.
        DataError: no anchors can be made from the file or folder that was named for it.
    """
    _check(target)
    chosen, inputs = plan(target, recipe, settings), inputs or Inputs()
    wanted, corrections = inputs.wanted(chosen), inputs.corrections()
    corrections, left_out = leave_out(corrections, identities(wanted.questions))
    if left_out:
        chosen.notices.append(left_out_sentence(left_out, left_out + sum(len(edit.locality) for edit in corrections)))
    state = _fresh(chosen)
    state.meta.arriving = inputs.brings(chosen.recipe) and _sees(chosen.checkpoint)
    machine = machine or Machine()
    loads = runtime is None and bool(wanted.questions or corrections or inputs.editing)
    reserve = 0
    if loads and not target.sidecar.exists():  # before the lock makes a folder
        later = OWN * bool(wanted.candidates or wanted.prompts) + PICTURED * state.meta.arriving
        reserve = _require_loadable(chosen, len(wanted.questions) + later, machine)
    with writer_lock(target.lock):
        if existing := _existing(target, chosen, state.meta, corrections, wanted):
            return existing
        if loads:
            progress(0, None, "loading the model")
            runtime = load_runtime(chosen.checkpoint, machine, blueprint=chosen.blueprint, reserve=reserve)
        questions = wanted.questions
        if runtime and (questions or corrections):
            questions = _prepare(
                target, chosen, state, runtime, wanted, corrections, machine=machine, progress=progress
            )
        else:
            _refuse_other_anchors(target, questions)
        chosen.notices.extend(_of_made(chosen, inputs, wanted, questions))
        write_pin(target.folder, pin_of(target.model))
        save_state(target.sidecar, state)
        return _report(target, chosen, state, questions, runtime, created=True)


def _report(
    target: Target, chosen: Plan, state: State, anchors: Sequence[Probe], runtime: Runtime | None, *, created: bool
) -> InitReport:
    sizes = len(anchors), _pictured(anchors)
    return InitReport(target, chosen, state.parameters, created, state.meta, *sizes, runtime)


def _of_made(chosen: Plan, inputs: Inputs, wanted: Wanted, questions: Sequence[Probe]) -> list[str]:
    """Return what the user is told of the anchors that were made: whether they have pictures, and how many joined."""
    told, sees = [], _sees(chosen.checkpoint)
    if inputs.auto is not None and sees and not _pictured(questions):
        told.append(TEXT_ALONE.format(inputs.auto))
    if wanted.prompts:
        told.append((JOINED if sees else JOINED_TEXT).format(len(questions) - len(wanted.questions) + wanted.prompts))
    return told


def _refuse_other_anchors(target: Target, questions: Sequence[Probe]) -> None:
    """Refuse to make a state again, for the ledger that it had, with other anchors than those kept in its folder.

    Raises:
        StateError: they are others.
    """
    kept, lines = target.folder / FILE, len(Ledger(target.folder).history)
    if lines and kept.is_file() and sha256_file(kept) != anchors_digest(questions):
        what = f"`{target.sidecar}` is gone, and its ledger of {counted(lines, 'line')} began with other anchors"
        hint = "restore it, or use the options of the first time; for a new state name another one with --state"
        raise StateError(what, hint)


def _check(target: Target) -> None:
    """Check where the state lies and, if it exists, that it has its ledger, before a folder is made.

    Raises:
        UsageError, StateError: as `Target.require_place`; also the ledger is missing.
    """
    target.require_place()
    if target.sidecar.exists():
        require_ledger(load_meta(target.sidecar), Ledger(target.folder), target.sidecar)


def _askable(chosen: Plan, question: Probe) -> bool:
    """Return whether the model can be asked a question that was made for it; some models need a picture."""
    return not family_in(chosen.checkpoint.config).refuses(len(question.images), alone=True)


def _pictured(questions: Iterable[Probe]) -> int:
    return sum(bool(question.images) for question in questions)


def _require_loadable(chosen: Plan, anchors: int, machine: Machine) -> int:
    """Return the bytes that editing with so many anchors takes beside the weights.

    Raises:
        StateError: the weights cannot be computed with here.
        ResourceError: memory does not suffice.
    """
    checkpoint, blueprint = chosen.checkpoint, chosen.blueprint
    import_library(checkpoint)
    require_right(checkpoint, machine)
    needed = estimate(checkpoint, chosen.sites, chosen.recipe, machine, anchors=anchors, blueprint=blueprint)
    require(needed, checkpoint, new=True)
    return needed.beside_weights


def _prepare(
    target: Target,
    chosen: Plan,
    state: State,
    runtime: Runtime,
    wanted: Wanted,
    corrections: Sequence[Edit],
    *,
    machine: Machine,
    progress: Progress,
) -> Sequence[Probe]:
    """Choose and keep the anchors, calibrate, and let P absorb the anchors' keys; return the anchors."""
    meta = state.meta
    anchors: list[Anchor] = []
    with runtime.attached([]):
        progress(0, None, "choosing anchors")
        questions = wanted.chosen(runtime, meta.recipe)
        require_anchors(meta.recipe, questions)
        _refuse_other_anchors(target, questions)
        if questions:
            meta.anchors = keep_anchors(target.folder, questions, first=True)
            cache = target.folder / "cache" / answers_name(meta, meta.anchors, machine)
            anchors = ask_anchors(runtime, questions, cache, progress)
    if corrections:
        meta.recipe, meta.calibration = calibrate(runtime, meta.recipe, chosen.sites, corrections, anchors, progress)
    editor = MoreEditor.fresh(meta.recipe, chosen.sites)
    if anchors:
        with editor.attach(runtime):
            editor.start_from(anchors)
    update_state(state, editor)
    return questions


def _fresh(chosen: Plan) -> State:
    editor = MoreEditor.fresh(chosen.recipe, chosen.sites)
    meta = StateMeta(
        base=fingerprint(chosen.checkpoint, [site.disk_key for site in chosen.sites]),
        recipe=chosen.recipe,
        template=chosen.blueprint.prompter.template,
        sites=editor.records,
        digest=START,
    )
    state = State(meta)
    update_state(state, editor)
    return state


def _existing(
    target: Target, chosen: Plan, meta: StateMeta, corrections: Sequence[Edit], wanted: Wanted
) -> InitReport | None:
    """Return a report on an equal state that exists; None if there is no state.

    Raises:
        StateError: another state exists.
    """
    if not target.sidecar.exists():
        return None
    existing = load_state(target.sidecar)
    calibrated = (existing.meta.calibration or {}).get("edits")
    anchors = load_anchors(target.folder, existing.meta.anchors) if existing.meta.anchors else []
    wanted_recipe = with_calibrated(meta.recipe, existing.meta.recipe) if calibrated else meta.recipe
    differs = {
        "base": existing.meta.base != meta.base,
        "recipe": existing.meta.recipe.canonical() != wanted_recipe.canonical(),
        "set of anchors": not wanted.fits(anchors) or existing.meta.arriving != meta.arriving,
        "calibration": calibrated != (stream_digest(corrections) if corrections else None),
    }
    if not any(differs.values()):
        return _report(target, chosen, existing, anchors, None, created=False)
    other = next(name for name in differs if differs[name])
    add = f"`more anchors add {target.typed} FILE` adds some to this one; or " if other == "set of anchors" else ""
    raise StateError(
        f"`{target.sidecar}` exists, with another {other} ({counted(existing.meta.edits, 'ledger line')})",
        f"{add}start a new state with --state FILE, or move the old one and its `.d` folder away",
    )


def _sees(checkpoint: Checkpoint) -> bool:
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
