"""The edits before one, with the last known margin of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class LastScore:
    """The last known margin of an edit."""

    margin: float
    """Lead of the least sure target token over the best other token, in logits; negative where it does not lead."""
    at: int
    """Number of the edit during which it was scored."""


@dataclass(frozen=True, eq=False)
class Past(Mapping[int, LastScore]):
    """The last score of each edit that stands, by its number; in three columns, so that numpy ranks all at once."""

    numbers: npt.NDArray[np.int64]
    """(n,), ascending."""
    margins: npt.NDArray[np.float64]
    at: npt.NDArray[np.int64]

    @classmethod
    def of(cls, scores: Mapping[int, LastScore]) -> Self:
        """Return these scores in columns."""
        rows = [(number, scores[number].margin, scores[number].at) for number in sorted(scores)]
        numbers, margins, at = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(numbers, np.int64), np.array(margins, np.float64), np.array(at, np.int64))

    def without(self, numbers: Collection[int]) -> Past:
        """Return the past without these edits."""
        if not numbers:
            return self
        kept = ~np.isin(self.numbers, list(numbers))
        return Past(self.numbers[kept], self.margins[kept], self.at[kept])

    def updated(self, margins: Mapping[int, float], now: int) -> Past:
        """Return the past with these margins, measured during edit `now`; margins of unknown edits are ignored."""
        found, at = self.margins.copy(), self.at.copy()
        for number, margin in margins.items():
            if (row := self._row(number)) is not None:
                found[row], at[row] = margin, now
        return Past(self.numbers, found, at)

    def __getitem__(self, number: int) -> LastScore:
        if (row := self._row(number)) is None:
            raise KeyError(number)
        return LastScore(float(self.margins[row]), int(self.at[row]))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._row(number) is not None

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __len__(self) -> int:
        return len(self.numbers)

    def _row(self, number: int) -> int | None:
        row = int(np.searchsorted(self.numbers, number))
        return row if row < len(self.numbers) and self.numbers[row] == number else None
