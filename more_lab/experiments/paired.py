"""Two runs over the same edits, compared edit by edit: the difference, its interval, and edits that go up or down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from more_cli.evaluation.metrics import bootstrap
from more_cli.evaluation.names import full_names

Values = Mapping[str, Sequence[float | None]]
"""Values of one edit by the metric's full name, one per probe; None for one that was not finite."""

TIE = 1e-4
"""Values that differ by less count as the same: float32 scores depend that much on how probes are batched."""


@dataclass(frozen=True)
class Difference:
    """The second run minus the first, in one metric."""

    first: float
    """Mean over edits, each counted once for any number of probes; likewise `second`."""
    second: float
    difference: float
    low: float
    """End of the 95 % bootstrap interval of the mean difference over edits; likewise `high`."""
    high: float
    up: int
    """Edits whose value is higher in the second run, by `TIE` at least."""
    down: int
    same: int
    p: float
    """p-value of the exact two-sided sign test over the edits that differ."""

    @property
    def n(self) -> int:
        """Edits compared."""
        return self.up + self.down + self.same


def compare_edits(pairs: Sequence[tuple[Values, Values]]) -> tuple[dict[str, Difference], dict[str, str]]:
    """Compare two runs over the same edits in every metric; return also why others cannot be compared, by name."""
    found = {name for pair in pairs for values in pair for name in values}
    known = full_names()
    metrics, skipped = {}, {}
    for name in [*(name for name in known if name in found), *sorted(found.difference(known))]:
        values = [(first.get(name), second.get(name)) for first, second in pairs]
        reason = _incomparable(values)
        if reason:
            skipped[name] = reason
        else:
            both = [(_mean(one), _mean(other)) for one, other in values if one and other]
            metrics[name] = compare([one for one, _ in both], [other for _, other in both])
    return metrics, skipped


def compare(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two runs by one value per edit; both have the same edits in the same order, at least one."""
    changes = [b - a for a, b in zip(first, second, strict=True)]
    up, down = sum(change >= TIE for change in changes), sum(change <= -TIE for change in changes)
    return Difference(
        fmean(first),
        fmean(second),
        fmean(changes),
        *bootstrap(changes),
        up,
        down,
        len(changes) - up - down,
        sign_test(up, down),
    )


def sign_test(up: int, down: int) -> float:
    """Return the probability of a split at least this uneven if up and down are equally likely (exact, two-sided).

    On values of 0 and 1 this is McNemar's exact test.
    """
    n = up + down
    tail = sum(math.comb(n, k) for k in range(min(up, down) + 1))
    return min(1.0, 2 * tail / (1 << n))


def _incomparable(values: Sequence[tuple[Sequence[float | None] | None, Sequence[float | None] | None]]) -> str:
    """Return why a metric cannot be compared, or empty; edits that lack it in both runs do not matter."""
    if any(len(one or ()) != len(other or ()) for one, other in values):
        return "not measured on the same probes in both"
    if any(value is None or not math.isfinite(value) for pair in values for run in pair for value in run or ()):
        return "not finite everywhere"
    return ""


def _mean(values: Sequence[float | None]) -> float:
    return fmean(value for value in values if value is not None)
