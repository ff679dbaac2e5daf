"""Means as cells of a table, the same in every command that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from more_cli.evaluation.metrics import Estimate


def cell(value: Estimate | None) -> str:
    """Return a value as a table cell."""
    return "" if value is None else f"{value.value:.3f}"


def estimate_cells(value: Estimate) -> tuple[str, str, int]:
    """Return value, interval and n as table cells."""
    return f"{value.value:.3f}", value.between(), value.n
