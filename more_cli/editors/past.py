"""The edits before one, and how firmly each was last seen to hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Look:
    """What was seen the last time an edit was looked at."""

    margin: float
    """How far the least sure target token's logit led the best other one; negative where it did not lead."""
    at: int
    """Number of the edit during which that was."""


@dataclass(frozen=True, eq=False)
class Past(Mapping[int, Look]):
    """What was last seen of each edit that stands, by its number: three columns, so that many are weighed at once."""

    numbers: npt.NDArray[np.int64]
    """(n,), ascending."""
    margins: npt.NDArray[np.float64]
    at: npt.NDArray[np.int64]

    @classmethod
    def of(cls, looks: Mapping[int, Look]) -> Self:
        """Return these looks in columns."""
        rows = [(number, looks[number].margin, looks[number].at) for number in sorted(looks)]
        numbers, margins, at = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(numbers, np.int64), np.array(margins, np.float64), np.array(at, np.int64))

    def without(self, numbers: Collection[int]) -> Past:
        """Return the past as it would be without these edits."""
        if not numbers:
            return self
        kept = ~np.isin(self.numbers, list(numbers))
        return Past(self.numbers[kept], self.margins[kept], self.at[kept])

    def seen(self, margins: Mapping[int, float], now: int) -> Past:
        """Return the past after these margins were seen during edit `now`; those of other edits are passed over."""
        found, at = self.margins.copy(), self.at.copy()
        for number, margin in margins.items():
            if (row := self._row(number)) is not None:
                found[row], at[row] = margin, now
        return Past(self.numbers, found, at)

    def __getitem__(self, number: int) -> Look:
        if (row := self._row(number)) is None:
            raise KeyError(number)
        return Look(float(self.margins[row]), int(self.at[row]))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._row(number) is not None

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)

    def _row(self, number: int) -> int | None:
        row = int(np.searchsorted(self.numbers, number))
        return row if row < len(self.numbers) and self.numbers[row] == number else None
