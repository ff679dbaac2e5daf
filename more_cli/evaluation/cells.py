"""Means as cells of a table, the same in every command and page that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate


def value_cell(value: Estimate | None) -> str:
    """Return a value as a table cell; an empty one without a value."""
    return "" if value is None else f"{value.value:.3f}"


def estimate_cells(value: Estimate) -> tuple[str, str, int]:
    """Return value, interval and n as table cells."""
    return value_cell(value), value.between(), value.n
