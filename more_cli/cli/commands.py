"""The commands by name, none of them imported before it runs: those of the tool, and those that packages bring.

A package adds a command with an entry point, a function that Typer can read or a Typer group:

    [project.entry-points."more.commands"]
    plot = "my_package.plot:plot"
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Final

from more_cli.errors import MoreError
from more_cli.system import plugins
from more_cli.system.plugins import installed, owner_of

GROUP: Final = "more.commands"
"""Entry points of this group are commands."""
PANELS = {
    "Start": ("demo", "ask", "recipes", "help"),
    "Correct": ("convert", "init", "edit", "anchors", "revert", "review"),
    "Work together": ("switch", "combine", "rebase", "diff"),
    "Measure": ("eval",),
    "Ship": ("merge", "export", "push"),
    "Audit": ("status", "log", "verify", "sign", "gc"),
}
"""The tool's commands, grouped by what one wants; `more NAME` is the module `cli/NAME.py`."""
_PLACES = {"eval": "evaluate:evaluate", "help": "topics:help_"} | {
    name: f"{name}:app" for name in ("recipes", "anchors", "log")
}
"""Where a command is that has not the name of its module."""


def own_commands() -> list[str]:
    """Return the names of the tool's commands."""
    return [name for names in PANELS.values() for name in names]


def names() -> list[str]:
    """Return the names of all commands, the tool's first; a package cannot take one of these."""
    return list(dict.fromkeys([*own_commands(), *installed(GROUP)]))


def panel_of(name: str) -> str:
    """Return the heading of a command in help: what it is for or, of another package, where it is from."""
    for panel, names in PANELS.items():
        if name in names:
            return panel
    point = installed(GROUP)[name][0]
    return "Laboratory" if point.module.startswith("more_lab.") else f"From {owner_of(point)}"


def load(name: str) -> Any:
    """Import a command: a function, or a Typer group.

    Raises:
        UsageError: it cannot be imported, or two packages bring it.
    """
    if name not in own_commands():
        return plugins.load(plugins.find(GROUP, name))
    module, _, attribute = _PLACES.get(name, f"{name}:{name}").partition(":")
    return getattr(import_module(f"more_cli.cli.{module}"), attribute)


def help_of(name: str) -> str:
    """Return the help of a command, or why it cannot be loaded; Typer need not read its options for that."""
    try:
        found = load(name)
    except MoreError as error:
        return error.message
    if not callable(found):
        return unusable(name, TypeError(f"{found!r} is not a callable object")).message
    return str(getattr(getattr(found, "info", None), "help", None) or inspect.getdoc(found) or "")


def unusable(name: str, error: Exception) -> MoreError:
    """Return the error for a command of a package that Typer cannot read."""
    return plugins.unusable(plugins.find(GROUP, name), error)
