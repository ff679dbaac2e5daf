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
"""Keys, by table, that are constants of the code now. A state with any other value is refused."""
RENAMED = {
    "batch": "`batch` and `consolidation` are one table now: write [joint], or --set joint.margin=6",
    "consolidation": "`batch` and `consolidation` are one table now: write [joint], or --set joint.margin=6",
    "guard": "write `halvings = 5` for true, `halvings = 0` for false",
}
"""What to write today for a key that was renamed."""
DROPPED = "it is a constant of the code now: leave it out"


def advice_on(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first key of a user's recipe that there was once, and what to write today; None if there is none."""
    for name, advice in RENAMED.items():
        if name in values:
            return name, advice
    for name, constants in CONSTANTS.items():
        table = values.get(name)
        for key in table if isinstance(table, Mapping) else ():
            if key in constants:
                return f"{name}.{key}", DROPPED
    return None


def without_old_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a state's recipe under the names that its keys have today.

    `guard` halved a step and then refused the edit; it is `halvings`. `batch` and `consolidation` are one table,
    `joint`: with the margin of a consolidation, and the rounds of a batch, which were more.
    """
    values = {name: _without(CONSTANTS.get(name, {}), item) for name, item in values.items()}
    if isinstance(guard := values.get("guard"), bool):
        del values["guard"]
        values.setdefault("halvings", 5 * guard)
    batch, consolidation = values.get("batch"), values.get("consolidation")
    if "joint" not in values and isinstance(batch, Mapping) and isinstance(consolidation, Mapping):
        del values["batch"], values["consolidation"]
        rounds = {key: item for key, item in batch.items() if key == "rounds"}
        values["joint"] = {**batch, **consolidation, **rounds}
    return values


def _without(constants: Mapping[str, Any], table: Any) -> Any:
    """Return a table without keys that have the values of these constants; `true` is no number."""
    if not isinstance(table, Mapping):
        return table
    return {key: item for key, item in table.items() if isinstance(item, bool) or constants.get(key) != item}
