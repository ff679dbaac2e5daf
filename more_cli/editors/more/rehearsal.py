"""Which past edits are looked at again: those most at risk of being forgotten."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from more_cli.editors.past import Past
from more_cli.recipe import Rehearsal


def draw(past: Past, now: int, turn: int, settings: Rehearsal, taken: Collection[int] = ()) -> list[int]:
    """Return the numbers of the `settings.size` past edits most at risk, the least sure first.

    Risk is the last known margin, at most `cap`, minus `bonus` for every round (an edit's share of all draws) since
    it was last looked at, plus noise in [0, 1) that depends on seed, edit and draw alone, so that a replay draws the
    same. `now` is the number of the edit at hand, `turn` counts its draws; `taken` are left out.
    """
    past = past.without(taken)
    if not past or settings.size == 0:
        return []
    rounds = (now - past.at) * settings.size / len(past)
    noise = _noise((settings.seed, now, turn), len(past))
    risk = np.minimum(past.margins, settings.cap) - settings.bonus * rounds + noise
    chosen: list[int] = past.numbers[np.argsort(risk, kind="stable")[: settings.size]].tolist()
    return chosen


def pick(count: int, size: int, *key: int) -> list[int]:
    """Return `size` of the numbers below `count`, none twice, as the key decides."""
    return sorted(np.argsort(_noise(key, count), kind="stable")[:size].tolist())


def _noise(key: tuple[int, ...], n: int) -> npt.NDArray[np.float64]:
    # Raw Philox words: their values are fixed for good, numpy's higher-level draws may change between releases.
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(n)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
