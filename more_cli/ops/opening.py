"""What every command checks before it works with a state: that base and ledger are those it was made with."""

from __future__ import annotations

import os

from more_cli.checkpoint import Checkpoint, fingerprint, open_checkpoint
from more_cli.errors import StateError
from more_cli.journal import Ledger, content_digest
from more_cli.state import State
from more_cli.target import Target


def open_base(target: Target, state: State) -> Checkpoint:
    """Open the checkpoint and check that it is the one the state was made for.

    Raises:
        StateError: not a checkpoint, or another base.
    """
    checkpoint = open_checkpoint(target.model)
    base = state.meta.base
    keys = [site.disk_key for site in state.meta.sites if site.disk_key in checkpoint.tensors]
    actual = fingerprint(checkpoint, keys)
    changed = sorted(key for key in base.keys() | actual.keys() if base.get(key) != actual.get(key))
    if changed:
        raise StateError(
            f"`{target.sidecar}` was made for another base than `{target.model}`: {', '.join(changed[:3])} differ",
            "use the checkpoint it was made for, or start a new state with --state FILE",
        )
    return checkpoint


def check_ledger(ledger: Ledger, state: State, target: Target) -> None:
    """Refuse a ledger that is not the one this sidecar was written with."""
    digest = content_digest(ledger.entries[: state.meta.edits])
    if len(ledger.entries) < state.meta.edits or digest != state.meta.digest:
        raise StateError(
            f"`{target.sidecar}` holds {state.meta.edits} edits that `{ledger.path}` does not tell the same way",
            f"restore `{os.fspath(ledger.path)}` from a backup; the two belong together",
        )
