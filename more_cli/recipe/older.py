"""Recipes of states that older versions made: keys that were renamed or became constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONSTANTS: dict[str, dict[str, Any]] = {
    "rehearsal": {"cap": 6.0, "bonus": 1.0, "seed": 0},
    "anchors": {"near": 8, "sweep": 32},
    "batch": {"size": 16},
    "consolidation": {"size": 16},
}
"""Keys, by table, that are constants of the code now. Any other value is refused, as an unknown key is."""


def without_old_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe under the names that its keys have today.

    `guard` halved a step and then refused the edit; it is `halvings`. `batch` and `consolidation` are one table,
    `joint`: with the margin of a consolidation, and the rounds of a batch, which were more.
    """
    values = {name: _without(CONSTANTS.get(name, {}), item) for name, item in values.items()}
    if isinstance(guard := values.get("guard"), bool):
        del values["guard"]
        values |= {"halvings": values.get("halvings", 5) if guard else 0}
    old = values.get("batch"), values.get("consolidation")
    if "joint" not in values and any(isinstance(table, Mapping) for table in old):
        batch, consolidation = (values.pop(name, {}) for name in ("batch", "consolidation"))
        rounds = {key: item for key, item in batch.items() if key == "rounds"}
        values["joint"] = {**batch, **consolidation, **rounds}
    return values


def _without(constants: Mapping[str, Any], table: Any) -> Any:
    """Return a table without keys that have the values of these constants; `true` is no number."""
    if not isinstance(table, Mapping):
        return table
    return {key: item for key, item in table.items() if isinstance(item, bool) or constants.get(key) != item}
