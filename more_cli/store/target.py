"""Which checkpoint and which state a command works on, and the paths of a state's files."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.checkpoint.hub import snapshot_folder
from more_cli.errors import UsageError
from more_cli.store.pin import read_pin


@dataclass(frozen=True)
class Target:
    """The checkpoint a command works on and the sidecar that belongs to it."""

    model: Path
    sidecar: Path

    @property
    def typed(self) -> str:
        """What a user types to name both in a command."""
        state = "" if self.sidecar == sidecar_path(self.model) else f" --state {shlex.quote(str(self.sidecar))}"
        model = f"./{self.model}" if str(self.model).startswith("-") else str(self.model)  # no option
        return f"{shlex.quote(model)}{state}"

    @property
    def folder(self) -> Path:
        """Folder of ledger, image store, snapshots and lock, beside the file that a link names: a state has one."""
        sidecar = Path(os.path.realpath(self.sidecar)) if self.sidecar.is_symlink() else self.sidecar
        return sidecar.with_name(sidecar.name + ".d")

    @property
    def ledger_name(self) -> str:
        """File name of the ledger in that folder."""
        return "ledger.jsonl"

    def snapshot(self, number: str) -> Path:
        """Return the path of the snapshot that was taken by itself at a ledger line, or with `*` the pattern of all."""
        return self.folder / "snapshots" / f"{number}.auto.more"

    @property
    def lock(self) -> Path:
        """The writer's lock."""
        return self.folder / "lock"


class Draft(Target):
    """A state that is being built in the folder of another one, or of its own; both use its images and anchors."""

    @property
    def folder(self) -> Path:
        """Folder of both states."""
        return self.sidecar.parent

    @property
    def ledger_name(self) -> str:
        """File name of the draft's own ledger."""
        return self.sidecar.with_suffix(".jsonl").name

    def snapshot(self, number: str) -> Path:
        """As of the state, but beside the draft and by a line of the draft's own ledger."""
        return self.sidecar.with_suffix(f".{number}.auto.more")


def sidecar_path(model: Path) -> Path:
    """Return the default path of a checkpoint's state: `NAME.more` beside its folder."""
    model = model.resolve()
    return model.with_name(model.name + ".more")


def locate(model: Path | None, state: Path | None) -> Target:
    """Return the checkpoint and the sidecar that a command works on.

    Raises:
        UsageError: no model was named and the current folder does not name exactly one.
    """
    if model is not None:
        return Target(model, state or sidecar_path(model))
    found = [state] if state else sorted(Path.cwd().glob("*.more"))
    if len(found) != 1:
        shown = ", ".join(file.name for file in found[:5])
        raise UsageError(
            f"no model named, and {f'several `*.more` files are here: {shown}' if found else 'no `*.more` file here'}",
            "name the checkpoint folder after the command, for example: more status llava/",
        )
    return _with_base(Target(found[0].with_suffix(""), found[0]))


def _with_base(target: Target) -> Target:
    """Return a target with the base that its state names in the hub's cache, if there is no folder beside it."""
    pin = None if target.model.exists() else read_pin(target.folder)
    return replace(target, model=snapshot_folder(pin)) if pin else target
