"""`more rebase`: the edits of a state again, in their order, on a new version of its base.

Nothing of the old weights or of the old state's numbers is used: only the recipe, the anchors' questions and the edits
of the ledger. The new state is made as that of `more combine` is: in a draft, and its file appears last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from more_cli.checkpoint.folder import CONFIG
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint, fingerprint
from more_cli.errors import MoreError, StateError, UsageError
from more_cli.model.machine import Machine
from more_cli.ops.assembly import AssemblyReport, Plan, assemble, steps_of
from more_cli.ops.drafts import Work
from more_cli.ops.plan import planned_for
from more_cli.ops.shared import SourceState, union
from more_cli.options import RebaseOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.state import StateMeta, unedited_site
from more_cli.store.status import FAILED, RIGHT, Status
from more_cli.store.target import Target


@dataclass
class RebaseReport(AssemblyReport):
    """What became of the edits of a state on a new base."""

    right_before: set[str] = field(default_factory=set)
    """Edits that the new base answers right by itself."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Of edits that do not stand: why, and what may help."""

    @property
    def groups(self) -> dict[str, list[str]]:
        """The edits by what became of them; `lost` stood before, and are not learnt or refused now."""
        before = {edit.id: edit.status for edit in self.plan.union.edits}
        right, failed = self.with_status(*RIGHT), self.with_status(*FAILED)
        return {
            "held": [id for id in right if id not in self.right_before],
            "already_right": [id for id in right if id in self.right_before],
            "lost": [id for id in failed if before[id] in RIGHT],
            "still_failed": [id for id in failed if before[id] not in RIGHT],
            "superseded": self.with_status(Status.SUPERSEDED),
            "reverted": [edit.id for edit in self.plan.union.reverted],
        }

    @property
    def lost(self) -> list[str]:
        """Edits that stood, and are not learnt or refused now."""
        return self.groups["lost"]

    def with_status(self, *statuses: Status) -> list[str]:
        """Return the edits that have one of these statuses in the new state."""
        return [id for id, status in self.statuses.items() if status in statuses]


def rebase(
    source: Target,
    target: Target,
    options: RebaseOptions,
    machine: Machine,
    progress: Progress = no_progress,
    *,
    starting: Callable[[Work], None] | None = None,
) -> RebaseReport:
    """Apply the edits of the state `source.sidecar` to the base `target.model`, in the new state `target.sidecar`.

    The folder `source.model` need not be there any more. `starting` is called before the first edit is applied.

    Raises:
        StateError: the new base has another architecture, or the state or an image is missing or damaged.
        UsageError: the new state exists and is another, or is the one that is rebased.
    """
    started = time.monotonic()
    old = SourceState(source.sidecar, 0)
    checkpoint = open_checkpoint(target.model)
    target.require_place()
    setup, found = _setup(old, source.model, checkpoint), union([old])
    plan = Plan([old], found, 0, old, 0, steps_of(found, [old]), setup)
    report = RebaseReport(target, plan, dry_run=options.dry_run)
    if ledger := assemble(report, partial(_is_there, target, report.plan), machine, progress, starting=starting):
        report.reasons = {edit.id: edit.reason for edit in ledger.failed()}
        right = report.with_status(Status.ALREADY_RIGHT)
        report.right_before = {id for id in right if ledger.by_id[id].said_before is None}
        if back := [id for id, (before, _) in report.changed.items() if before is Status.SUPERSEDED]:
            what = f"no longer superseded, as the later edit is refused: {', '.join(back)}"
            report.notes.append(f"{what}; take it out with more revert {target.typed} ID")
    report.wall_seconds = time.monotonic() - started
    return report


def _setup(old: SourceState, model: Path, checkpoint: Checkpoint) -> StateMeta:
    """Return what the new state is made with: the old recipe, and sites, prompts and hashes of the new base."""
    recipe = old.meta.recipe
    new = str(checkpoint.config.get("model_type"))
    before = str(open_checkpoint(model).config.get("model_type")) if (model / CONFIG).is_file() else new
    if before != new:
        raise _other(checkpoint, model, f"model type {new}, not {before}")
    try:
        plan = planned_for(checkpoint, recipe)
    except MoreError as error:
        raise _other(checkpoint, model, error.message) from None
    sites = {site.name: site for site in plan.sites}
    for record in old.meta.sites:
        if record.name not in sites:
            raise _other(checkpoint, model, f"it has no site `{record.name}`")
        if (shape := tuple(sites[record.name].shape)) != tuple(record.shape):
            shapes = (f"{rows} x {columns}" for rows, columns in (shape, record.shape))
            raise _other(checkpoint, model, f"site `{record.name}` is {', not '.join(shapes)}")
    if more := sites.keys() - {record.name for record in old.meta.sites}:
        raise _other(checkpoint, model, f"it has a further site `{min(more)}`")
    records = [unedited_site(record, recipe) for record in old.meta.sites]
    places = ({"module": sites[each.name].module, "disk_key": sites[each.name].disk_key} for each in records)
    moved = [record.model_copy(update=place) for record, place in zip(records, places, strict=True)]
    return old.meta.model_copy(
        update={
            "base": fingerprint(checkpoint, [record.disk_key for record in moved]),
            "template": plan.blueprint.prompter.template,
            "sites": moved,
        }
    )


def _other(checkpoint: Checkpoint, model: Path, reason: str) -> StateError:
    what = f"`{checkpoint.path}` has another architecture than `{model}`: {reason}"
    return StateError(what, "edits can be applied anew from their file: more edit MODEL EDITS")


def _is_there(target: Target, plan: Plan) -> bool:
    """Return whether the new state exists already: for this base, with exactly these edits."""
    if not target.sidecar.exists():
        return False
    if target.sidecar.resolve() == plan.start.path.resolve():
        what = f"`{target.sidecar}` is the state that is rebased"
        raise UsageError(what, "name another base: more rebase MODEL NEW_BASE, or a new file with -o")
    there = SourceState(target.sidecar, 0)
    assert plan.base is not None
    held, wanted = union([there]), plan.union
    same = all(
        [(edit.id, edit.content) for edit in ours] == [(edit.id, edit.content) for edit in theirs]
        for ours, theirs in ((held.edits, wanted.edits), (held.reverted, wanted.reverted))
    )
    if not same or (there.meta.base, there.meta.recipe) != (plan.base.base, plan.base.recipe):
        raise UsageError(f"`{target.sidecar}` already exists, and is another state", "name a new file with -o")
    return True
