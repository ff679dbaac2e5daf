"""The file `more.toml` of a project: what commands take where neither an option nor the environment says it.

It lies in the working directory or beside a checkpoint. It comes with data that others made, so it can set the keys
below and nothing else, and it is read only where it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from more_cli.errors import MoreError, UsageError
from more_cli.store.names import is_name
from more_cli.text import check_strings, did_you_mean, shorten

FILE = "more.toml"
KEYS = {
    "model": 'the path of a checkpoint folder, such as "llava"',
    "state": 'the path of a state, such as "llava.ann.more", or its name',
    "recipe": 'the name of a recipe, such as "paper-llava", or the path of a .toml file',
    "gates": 'a list of gates, such as ["rel.gen_exact>=0.95"]',
    "anchors": 'the path of a file of questions, such as "anchors.jsonl"',
    "device": 'the name of a device, such as "cuda"',
}
"""Every key that the file can have, with what it takes."""
_PATHS = ("model", "state", "anchors")
_LIMIT = 1 << 16
"""Largest file that is read, bytes."""


class Setting(NamedTuple):
    """A value of a file, as commands take it: paths begin at the file's folder."""

    value: Any
    file: Path
    line: int

    @property
    def place(self) -> str:
        """File and line, as a message names them."""
        return f"{self.file}:{self.line}"


Settings = Mapping[str, Setting]


def settings_for(model: Path | None = None) -> Settings:
    """Return what the files say about a checkpoint, by default the one that the working directory's file names.

    The file in the working directory comes before the one beside the checkpoint. A file that names a checkpoint is
    about that one alone.

    Raises:
        UsageError: a file cannot be read, or has a key or a value that it cannot have; all of them are named.
    """
    here = _about(read_settings(Path(FILE)), model)
    if model is None and "model" in here:
        model = here["model"].value
    if model is None:
        return here
    beside = model.resolve().parent / FILE
    if beside == Path(FILE).resolve():
        return here
    return {**_about(read_settings(beside), model), **here}


def _about(found: Settings, model: Path | None) -> Settings:
    """Return the values, or none if they are about another checkpoint."""
    named = found.get("model")
    return {} if model and named and named.value.resolve() != model.resolve() else found


@contextmanager
def blamed_on(setting: Setting | None) -> Iterator[None]:
    """Let an error in the block say that the value comes from this file, if it comes from one.

    Raises:
        MoreError: of the same kind, with file and line.
    """
    try:
        yield
    except MoreError as error:
        if setting is None:
            raise
        raise type(error)(f"{setting.place}: {error.message}", error.hint) from None


def read_settings(path: Path) -> Settings:
    """Return the values of a file by key; none where there is no such file.

    Raises:
        UsageError: as `settings_for`.
    """
    if not path.is_file():  # a pipe of this name would never end
        return {}
    # Here, so that nothing is imported where there is no file.
    from more_cli.recipe.settings import parse_toml, toml_problem

    text = ""
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT + 1)
        if len(data) > _LIMIT:
            raise ValueError(f"larger than {_LIMIT >> 10} KiB")
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        values = parse_toml(text)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8", _HINT) from None
    except (OSError, ValueError) as error:
        raise UsageError(toml_problem(path, text, error), _HINT) from None
    found, problems, hints = dict[str, Setting](), list[str](), list[str]()
    for key, value in values.items():
        line = line_of(key, text) or 1
        if problem := _problem(key, value):
            what, hint = problem
            problems.append(f"{path}:{line}: {what}")
            hints.append(hint)
        else:
            found[key] = Setting(_resolved(key, value, path.parent), path, line)
    if problems:
        raise UsageError("\nerror: ".join(problems), hints[0])
    return found


_HINT = f"its keys are {', '.join(KEYS)}"


def _problem(key: str, value: object) -> tuple[str, str] | None:
    """Return what is wrong with a value, and a hint; None if it can be used."""
    if key not in KEYS:
        return f"there is no key `{shorten(key)}`", f"{did_you_mean(key, KEYS, 0.5)} {_HINT}".lstrip()
    texts = value if key == "gates" and isinstance(value, list) else [] if key == "gates" else [value]
    if (not texts and value != []) or not all(isinstance(text, str) and text for text in texts):
        return f"`{key}` cannot be {_shown(value)}", f"it takes {KEYS[key]}"
    try:
        check_strings(texts)
    except ValueError as error:
        return f"`{key}`: {error}", f"it takes {KEYS[key]}"
    return None


def _shown(value: object) -> str:
    return "a table" if isinstance(value, dict) else f"`{shorten(str(value))}`" if value != "" else "empty"


def line_of(key: str, text: str) -> int | None:
    """Return the line of a TOML file on which a key stands; None if it is written in a way that is not found."""
    word = re.escape(key)
    pattern = re.compile(rf"""^\s*\[*\s*["']?{word}["']?\s*[=.\]]""", re.MULTILINE)
    found = pattern.search(text)
    return text.count("\n", 0, found.end()) + 1 if found else None


def _resolved(key: str, value: Any, folder: Path) -> Any:
    """Return a value as commands take it."""
    if key in _PATHS:
        path = folder / value
        is_named = key == "state" and is_name(value) and not path.is_file()
        return Path(value) if is_named else path
    if key == "recipe" and ("/" in value or value.endswith(".toml")):
        return str(folder / value)
    return tuple(value) if key == "gates" else value
