"""What plots show, and where it lies in them; `templates/plots.html` draws each kind."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from more_cli.evaluation.metrics import Estimate

WIDTH = 330
"""Width in user units; about the pixels of a phone, so that text keeps its size there."""
_HEIGHT, _LEFT, _TOP = 150, 30, 8
_APART = 30
"""Least units between two labels of an axis."""


@dataclass(frozen=True)
class Bars:
    """A bar per row: numbers between 0 and 1 with 95 % intervals."""

    kind: ClassVar = "bars"
    title: str
    rows: Mapping[str, Estimate]


@dataclass(frozen=True)
class Curve:
    """A line over the number of edits, and dots with 95 % intervals, between 0 and 1."""

    kind: ClassVar = "curve"
    title: str
    so_far: Sequence[float]
    """After the first edit, the second, and so on; at least one."""
    points: Mapping[int, Estimate]
    """By the number of edits."""

    @property
    def line(self) -> Mapping[int, float]:
        """The line by the number of edits."""
        return dict(enumerate(self.so_far, 1))

    @property
    def last(self) -> int:
        """The largest number of edits."""
        return len(self.so_far)

    @property
    def marks(self) -> Iterable[int]:
        """The numbers of edits that are named."""
        return self.points


@dataclass(frozen=True)
class Course:
    """A mean and a maximum over the number of edits, below a limit or above it."""

    kind: ClassVar = "course"
    title: str
    points: Sequence[tuple[int, float, float]]
    """Number of edits, mean and maximum, in order; at least one."""
    limit: float

    @property
    def top(self) -> float:
        """The value at the upper end: 1, 2, 4 or 10 times a power of ten."""
        most = max(self.limit, *(largest for _, _, largest in self.points))
        unit = 10.0 ** math.floor(math.log10(most))
        return next(unit * step for step in (1, 2, 4, 10) if most <= unit * step * 1.0001)

    @property
    def mean(self) -> Mapping[int, float]:
        """The mean as a part of `top`."""
        return {edits: mean / self.top for edits, mean, _ in self.points}

    @property
    def largest(self) -> Mapping[int, float]:
        """The maximum as a part of `top`."""
        return {edits: largest / self.top for edits, _, largest in self.points}

    @property
    def last(self) -> int:
        """The largest number of edits."""
        return self.points[-1][0]

    @property
    def marks(self) -> Iterable[int]:
        """The numbers of edits that are named."""
        return marks(self.last)


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn already."""

    kind: ClassVar = "picture"
    title: str
    png: bytes

    @property
    def data(self) -> str:
        """Its bytes in base 64."""
        return base64.b64encode(self.png).decode()


Plot = Bars | Curve | Course | Picture


def marks(last: int) -> list[int]:
    """Return the powers of ten below a number of edits, and the number itself."""
    return [10**power for power in range(len(str(last))) if 10**power < last] + [last]


def labels(numbers: Iterable[int], last: int) -> Iterator[tuple[int, float]]:
    """Yield numbers of edits with their x, the last one first, without those whose labels would overlap."""
    right = float("inf")
    for number in sorted({1, *numbers, last}, reverse=True):
        x = along(number, last)
        if right - x >= _APART:
            yield number, x
            right = x


def path(line: Mapping[int, float], last: int) -> str:
    """Return a line as the data of an SVG path."""
    return "M" + "L".join(f"{along(number, last)} {up(value)}" for number, value in line.items())


def along(number: int, last: int) -> float:
    """Return the x of a number of edits on a logarithmic axis from 1 to the last one."""
    return round(_LEFT + 6 + (WIDTH - _LEFT - 12) * math.log(max(number, 1)) / math.log(max(last, 2)), 1)


def across(share: float) -> float:
    """Return the x of a number between 0 and 1."""
    return round(WIDTH * _share(share), 1)


def up(share: float) -> float:
    """Return the y of a number between 0 and 1."""
    return round(_TOP + _HEIGHT * (1 - _share(share)), 1)


def _share(value: float) -> float:
    # A metric that is not finite has no bar.
    return min(max(value, 0.0), 1.0) if value == value else 0.0
