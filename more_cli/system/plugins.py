"""What installed packages bring: editors and commands, by their entry points. Nothing is imported to list them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from more_cli.errors import UsageError

Group = Literal["more.editors", "more.commands"]


@cache
def installed(group: Group) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name.

    Raises:
        UsageError: two packages bring something of one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        known = found.setdefault(point.name, point)
        if known.value != point.value:
            owners = " and ".join(sorted(f"`{owner_of(each)}`" for each in (known, point)))
            raise UsageError(f"{owners} both bring `{point.name}` ({group})", "uninstall one of them")
    return found


def owner_of(point: EntryPoint) -> str:
    """Return the name of the package that brings something."""
    return point.dist.name if point.dist else point.module.partition(".")[0]


def load(point: EntryPoint) -> Any:
    """Import what an entry point names.

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        what = f"`{point.name}` of package `{owner_of(point)}` cannot be loaded: {error}"
        raise UsageError(what, f"reinstall it; its entry point is `{point.value}`") from error
