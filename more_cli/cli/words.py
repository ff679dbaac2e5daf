"""Words of a command that name a state and edits, in either order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from more_cli.errors import UsageError
from more_cli.store.target import Target, locate, sidecar_path


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


def names_model(word: str) -> bool:
    """Return whether a word is a folder, or has a state beside it."""
    return bool(word) and (os.path.isdir(word) or sidecar_path(Path(word)).is_file())
