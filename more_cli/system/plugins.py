"""What installed packages bring: editors, commands, trackers, by entry points. Nothing is imported to list them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from more_cli.errors import DISTRIBUTION, MoreError, UsageError

Group = Literal["more.editors", "more.commands", "more.trackers"]


@cache
def installed(group: Group) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a group by name, in alphabetical order; several where packages took one name."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {}).setdefault(point.value, point)
    return {name: tuple(found[name].values()) for name in sorted(found)}


def find(group: Group, name: str) -> EntryPoint:
    """Return the entry point of a name.

    Raises:
        UsageError: two packages bring it. All other names go on working.
    """
    point, *others = installed(group)[name]
    if others:
        owners = sorted(map(owner_of, (point, *others)), key=lambda owner: (owner != DISTRIBUTION, owner))
        listed = " and ".join(f"`{owner}`" for owner in owners)
        raise UsageError(f"{listed} both bring `{name}` ({group})", f"uninstall `{owners[-1]}`, or rename it there")
    return point


def owner_of(point: EntryPoint) -> str:
    """Return the name of the package that brings something."""
    return point.dist.name if point.dist else point.module.partition(".")[0]


def load(point: EntryPoint) -> Any:
    """Import what an entry point names.

    Raises:
        UsageError: it cannot be imported, whatever the reason.
    """
    try:
        return point.load()
    except MoreError:
        raise
    except Exception as error:
        raise unusable(point, error) from error


def unusable(point: EntryPoint, error: Exception) -> UsageError:
    """Return the error for something that a package brings and that does not work."""
    problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    what = f"`{point.name}` of package `{owner_of(point)}` cannot be loaded: {problem}"
    return UsageError(what, f"its entry point is `{point.value}`; MORE_DEBUG=1 shows the traceback")
