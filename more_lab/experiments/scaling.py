"""Trends, medians and rolling means of numbers measured over a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from more_cli.evaluation.metrics import RESAMPLES, SEED, Estimate

Floats = npt.NDArray[np.float64]
WINDOW = 10
"""Edits in a rolling mean."""


@dataclass(frozen=True)
class Trend:
    """How a number changes over a stream, by least squares."""

    median: float
    growth: float
    """The slope times the number of edits, as a share of the median."""
    low: float
    """End of the 95 % bootstrap interval of `growth`, over edits; likewise `high`."""
    high: float
    n: int


def trend(values: Sequence[float], block: int = 1) -> Trend | None:
    """Return the trend of values from the first to the last, with `growth`'s blocks; None for fewer than three."""
    if len(values) < 3:
        return None
    median = float(np.median(values))
    share = 1 / median if median else 0.0
    slope, low, high = growth(values, block)
    return Trend(median, share * slope, share * low, share * high, len(values))


def growth(values: Sequence[float] | Floats, block: int = 1) -> tuple[float, float, float]:
    """Return slope times length, with its 95 % bootstrap interval over blocks of this many edits in a row.

    Values that come back after a number of edits need blocks of at least as many (Kuensch 1989).
    """
    y = np.asarray(values, dtype=np.float64)
    n, t = len(y), np.arange(len(y), dtype=np.float64)
    starts = np.random.default_rng(SEED).integers(0, n - block + 1, (RESAMPLES, -(-n // block), 1))
    samples = (starts + np.arange(block)).reshape(RESAMPLES, -1)[:, :n]
    # A resample of one edit alone has no slope.
    low, high = np.nanpercentile(_slope(t[samples], y[samples]), [2.5, 97.5])
    return n * float(_slope(t, y)), n * float(low), n * float(high)


def median(values: Sequence[float]) -> Estimate:
    """Return the median with its 95 % bootstrap interval; `values` must not be empty."""
    y = np.asarray(values, dtype=np.float64)
    samples = np.random.default_rng(SEED).integers(0, len(y), (RESAMPLES, len(y)))
    low, high = np.percentile(np.median(y[samples], axis=-1), [2.5, 97.5])
    return Estimate(float(np.median(y)), float(low), float(high), len(y), "bootstrap")


def rolling(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Return the mean of every value and those before it in a window."""
    y = np.asarray(values, dtype=np.float64)
    return [float(y[max(0, end - window) : end].mean()) for end in range(1, len(y) + 1)]


def _slope(t: Floats, y: Floats) -> Floats:
    """Return the least-squares slope along the last axis."""
    t = t - t.mean(axis=-1, keepdims=True)
    energy = (t * t).sum(axis=-1)
    slope: Floats = (t * (y - y.mean(axis=-1, keepdims=True))).sum(axis=-1) / np.where(energy > 0, energy, np.nan)
    return slope
