"""Pools of scenes without overlap, and the counter-based random numbers behind every picture and sentence.

Everything in the world is a pure function of integers. `Dice` uses only raw Philox words, whose values numpy
guarantees; its higher-level methods (`integers`, `choice`, ...) may change between releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

WORLD = 20_260_411  # the seed of everything here
BLOCK = 64  # raw words fetched at a time


class Pool(IntEnum):
    """What a scene may be used for; a scene's seed starts with its pool, so no two pools share a scene."""

    TRAIN = 1  # training of the embedded models
    SCORE = 2  # the accuracy in the model card
    EDITOR = 3  # training of editors: MEND, SERAC, LiveEdit, data bases
    CALIBRATION = 4
    ANCHORS = 5
    EVALUATION = 6
    SAMPLE = 7  # the stream in sample_edits/


class Purpose(IntEnum):
    """What random numbers are for; different purposes are independent."""

    WORLD = 1
    SCENE = 2
    PICTURE = 3
    QUESTIONS = 4
    EPISODE = 5
    SELECTION = 6


class Dice:
    """Random numbers that depend only on a key of integers."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.Philox(np.random.SeedSequence((WORLD, *key)))
        self._words: list[int] = []

    def _word(self) -> int:
        if not self._words:
            self._words = self._bits.random_raw(BLOCK).tolist()
        return self._words.pop()

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return self._word() % n

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high], both included."""
        return low + self._word() % (high - low + 1)

    def chance(self, percent: int) -> bool:
        """True with a probability of `percent` in 100."""
        return self._word() % 100 < percent

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`, all equally likely."""
        return items[self._word() % len(items)]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """`n` different `items` in random order."""
        left = list(items)
        return [left.pop(self._word() % len(left)) for _ in range(n)]

    def words(self, n: int) -> npt.NDArray[np.uint64]:
        """`n` raw 64-bit words, shape [n]."""
        return self._bits.random_raw(n)
