"""Which new emblems and which facts each pool may use; there are only few of both."""

from __future__ import annotations

from world.emblems import KNOWN
from world.pools import Pool

# Positions among the new emblems, and among the facts; no two pools share one.
_EMBLEMS = {
    Pool.SAMPLE: range(0, 8),
    Pool.CALIBRATION: range(8, 38),
    Pool.EDITOR: range(38, 50),
    Pool.EVALUATION: range(50, 150),
}
_FACTS = {
    Pool.ANCHORS: range(0, 12),
    Pool.SAMPLE: range(12, 24),
    Pool.CALIBRATION: range(24, 40),
    Pool.EDITOR: range(40, 52),
    Pool.EVALUATION: range(52, 100),
}


def new_emblems(pool: Pool) -> range:
    """Indices into `emblems()` of the new emblems that this pool may show."""
    share = _EMBLEMS[pool]
    return range(KNOWN + share.start, KNOWN + share.stop)


def fact_share(pool: Pool) -> range:
    """Indices into `facts()` of the facts that this pool may ask about."""
    return _FACTS[pool]
