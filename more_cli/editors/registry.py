"""Editors by name: `@editor` registers one in this process, an entry point makes it known to every command.

A package names its editors in its `pyproject.toml`, so that nothing is imported to list them:

    [project.entry-points."more.editors"]
    nearest = "my_package.nearest:Nearest"
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from pydantic import BaseModel

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import Editor
from more_cli.errors import DISTRIBUTION, UsageError
from more_cli.recipe.settings import apply_setting, filled
from more_cli.recipe.tables import Teaching
from more_cli.system import plugins
from more_cli.text import shorten

GROUP: Final = "more.editors"
"""Entry points of this group are editors."""

Made = TypeVar("Made", bound=Callable[..., Editor])
Tries = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class EditorOptions:
    """The checkpoint an editor is made for, and the settings that its user changed."""

    model: Path
    recipe: str | None = None
    """For editors with a recipe; by default the architecture decides."""
    settings: tuple[str, ...] = ()
    """`key=value` on top of the editor's constants."""

    def with_settings(self, *settings: str) -> EditorOptions:
        """Return the options with further settings."""
        return EditorOptions(self.model, self.recipe, (*self.settings, *settings))


@dataclass(frozen=True)
class EditorEntry:
    """An editor with its name on the command line."""

    name: str
    make: Callable[[EditorOptions], Editor]
    tries: Tries = ()
    """Settings that calibration tries after the default ones, in this order."""
    takes_recipe: bool = False
    """Whether a recipe can be chosen for it."""

    def with_recipe(self, recipe: str) -> EditorEntry:
        """Return the editor with this recipe, under the name `EDITOR@RECIPE`.

        Raises:
            UsageError: no recipe can be chosen for this editor.
        """
        name = f"{self.name}@{recipe}"
        if not self.takes_recipe:
            hint = f"name it `{self.name}`, or use `more@{recipe}`"
            raise UsageError(f"editor `{self.name}` takes no recipe", hint)
        if not recipe:
            raise UsageError(f"`{name}` names no recipe", f"for example {self.name}@default; see `more recipes list`")

        def make(options: EditorOptions) -> Editor:
            if options.recipe is not None:
                raise UsageError(f"editor `{shorten(name)}` has its recipe in its name", "drop --recipe")
            return self.make(replace(options, recipe=recipe))

        return replace(self, name=name, make=make)


EDITORS: dict[str, EditorEntry] = {}
"""Editors whose modules were imported; `entry_of` imports those of packages."""


def editor(name: str, *, tries: Tries = (), takes_recipe: bool = False) -> Callable[[Made], Made]:
    """Register an editor: a class, or a function that makes one of `EditorOptions`.

    A class takes nothing, or one pydantic model with its numbers, which `--set KEY=VALUE` changes. Calibration tries
    the settings of `tries` after the editor's own; with `takes_recipe`, `NAME@RECIPE` and `--recipe` choose constants.

    Raises:
        UsageError: the name holds an `@`, or the class takes something else.
    """
    if "@" in name:
        raise UsageError(f"editor `{name}`: the part after `@` names a recipe", "choose a name without it")

    def register(made: Made) -> Made:
        make = _maker(name, made) if inspect.isclass(made) else made
        EDITORS[name] = EditorEntry(name, make, tries, takes_recipe)
        if inspect.isclass(made):
            setattr(made, "name", name)  # noqa: B010 (mypy: any class)
        return made

    return register


