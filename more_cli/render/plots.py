"""Plots as inline SVG: bars between 0 and 1 with their 95 % intervals, legible at the width of a phone."""

from __future__ import annotations

from collections.abc import Mapping

from more_cli.evaluation.metrics import Estimate
from more_cli.render.markup import Markup, element, joined

WIDTH = 330
"""User units across; about the pixels of a phone, so that text keeps its size there."""
_ROW = 36
_BAR = 10
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def bars(title: str, rows: Mapping[str, Estimate]) -> Markup:
    """Draw one bar per row with the interval as a whisker, label and value above it."""
    height = _ROW * len(rows) + 18
    return element(
        "svg",
        element("title", title),
        *(_row(label, value, _ROW * number) for number, (label, value) in enumerate(rows.items())),
        _axis(_ROW * len(rows)),
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_label=title,
    )


def _row(label: str, value: Estimate, top: int) -> Markup:
    bar, middle = top + 17, top + 17 + _BAR / 2
    low, high = _x(value.low), _x(value.high)
    return joined(
        element("text", label, x=0, y=top + 12),
        element("text", f"{value.value:.3f} (n {value.n})", x=WIDTH, y=top + 12, text_anchor="end"),
        element("rect", class_="track", x=0, y=bar, width=WIDTH, height=_BAR, rx=2),
        element("rect", class_="bar", x=0, y=bar, width=_x(value.value), height=_BAR, rx=2),
        element("path", class_="whisker", d=f"M{low} {middle}H{high}M{low} {bar}v{_BAR}M{high} {bar}v{_BAR}"),
    )


def _axis(top: int) -> Markup:
    return joined(
        *(
            element(
                "text",
                f"{tick:g}",
                x=_x(tick),
                y=top + 12,
                class_="tick",
                text_anchor="start" if tick == 0 else "end" if tick == 1 else "middle",
            )
            for tick in _TICKS
        )
    )


def _x(value: float) -> float:
    # A metric that is not finite has no bar.
    return round(WIDTH * min(max(value, 0.0), 1.0), 1) if value == value else 0.0
