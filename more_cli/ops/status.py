"""`more status`: what a state holds, or without one what `init` would choose and why other modules are left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from more_cli.journal import Ledger
from more_cli.model.machine import Machine
from more_cli.ops.anchors import load_anchors
from more_cli.ops.estimate import Estimate, estimate
from more_cli.ops.init import Plan, plan
from more_cli.ops.session import Target, open_base
from more_cli.ops.states import current
from more_cli.recipe import Recipe
from more_cli.state import State, load_state


@dataclass(frozen=True)
class StatusReport:
    """A state at rest, or the plan for one."""

    target: Target
    state: State | None
    plan: Plan
    """What `init` would choose for the checkpoint as it lies there; its refusals say why other modules cannot be."""
    statuses: dict[str, int]
    behind: int
    sidecar_bytes: int
    ledger_bytes: int
    anchors: int = 0
    estimate: Estimate | None = None
    """What editing takes in memory, when that was asked for."""

    @property
    def extensions(self) -> list[str]:
        """What the recipe does beyond the paper."""
        return extensions((self.state.meta.recipe if self.state else self.plan.recipe), self.anchors)


def extensions(recipe: Recipe, anchors: int) -> list[str]:
    """Name what a recipe does beyond the paper's write and recursion."""
    found = []
    if recipe.uses_polyak:
        found.append("Polyak step" + (f" (visual share {recipe.visual_share})" if recipe.visual_share else ""))
    if recipe.stop_early:
        limit = f"margin {recipe.margin}" if recipe.criterion == "margin" else f"NLL {recipe.target_nll}"
        found.append(f"written until it holds ({limit}, at most {recipe.max_steps} writes)")
    if recipe.guard:
        found.append("guard")
    if recipe.rehearsal.size:
        found.append(f"rehearsal of {recipe.rehearsal.size}")
    if anchors:
        keys = " and in P" if recipe.anchors.keys else ""
        found.append(f"held by {anchors} anchors, {recipe.anchors.size} a write{keys}")
    return found


def estimated(report: StatusReport, machine: Machine, tokens: int | None = None) -> StatusReport:
    """Return the report with what editing takes on this machine, for sequences of so many tokens."""
    plan, state = report.plan, report.state
    if state is None:
        recipe, anchors = plan.recipe, plan.recipe.anchors.size
        found = estimate(plan.checkpoint, plan.sites, recipe, machine, anchors=anchors, tokens=tokens)
    else:
        meta = state.meta
        found = estimate(plan.checkpoint, meta.sites, meta.recipe, machine, anchors=report.anchors, tokens=tokens)
    return replace(report, estimate=found)


def status(target: Target) -> StatusReport:
    """Describe a state, or without one the plan for it; loads no weights.

    Raises:
        StateError: not a checkpoint, or a state that does not fit it.
    """
    if not target.sidecar.exists():
        return StatusReport(target, None, plan(target), {}, 0, 0, 0)
    state = load_state(target.sidecar)
    open_base(target, state)
    ledger = Ledger(target.folder)
    state = current(state, ledger, target.sidecar)
    return StatusReport(
        target=target,
        state=state,
        plan=plan(target),
        statuses=dict(sorted(Counter(ledger.statuses().values()).items())),
        behind=len(ledger.history) - state.meta.edits,
        sidecar_bytes=target.sidecar.stat().st_size,
        anchors=len(load_anchors(target.folder, state.meta.anchors)) if state.meta.anchors else 0,
        ledger_bytes=sum(path.stat().st_size for path in target.folder.rglob("*") if path.is_file()),
    )
