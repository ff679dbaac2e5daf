"""Words of a command: which of them is the model, and which are states or ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from more_cli.checkpoint.folder import CONFIG
from more_cli.errors import UsageError
from more_cli.store.names import known_state, names_state, sidecar_path
from more_cli.store.target import Target, locate, model_here
from more_cli.text import quoted


def locate_among(words: Sequence[str], state: Path | None, usage: str) -> tuple[Target, list[str]]:
    """Return the state that one of the words names, the first that is a checkpoint folder, and the others: ids.

    Without such a word it is the state that `locate` finds; `usage` says what to type if it finds none.

    Raises:
        UsageError: no word names a state and the current folder does not, or a word is a path that does not exist.
    """
    model = next((word for word in words if names_model(word)), None)
    if model is not None:
        ids = list(words)
        ids.remove(model)
        return locate(Path(model), state), ids
    for word in words:
        if os.sep in word or "/" in word:
            what = "a file, not a checkpoint directory" if os.path.exists(word) else "no such directory"
            raise UsageError(f"{word}: {what}", f"type: {usage}")
    try:
        return locate(None, state), list(words)
    except UsageError as error:
        names = ", ".join(f"`{word}`" for word in words)
        taken = f"; {names} {'is' if len(words) == 1 else 'are'} taken as {'an id' if len(words) == 1 else 'ids'}"
        hint = f"add MODEL, the checkpoint folder: {usage}"
        raise UsageError(error.message + (taken if words else ""), hint) from None


def model_and_states(words: Sequence[Path], usage: str) -> tuple[Path | None, list[Path]]:
    """Return the checkpoint folder and the state files among the words of a command; a word can be a state's name.

    Raises:
        UsageError: two of them are folders, a name is that of no state, or it is open which checkpoint's.
    """
    # Beside a checkpoint a word is a state, also where a folder happens to have its name.
    folders = [word for word in words if (word / CONFIG).is_file()] or [word for word in words if word.is_dir()]
    paths = [word for word in words if word not in folders]
    if len(folders) > 1:
        raise UsageError(f"`{folders[0]}` and `{folders[1]}` are both folders", f"name state files: {usage}")
    model = folders[0] if folders else None
    if any(map(names_state, paths)):
        model = model or model_here()
        paths = [known_state(model, str(path)) if names_state(path) else path for path in paths]
    return model, paths


def refuse_swapped(model: object, others: Iterable[object], usage: str) -> None:
    """Refuse a word in MODEL's place that is no checkpoint folder where one of the other words is one.

    `usage` is what to type, with `{}` for the two words in their right order.

    Raises:
        UsageError: they are swapped.
    """
    if names_model(str(model)):
        return
    for other in map(str, others):
        if os.path.isfile(os.path.join(other, CONFIG)):
            what = f"`{other}` is a checkpoint folder, and stands where `{model}` should"
            raise UsageError(what, f"type: {usage.format(quoted(other), quoted(model))}")


def names_model(word: str) -> bool:
    """Return whether a word is a folder, or has a state beside it."""
    return bool(word) and (os.path.isdir(word) or sidecar_path(Path(word)).is_file())
