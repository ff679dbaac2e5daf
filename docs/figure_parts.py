"""What every figure shares: where results lie, colours and style, and the points that it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES, RESULTS = ROOT / "docs" / "img", ROOT / "tests" / "bench" / "results"
FIVE = ("Rel", "T-Gen", "M-Gen", "T-Loc", "M-Loc")

# Okabe and Ito's colours, which people with any colour vision can tell apart.
OURS, PART, PUBLISHED, LORA, OTHER = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#999999"
INK, FAINT = "#222222", "#D0D0D0"
STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": "white",  # the same card on a light and on a dark page
    "svg.fonttype": "none",
    "svg.hashsalt": "more",
}


@dataclass(frozen=True)
class Point:
    """One value of a figure with its 95 % interval, rounded to what a table shows."""

    panel: str
    row: str
    value: float
    low: float
    high: float
    n: int
    x: float = 0.0
    """Where it lies on the horizontal axis, in figures that have one."""


def point(panel: str, row: str, values: Sequence[float], n: int, x: float = 0.0, *, scale: float = 100.0) -> Point:
    """Return a point from a value and the ends of its interval."""
    value, low, high = (round(scale * float(number), 2) for number in values)
    return Point(panel, row, value, low, high, n, round(x, 1))


def panels(points: Iterable[Point]) -> dict[str, list[Point]]:
    """Return the points by panel, in order."""
    found: dict[str, list[Point]] = {}
    for one in points:
        found.setdefault(one.panel, []).append(one)
    return found
