"""Which checkpoint and which state a command works on, and the paths of a state's files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.checkpoint.folder import require_checkpoint
from more_cli.checkpoint.hub import snapshot_folder
from more_cli.errors import MoreError, StateError, UsageError
from more_cli.store.names import current_file, current_path, file_of, model_of_state, names_state, sidecar_path
from more_cli.store.pin import read_pin
from more_cli.store.project import blamed_on, settings_for
from more_cli.text import quoted


@dataclass(frozen=True)
class Target:
    """The checkpoint a command works on and the sidecar that belongs to it."""

    model: Path
    sidecar: Path

    def __post_init__(self) -> None:
        """Refuse what can never be a state.

        Raises:
            StateError: it is a folder, a pipe or a device.
        """
        if os.path.exists(self.sidecar) and not os.path.isfile(self.sidecar):
            what = f"the state `{self.sidecar}` is not a file"
            raise StateError(what, "name a file, such as llava.more; an empty name counts as `.`, the current folder")

    @property
    def typed(self) -> str:
        """What a user types to name both in a command."""
        usual = sidecar_path(self.model)
        with suppress(MoreError):
            usual = usual_path(self.model)
        state = "" if self.sidecar == usual else f" --state {quoted(self.sidecar)}"
        model = f"./{self.model}" if str(self.model).startswith("-") else str(self.model)  # no option
        return f"{quoted(model)}{state}"

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

    def require_place(self) -> None:
        """Check that a new state can lie there: outside the checkpoint folder, where `from_pretrained` would find it.

        Raises:
            UsageError: it would lie inside.
            StateError: it is a link that leads nowhere.
        """
        sidecar = self.sidecar
        if sidecar.resolve().parent == self.model.resolve():
            what = f"the state `{sidecar}` would lie inside the checkpoint folder"
            raise UsageError(what, "put it beside or elsewhere")
        if sidecar.is_symlink() and not sidecar.exists():
            what = f"`{sidecar}` is a link to `{sidecar.readlink()}`, which is not there"
            raise StateError(what, "restore that file, or remove the link")

    def require_state(self) -> None:
        """Refuse a state that is not there.

        Raises:
            StateError: it is not.
        """
        if not self.sidecar.exists():
            raise StateError(f"no state at `{self.sidecar}`", "name an existing state, or leave --state out")

    def protect_from(self, out: Path) -> None:
        """Refuse an output in the place of the checkpoint, the state or a file of either.

        Raises:
            UsageError: it is there.
        """
        placed = out.resolve()
        for kept, what in ((self.model, "the base checkpoint"), (self.folder, "the folder of the state")):
            if placed.is_relative_to(kept.resolve()):
                raise UsageError(f"`{out}` is, or lies in, {what}", "name another output")
        if placed == self.sidecar.resolve():
            raise UsageError(f"`{out}` is the state itself", "name another output")


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


def locate(model: Path | None, state: Path | None) -> Target:
    """Return the checkpoint and the sidecar that a command works on.

    `state` is a path, or the name of a state beside the checkpoint. Without it, it is the state of `more.toml`, else
    the one that `more switch` chose, else `main`.

    Raises:
        UsageError: no model was named and the states in the current folder are not those of exactly one; the name is
            that of another checkpoint's state; or `more.toml` is bad.
        StateError: the state that `more switch` chose is not there, or neither a checkpoint nor a state has that name.
    """
    if state is not None and names_state(state):
        named = model or model_here()
        target = Target(named, file_of(named, state))
        return target if model else _with_base(target)
    model = model or (state and model_of_state(state))
    project = settings_for(model)
    if model is None and "model" in project:
        model = project["model"].value
    if model is not None:
        target = Target(model, state or usual_path(model))
        if state is None and not (model.is_dir() or target.sidecar.exists()):
            with blamed_on(project.get("model")):
                require_checkpoint(model)  # a mistyped name, or a file such as the state itself
        return target
    if state is None and "state" in project:
        return locate(None, project["state"].value)
    found = [state] if state else states_here()
    only = model_of_states(found)
    if state is None and (len(found) > 1 or current_file(only).exists()):
        return _with_base(Target(only, current_path(only)))
    return _with_base(Target(only, found[0]))


def usual_path(model: Path) -> Path:
    """Return the state that commands use if none is named: that of `more.toml`, else the one that `more switch` chose.

    Raises:
        UsageError: `more.toml` is bad.
        StateError: the state that `more switch` chose is not there.
    """
    project = settings_for(model)
    return file_of(model, project["state"].value) if "state" in project else current_path(model)


def model_here() -> Path:
    """Return the checkpoint that `more.toml` in the current folder names, else the one whose states are there.

    Raises:
        UsageError: as `locate`.
    """
    project = settings_for()
    return project["model"].value if "model" in project else model_of_states(states_here())


def states_here() -> list[Path]:
    """Return the states in the current folder."""
    return sorted(path for path in Path().glob("*.more") if path.is_file())


def model_of_states(paths: Sequence[Path]) -> Path:
    """Return the checkpoint that the names of states say.

    Raises:
        UsageError: there are no states, or they are of several checkpoints.
    """
    models = {model_of_state(path) or path.with_suffix("") for path in paths}
    if len(models) != 1:
        shown = ", ".join(file.name for file in paths[:5])
        raise UsageError(
            f"no model named, and {f'several `*.more` files are here: {shown}' if paths else 'no `*.more` file here'}",
            "name the checkpoint folder after the command, for example: more status llava/",
        )
    return models.pop()


def _with_base(target: Target) -> Target:
    """Return a target with the base that its state names in the hub's cache, if there is no folder beside it."""
    pin = None if target.model.exists() else read_pin(target.folder)
    return replace(target, model=snapshot_folder(pin)) if pin else target
