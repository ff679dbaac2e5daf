"""Which past edits are looked at again: those most at risk of being forgotten."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from more_cli.editors.base import Look
from more_cli.recipe import Rehearsal


def draw(past: Mapping[int, Look], now: int, turn: int, settings: Rehearsal, taken: Collection[int] = ()) -> list[int]:
    """Return the numbers of the `settings.size` past edits most at risk, the least sure first.

    Risk is the last known margin, at most `cap`, minus `bonus` for every round (an edit's share of all draws) since
    it was last looked at, plus noise in [0, 1) that depends on seed, edit and draw alone, so that a replay draws the
    same. `now` is the number of the edit at hand, `turn` counts its draws; `taken` are left out.
    """
    numbers = [number for number in past if number not in taken]
    if not numbers or settings.size == 0:
        return []
    margins = np.array([past[number].margin for number in numbers])
    age = now - np.array([past[number].at for number in numbers])
    rounds = age * settings.size / len(numbers)
    noise = _noise((settings.seed, now, turn), len(numbers))
    risk = np.minimum(margins, settings.cap) - settings.bonus * rounds + noise
    return [numbers[i] for i in np.argsort(risk, kind="stable")[: settings.size]]


def pick(count: int, size: int, *key: int) -> list[int]:
    """Return `size` of the numbers below `count`, none twice, as the key decides."""
    return sorted(np.argsort(_noise(key, count), kind="stable")[:size].tolist())


def _noise(key: tuple[int, ...], n: int) -> npt.NDArray[np.float64]:
    # Raw Philox words: their values are fixed for good, numpy's higher-level draws may change between releases.
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(n)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
