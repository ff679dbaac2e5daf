"""Plots as inline SVG, legible at the width of a phone: numbers between 0 and 1 with 95 % intervals, and courses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from more_cli.evaluation.metrics import Estimate
from more_cli.render.markup import Markup, element, joined

WIDTH = 330
"""Width in user units; about the pixels of a phone, so that text keeps its size there."""
_ROW = 36
_BAR = 10
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_HEIGHT, _LEFT, _TOP = 150, 30, 8
_APART = 30
"""Least units between two labels of an axis."""


class Plot(Protocol):
    """Something that can be drawn."""

    @property
    def title(self) -> str:
        """What it shows."""

    def draw(self) -> Markup:
        """Return the SVG."""


@dataclass(frozen=True)
class Bars:
    """One bar per row with the interval as a whisker, label and value above it."""

    title: str
    rows: Mapping[str, Estimate]

    def draw(self) -> Markup:
        """Return the SVG."""
        parts = [_row(label, value, _ROW * number) for number, (label, value) in enumerate(self.rows.items())]
        return _svg(self.title, _ROW * len(self.rows) + 18, *parts, _axis(_ROW * len(self.rows)))


@dataclass(frozen=True)
class Curve:
    """A line over the number of edits, on a logarithmic scale, and dots with whiskers."""

    title: str
    line: Sequence[float]
    """After the first edit, the second, and so on; at least one."""
    points: Mapping[int, Estimate]
    """By the number of edits."""

    def draw(self) -> Markup:
        """Return the SVG."""
        places = [(self._x(number), _y(value)) for number, value in enumerate(self.line, 1)]
        path = "M" + "L".join(f"{x} {y}" for x, y in places)
        dots = (self._dot(number, value) for number, value in self.points.items())
        return _svg(
            self.title,
            _TOP + _HEIGHT + 20,
            *_grid(),
            element("path", class_="line", d=path),
            *dots,
            *_labels((1, *self.points), len(self.line)),
        )

    def _dot(self, number: int, value: Estimate) -> Markup:
        x = self._x(number)
        return joined(
            element("path", class_="whisker", d=f"M{x} {_y(value.low)}V{_y(value.high)}"),
            element("circle", class_="dot", cx=x, cy=_y(value.value), r=4),
        )

    def _x(self, number: int) -> float:
        return _at(number, len(self.line))


@dataclass(frozen=True)
class Course:
    """A mean and a maximum over the number of edits, on a logarithmic scale, below a limit or above it."""

    title: str
    points: Sequence[tuple[int, float, float]]
    """Number of edits, mean and maximum, in order; at least one."""
    limit: float

    def draw(self) -> Markup:
        """Return the SVG."""
        top = _rounded_up(max(self.limit, *(largest for _, _, largest in self.points)))
        last = self.points[-1][0]
        parts = []
        for name, values in {
            "line": [(edits, largest) for edits, _, largest in self.points],
            "line thin": [(edits, mean) for edits, mean, _ in self.points],
        }.items():
            places = [(_at(edits, last), _y(value / top)) for edits, value in values]
            parts.append(element("path", class_=name, d="M" + "L".join(f"{x} {y}" for x, y in places)))
            parts.append(element("circle", class_="dot", cx=places[-1][0], cy=places[-1][1], r=3))
        limit = element("path", class_="limit", d=f"M{_LEFT} {_y(self.limit / top)}H{WIDTH}")
        labels = _labels((1, *marks(last)), last)
        return _svg(self.title, _TOP + _HEIGHT + 20, *_grid(top, _TICKS[::2]), limit, *parts, *labels)


def marks(last: int) -> list[int]:
    """Return the powers of ten below a number of edits, and the number itself."""
    return [10**power for power in range(len(str(last))) if 10**power < last] + [last]


def _rounded_up(value: float) -> float:
    """Return the least of 1, 2, 4 and 10 times a power of ten that is not below a value."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 4, 10) if value <= unit * step * 1.0001)


def _at(number: int, last: int) -> float:
    """Return the x of a number of edits on a logarithmic axis from 1 to the last one."""
    return round(_LEFT + 6 + (WIDTH - _LEFT - 12) * math.log(max(number, 1)) / math.log(max(last, 2)), 1)


def _labels(numbers: Iterable[int], last: int) -> Iterator[Markup]:
    """Yield labels with numbers of edits, the last one first, without those that would overlap."""
    right = float("inf")
    for number in sorted({*numbers, last}, reverse=True):
        x = _at(number, last)
        if right - x >= _APART:
            anchor = "end" if number == last > 1 else "middle"
            yield element("text", f"{number}", x=x, y=_TOP + _HEIGHT + 16, class_="tick", text_anchor=anchor)
            right = x


def _svg(title: str, height: int, *parts: Markup) -> Markup:
    return element(
        "svg",
        element("title", title),
        *parts,
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


def _grid(top: float = 1.0, ticks: Sequence[float] = _TICKS) -> Iterator[Markup]:
    for tick in ticks:
        y = _y(tick)
        yield element("path", class_="grid", d=f"M{_LEFT} {y}H{WIDTH}")
        yield element("text", f"{top * tick:g}", x=_LEFT - 4, y=y + 4, class_="tick", text_anchor="end")


def _x(value: float) -> float:
    return round(WIDTH * _share(value), 1)


def _y(value: float) -> float:
    return round(_TOP + _HEIGHT * (1 - _share(value)), 1)


def _share(value: float) -> float:
    # A metric that is not finite has no bar.
    return min(max(value, 0.0), 1.0) if value == value else 0.0
