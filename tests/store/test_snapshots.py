"""Which snapshots are kept as edits come."""

from __future__ import annotations

import itertools
import math

import pytest

from more_cli.store.snapshots import spread


def kept_after(edits: int, most: int, costs: dict[int, int] | None = None) -> list[int]:
    """Places of the snapshots after so many edits, the newest first; `costs` are those of places beyond 1."""
    costs, kept = costs or {}, list[int]()
    for newest in range(1, edits):

        def distance(place: int, newest: int = newest) -> int:
            return newest - place + sum(cost for at, cost in costs.items() if place < at <= newest)

        kept = [newest, *kept]
        kept = [kept[index] for index in spread([distance(place) for place in kept], distance(0), most)]
    return kept


@pytest.mark.parametrize("edits", [2, 3, 7, 25, 100, 1000])
def test_undoing_the_last_edits_replays_no_more_than_these(edits: int) -> None:
    kept = kept_after(edits, most=1000)
    assert kept[0] == edits - 1
    for undone in range(1, edits + 1):
        start = max((place for place in kept if place <= edits - undone), default=0)
        assert edits - undone - start <= undone


def test_their_number_grows_with_the_logarithm() -> None:
    for edits in (25, 100, 1000):
        assert len(kept_after(edits, most=1000)) <= 2 * math.log2(edits)


@pytest.mark.parametrize("most", [1, 4, 8])
def test_no_more_are_kept_than_allowed_and_the_newest_always(most: int) -> None:
    kept = kept_after(500, most)
    assert (len(kept), kept[0]) == (most, 499)
    distances = [500 - place for place in kept]
    assert distances == sorted(distances)
    assert all(older > younger + 1 for younger, older in itertools.pairwise(distances[1:]))


def test_the_state_after_a_costly_line_stays_longer() -> None:
    """A consolidation at place 90 scores 80 edits: what comes after it must not need it again."""
    costly = {90: 80}
    for edits in range(92, 140):
        start = min(place for place in kept_after(edits, 1000, costly) if place >= 90)
        assert start - 90 <= edits - start
