"""Open the base of a state; every command that uses a state checks first that they belong together."""

from __future__ import annotations

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint, fingerprint
from more_cli.errors import StateError
from more_cli.store.state import State
from more_cli.store.target import Target
from more_cli.text import quoted


def open_base(target: Target, state: State) -> Checkpoint:
    """Open the checkpoint and check that it is the one the state was made for.

    Raises:
        StateError: not a checkpoint, or another base.
    """
    checkpoint = open_checkpoint(target.model)
    base = state.meta.base
    keys = [site.disk_key for site in state.meta.sites if site.disk_key in checkpoint.weights]
    actual = fingerprint(checkpoint, keys)
    changed = sorted(key for key in base.keys() | actual.keys() if base.get(key) != actual.get(key))
    if changed:
        raise StateError(
            f"`{target.sidecar}` was made for another base than `{target.model}`: {', '.join(changed[:3])} differ",
            "use the checkpoint it was made for; or apply its edits to this one: "
            f"more rebase {quoted(target.model)} --state {quoted(target.sidecar)} -o NAME; or start a new state with "
            "--state FILE",
        )
    return checkpoint
