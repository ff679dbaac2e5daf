"""Which checkpoint and which state a command means, and where the parts of a state lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from more_cli.errors import UsageError


@dataclass(frozen=True)
class Target:
    """The checkpoint a command works on and the sidecar that belongs to it."""

    model: Path
    sidecar: Path

    @property
    def folder(self) -> Path:
        """Folder of ledger, image store, snapshots and lock."""
        return self.sidecar.with_name(self.sidecar.name + ".d")

    @property
    def journal(self) -> str:
        """Name of the ledger in that folder."""
        return "ledger.jsonl"

    @property
    def lock(self) -> Path:
        """The writer's lock."""
        return self.folder / "lock"


class Draft(Target):
    """A state in the making, in the folder of the one that it is to replace, whose images and anchors it uses."""

    @property
    def folder(self) -> Path:
        """Folder of both states."""
        return self.sidecar.parent

    @property
    def journal(self) -> str:
        """Name of the draft's own ledger."""
        return self.sidecar.with_suffix(".jsonl").name


def sidecar_path(model: Path) -> Path:
    """Return where the state of a checkpoint folder lies unless the user says otherwise: `NAME.more` beside it."""
    model = model.resolve()
    return model.with_name(model.name + ".more")


def locate(model: Path | None, state: Path | None) -> Target:
    """Say which checkpoint and which sidecar a command means.

    Raises:
        UsageError: no model was named and the current folder does not name exactly one.
    """
    if model is not None:
        return Target(model, state or sidecar_path(model))
    found = [state] if state else sorted(Path.cwd().glob("*.more"))
    if len(found) != 1:
        shown = ", ".join(file.name for file in found[:5])
        raise UsageError(
            f"no model named, and {f'several `*.more` files lie here: {shown}' if found else 'no `*.more` file here'}",
            "name the checkpoint folder: more COMMAND MODEL",
        )
    return Target(found[0].with_suffix(""), found[0])