def _maker(name: str, made: type) -> Callable[[EditorOptions], Editor]:
    """Return a function that makes an editor without a recipe."""
    numbers = _numbers_of(name, made)

    def make(options: EditorOptions) -> Editor:
        if options.recipe is not None:
            raise UsageError(f"editor `{name}` has no recipe", "drop --recipe; --set changes its numbers")
        teaching, settings = _taught(name, numbers.model_fields if numbers else (), options.settings)
        if numbers is None:
            if settings:
                hint = f"drop it; every editor has {', '.join(Teaching.model_fields)}"
                raise UsageError(f"editor `{name}` has no setting `{settings[0]}`", hint)
            return _teaching(made(), teaching)
        if scheme := open_checkpoint(options.model).scheme:
            what = f"`{options.model}` is quantised to {scheme}: editor `{name}` needs full-precision weights"
            raise UsageError(what, "name the checkpoint it was made from, or use editor `more`")
        listed = f"its keys are {', '.join((*numbers.model_fields, *Teaching.model_fields))}"
        chosen = filled(numbers, _values(settings), f"editor `{name}`", listed=listed, typed=settings)
        return _teaching(made(chosen), teaching)

    return make


def _taught(name: str, own: Collection[str], settings: Sequence[str]) -> tuple[Teaching, tuple[str, ...]]:
    """Return how settings say that an editor is taught, and all other settings.

    A key that the editor's `own` numbers have too is theirs.
    """
    keys = Teaching.model_fields.keys() - set(own)
    mine = tuple(setting for setting in settings if setting.partition("=")[0].strip() in keys)
    teaching = filled(Teaching, _values(mine), f"editor `{name}`", typed=mine)
    return teaching, tuple(setting for setting in settings if setting not in mine)


def _values(settings: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in settings:
        apply_setting(values, setting)
    return values


def _teaching(made: Editor, teaching: Teaching) -> Editor:
    made.teaching = teaching
    return made


def _numbers_of(name: str, made: type) -> type[BaseModel] | None:
    """Return the pydantic model that a class takes; None if it takes nothing."""
    needed = [
        parameter.name
        for parameter in inspect.signature(made).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    hints = get_type_hints(made.__init__)  # type: ignore[misc]
    models = [hint for key in needed if inspect.isclass(hint := hints.get(key)) and issubclass(hint, BaseModel)]
    if len(needed) > 1 or len(models) < len(needed):
        what = f"editor `{name}`: `{made.__qualname__}` takes {', '.join(f'`{key}`' for key in needed)}"
        raise UsageError(what, "an editor takes nothing, or one pydantic model with its numbers")
    return models[0] if models else None


def entry_of(name: str) -> EditorEntry:
    """Return an editor's entry; `EDITOR@RECIPE` is an editor with a shipped recipe, or with the recipe of a file.

    Raises:
        UsageError: there is no such editor, it cannot be imported, or it takes no recipe.
    """
    editor, at, recipe = name.partition("@")
    if editor in plugins.installed(GROUP):
        point = plugins.find(GROUP, editor)
        if editor not in EDITORS:
            plugins.load(point)
        if editor not in EDITORS:
            what = f"`{point.value}` of package `{plugins.owner_of(point)}` does not register `{editor}`"
            raise UsageError(what, f'write @editor("{editor}") above it')
    if editor in EDITORS:
        return EDITORS[editor].with_recipe(recipe) if at else EDITORS[editor]
    known = editor_names()
    near: Sequence[str] = difflib.get_close_matches(editor, known, 1)
    hint = f"did you mean `{near[0]}{at}{shorten(recipe)}`?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"unknown editor `{shorten(name)}`", hint)


def package_of(name: str) -> dict[str, str]:
    """Return name and version of the other package that brings an editor, so that its next version is measured anew."""
    points = plugins.installed(GROUP).get(name.partition("@")[0], ())
    return {point.dist.name: point.dist.version for point in points if point.dist and point.dist.name != DISTRIBUTION}


def editor_names() -> list[str]:
    """Return the names of all editors, in alphabetical order; none is imported."""
    return sorted({*EDITORS, *plugins.installed(GROUP)})


def tries(*several: tuple[str, ...], **values: Sequence[float | str]) -> Tries:
    """Return settings that change one constant each, then those of several.

    `__` in a name stands for the dot of a recipe's table.
    """
    single = tuple((f"{key.replace('__', '.')}={value}",) for key, listed in values.items() for value in listed)
    return single + several
