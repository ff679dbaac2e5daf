"""Random draws that are the same on every machine and with every release of numpy; needs no torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SEED = 0
"""Of every draw that an editing run makes beside the basis: rehearsed edits, anchors of a write, watched anchors."""


def pick(count: int, size: int, *key: int) -> list[int]:
    """Return `size` different numbers below `count`, in order; the same key picks the same numbers."""
    return sorted(np.argsort(noise(key, count), kind="stable")[:size].tolist())


def noise(key: tuple[int, ...], n: int) -> npt.NDArray[np.float64]:
    """Return `n` numbers in [0, 1) for a key."""
    # Raw Philox words: their values are fixed for good, numpy's higher-level draws may change between releases.
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(n)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def watched_places(count: int, every: int) -> list[int]:
    """Return the places, of `count` anchors, of those that are watched: a random one of `every` neighbours, none if 0.

    More anchors change nothing for the places before.
    """
    places = [start + pick(every, 1, SEED, start)[0] for start in range(0, count, every)] if every else []
    return [place for place in places if place < count]
