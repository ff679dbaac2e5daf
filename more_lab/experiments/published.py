"""The numbers that the M-ORE paper prints, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from more_cli.errors import UsageError
from more_cli.text import did_you_mean, shorten

FILE = Path(__file__).with_name("published.json")
BACKBONES = {"llava": "LLaVA-v1.5", "blip-2": "BLIP2-OPT", "qwen2_vl": "Qwen2-VL", "qwen3_vl": "Qwen3-VL"}
"""The paper's backbones by `model_type`."""
EDITORS = {
    "FT-L": "ft-l",
    "FT-M": "ft-m",
    "MEND": "mend",
    "AlphaEdit": "alphaedit:last_prompt",
    "SERAC": "serac",
    "IKE": "ike:oracle",
    "LiveEdit": "liveedit",
    "M-ORE": "more:paper",
}
"""Our editors by the paper's names, in the order of its table."""


@dataclass(frozen=True)
class Printed:
    """One row of a table; what the table has one of is empty or 0."""

    backbone: str
    suite: str
    edits: int
    values: Mapping[str, float | str]
    """By the paper's column. Rel, T-Gen, M-Gen, T-Loc, M-Loc and Avg are in percent; orders of growth are text."""
    name: str
    """Of the editor, the variant or the seed."""


@cache
def published() -> dict[str, Any]:
    """Return the file of printed numbers."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def tables() -> list[str]:
    """Return the names of the tables."""
    return [name for name, table in published().items() if isinstance(table, dict)]


def table(name: str) -> list[Printed]:
    """Return the rows of a table.

    Raises:
        UsageError: there is no table of this name.
    """
    if name not in tables():
        hint = did_you_mean(name, tables()) or f"there are {', '.join(tables())}"
        raise UsageError(f"unknown table `{shorten(name)}`", hint)
    return [_printed(row) for row in published()[name]["rows"]]


def _printed(row: Mapping[str, Any]) -> Printed:
    name = next((str(row[key]) for key in ("editor", "variant", "seed") if key in row), "")
    return Printed(row.get("backbone", ""), row.get("suite", ""), row.get("edits", 0), row["values"], name)
