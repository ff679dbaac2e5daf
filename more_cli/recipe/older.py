"""Recipes of states that older versions made: keys that were renamed or became constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONSTANTS: dict[str, dict[str, Any]] = {
    "rehearsal": {"cap": 6.0, "bonus": 1.0, "seed": 0},
    "anchors": {"near": 8, "sweep": 32},
    "joint": {"size": 16},
}
"""Keys, by table, that are constants of the code now. Any other value is refused, as an unknown key is."""


def without_old_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe under the names that its keys have today.

    `guard` halved a step and then refused the edit; it is `halvings`. `batch` and `consolidation` are one table,
    `joint`; where they differ, `consolidation` counts.
    """
    values = dict(values)
    if isinstance(values.get("guard"), bool):
        guard = values.pop("guard")
        values.setdefault("halvings", 5 * guard)
    if "joint" not in values:
        old = [values.pop(name) for name in ("batch", "consolidation") if isinstance(values.get(name), Mapping)]
        values |= {"joint": {key: item for table in old for key, item in table.items()}} if old else {}
    for name, constants in CONSTANTS.items():
        if isinstance(table := values.get(name), Mapping):
            values[name] = {key: item for key, item in table.items() if constants.get(key) != item}
    return values
