"""`more init`: write a state without edits, with its anchors and its calibrated constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from more_cli.checkpoint.hub import pin_of
from more_cli.checkpoint.reader import fingerprint
from more_cli.editors.anchors import Anchor
from more_cli.editors.more.editor import MoreEditor
from more_cli.errors import StateError
from more_cli.files import sha256_file
from more_cli.inputs.edits import Edit, Probe
from more_cli.model.loading import load_runtime
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
    require_anchors,
)
from more_cli.ops.auto_anchors import AUTO, OWN, PICTURED
from more_cli.ops.calibrate import calibrate, stream_digest, with_calibrated
from more_cli.ops.estimate import estimate, require
from more_cli.ops.plan import Plan, plan, sees
from more_cli.ops.preparing import Inputs, Wanted, pictured_in
from more_cli.ops.session import update_state
from more_cli.ops.session_anchors import answers_name, directions_name, keep_directions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import START
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.pin import write_pin
from more_cli.store.snapshots import require_ledger
from more_cli.store.state import State, StateMeta, load_meta, load_state, save_state
from more_cli.store.target import Target
from more_cli.text import counted

TEXT_ALONE = (
    "all anchors are text only: any question about a picture of `{}` may be about one of its edits; "
    f"--anchors {AUTO} FOLDER takes other pictures"
)

JOINED = "few anchors had no picture, so {:,} text-only ones were added: they hold answers without a picture"
JOINED_TEXT = "few anchors were given, so {:,} were added"
"""The same of a plain language model."""
WITHOUT_THOUGHTS = (
    "the model can think before it answers: edits are written and scored without thoughts; "
    "ask the merged model so too, with enable_thinking=False"
)


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
    target.require_place()
    if target.sidecar.exists():
        require_ledger(load_meta(target.sidecar), Ledger(target.folder), target.sidecar)
    chosen, inputs = plan(target, recipe, settings), inputs or Inputs()
    wanted, corrections = inputs.wanted(chosen), inputs.corrections()
    corrections, left_out = leave_out(corrections, identities(wanted.questions))
    if left_out:
        chosen.notices.append(left_out_sentence(left_out, left_out + sum(len(edit.locality) for edit in corrections)))
    state = _fresh(chosen)
    if chosen.blueprint.prompter.thinks:
        chosen.notices.append(WITHOUT_THOUGHTS)
    state.meta.arriving = inputs.brings(chosen.recipe) and sees(chosen.checkpoint)
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
    sizes = len(anchors), pictured_in(anchors)
    return InitReport(target, chosen, state.parameters, created, state.meta, *sizes, runtime)


def _of_made(chosen: Plan, inputs: Inputs, wanted: Wanted, questions: Sequence[Probe]) -> list[str]:
    """Return notices about the anchors that were made: whether they have pictures, and how many joined."""
    notices, visual = [], sees(chosen.checkpoint)
    if inputs.auto is not None and visual and not pictured_in(questions):
        notices.append(TEXT_ALONE.format(inputs.auto))
    if wanted.prompts:
        joined = len(questions) - len(wanted.questions) + wanted.prompts
        notices.append((JOINED if visual else JOINED_TEXT).format(joined))
    return notices


def _refuse_other_anchors(target: Target, questions: Sequence[Probe]) -> None:
    """Refuse to make a state again, for the ledger that it had, with other anchors than those kept in its folder."""
    kept, lines = target.folder / FILE, len(Ledger(target.folder).history)
    if lines and kept.is_file() and sha256_file(kept) != anchors_digest(questions):
        what = f"`{target.sidecar}` is gone, and its ledger of {counted(lines, 'line')} began with other anchors"
        hint = "restore it, or use the options of the first time; for a new state name another one with --state"
        raise StateError(what, hint)


def _require_loadable(chosen: Plan, anchors: int, machine: Machine) -> int:
    """Return the bytes that editing takes beside the weights; refuse what cannot be edited here."""
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
        if questions and corrections:
            anchors = ask_anchors(runtime, questions, cache, progress)
    if corrections:
        meta.recipe, meta.calibration = calibrate(runtime, meta.recipe, chosen.sites, corrections, anchors, progress)
    editor = MoreEditor.fresh(meta.recipe, chosen.sites)
    if questions:
        with editor.attach(runtime):  # also to ask the base: one pass gives log-probabilities and keys
            keys = None if meta.recipe.basis == "pca" else editor.sites.keys  # this basis is made of all anchors
            editor.hold(anchors or ask_anchors(runtime, questions, cache, progress, keys=keys), fresh=True)
            name = directions_name(meta, meta.anchors, editor.records, machine)
            keep_directions(target.folder / "cache" / name, editor)
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
    """Return a report on an equal state that exists; None if there is no state."""
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
