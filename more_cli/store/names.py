"""Names of the states beside a checkpoint, and which of them commands use.

`llava.more` is the state `main` of the folder `llava`, `llava.ann.more` its state `ann`. The file `llava.more.current`
holds the name of the one in use; without it that is `main`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from more_cli.checkpoint.folder import CONFIG
from more_cli.errors import StateError, UsageError
from more_cli.files import require_regular
from more_cli.text import did_you_mean, listed, quoted, reason_of, shorten

MAIN = "main"
"""Name of the state `NAME.more`."""
_NAME = re.compile(r"\w[\w.-]*")
_BYTES = 100
"""Most bytes of a name: those of files that it is a part of are at most 255 long."""
_LIMIT = 1000
"""Most characters that are read of a file that holds a name."""


def sidecar_path(model: Path) -> Path:
    """Return the path of a checkpoint's state `main`: `NAME.more` beside its folder.

    Raises:
        StateError: the folder is the root, beside which nothing can lie.
    """
    model = model.resolve()
    if not model.name:
        raise StateError(f"`{model}` is no checkpoint folder", "name the folder that holds config.json")
    return model.with_name(model.name + ".more")


def named_path(model: Path, name: str) -> Path:
    """Return the path of the state with this name."""
    main = sidecar_path(model)
    return main if name == MAIN else main.with_name(f"{main.stem}.{name}.more")


def is_name(text: str) -> bool:
    """Return whether a state can have this name: a file's name can hold it, and it does not read as a file's."""
    fits = len(os.fsencode(text)) <= _BYTES
    return fits and bool(_NAME.fullmatch(text)) and not text.endswith((".", ".more"))


def names_state(state: Path) -> bool:
    """Return whether somebody typed the name of a state, not a path; a file of that name comes first."""
    return is_name(str(state)) and not state.is_file()


def file_of(model: Path, state: Path) -> Path:
    """Return the file of a state that is typed as a name or as a path.

    Raises:
        UsageError: the name is that of another checkpoint's state.
    """
    return _from_here(own_path(model, str(state))) if names_state(state) else state


def own_path(model: Path, name: str) -> Path:
    """Return the path of the state with this name, which may not be another checkpoint's.

    Raises:
        UsageError: it is, as `llava.v2.more` beside the folders `llava` and `llava.v2`.
    """
    path = named_path(model, name)
    owner = model_of_state(path)
    if name != MAIN and owner not in (None, sidecar_path(model).with_suffix("")):
        raise UsageError(f"`{path.name}` is the state of the checkpoint `{owner}`", "take another name")
    return path


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def current_file(model: Path) -> Path:
    """Return the path of the file that says which state is in use."""
    main = sidecar_path(model)
    return main.with_name(f"{main.name}.current")


def current_name(model: Path) -> str:
    """Return the name of the state in use; whether the state is there is not checked.

    Raises:
        StateError: the file that says so is damaged.
    """
    path = current_file(model)
    require_regular(path)
    try:
        with open(path, encoding="utf-8") as file:
            name = file.read(_LIMIT).removesuffix("\n")
    except FileNotFoundError:
        return MAIN
    except (OSError, ValueError) as error:
        raise StateError(f"`{path}` cannot be read: {reason_of(error)}", _anew(model)) from None
    if not is_name(name):
        raise StateError(f"`{path}` names no state: `{shorten(name)}`", _anew(model))
    return name


def current_path(model: Path) -> Path:
    """Return the state in use.

    Raises:
        StateError: the file that says which one is damaged, or names a state that is not there.
    """
    name = current_name(model)
    path = named_path(model, name)
    if name != MAIN and not path.exists():
        raise StateError(f"`{current_file(model)}` says `{name}`, and there is no state `{path}`", _anew(model))
    return path


def _anew(model: Path) -> str:
    others = listed([f"`{name}`" for name in states_beside(model) if name != MAIN], 5)
    return f"more switch {quoted(model)} {MAIN}" + (f", or in its place one of {others}" if others else "")


def model_of_state(path: Path) -> Path | None:
    """Return the checkpoint folder that the name of a state says, of `llava.more` or `llava.ann.more`; None if none."""
    folder = path
    while folder.suffix:
        folder = folder.with_suffix("")
        if (folder / CONFIG).is_file():
            return folder
    return None


def name_of(model: Path, state: Path) -> str | None:
    """Return the name of a state; None for one that does not lie beside its checkpoint, or is another's."""
    main, path = sidecar_path(model), Path(os.path.abspath(state))
    with suppress(OSError):
        path = path.parent.resolve() / path.name
    if path == main:
        return MAIN
    name = path.name.removeprefix(f"{main.stem}.").removesuffix(".more")
    is_ours = path.parent == main.parent and path == named_path(model, name) and name != MAIN and is_name(name)
    return name if is_ours and model_of_state(path) in (None, main.with_suffix("")) else None


def known_state(model: Path, name: str, advice: str = "") -> Path:
    """Return the file of the state with this name; `advice` ends the hint if there is none.

    Raises:
        UsageError: there is none.
    """
    known = states_beside(model)
    if name not in known:
        hint = f"{did_you_mean(name, known)} `more switch {quoted(model)} --list` lists them".lstrip()
        raise UsageError(f"`{model}` has no state `{shorten(name)}`", hint + advice)
    return _from_here(known[name])


def states_beside(model: Path) -> dict[str, Path]:
    """Return the states beside a checkpoint by name, `main` first."""
    main = sidecar_path(model)
    found = {MAIN: main} if main.exists() else {}
    for path in sorted(main.parent.iterdir()) if main.parent.is_dir() else ():
        if path.name.startswith(f"{main.stem}.") and path.suffix == ".more" and path != main:
            name = name_of(model, path)
            found |= {name: path} if name else {}
    return found
