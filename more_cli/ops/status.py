"""`more status`: what a state holds, or without one what `init` would choose and why other modules are left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from more_cli.journal import Ledger
from more_cli.ops.init import Plan, plan
from more_cli.ops.session import Target, check_ledger, open_base
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
    check_ledger(ledger, state, target)
    return StatusReport(
        target=target,
        state=state,
        plan=plan(target),
        statuses=dict(sorted(Counter(ledger.statuses().values()).items())),
        behind=len(ledger.entries) - state.meta.edits,
        sidecar_bytes=target.sidecar.stat().st_size,
        ledger_bytes=sum(path.stat().st_size for path in target.folder.rglob("*") if path.is_file()),
    )
