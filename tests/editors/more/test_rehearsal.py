"""Which past edits are scored again, and what a stream remembers of them."""

import pytest

from more_cli.editors.base import EditRequest
from more_cli.editors.draws import pick
from more_cli.editors.memory import Memory
from more_cli.editors.more import rehearsal
from more_cli.editors.more.rehearsal import draw
from more_cli.editors.past import LastScore, Past


def past(margins: dict[int, float], at: int = 90) -> Past:
    return Past.of({number: LastScore(margin, at) for number, margin in margins.items()})


def test_the_least_sure_come_first() -> None:
    """Noise is below 1, so margins further apart than that decide alone."""
    margins = {number: float(number) for number in range(-50, 0, 2)}
    for now in range(91, 99):
        chosen = draw(past(margins), now, 0, 3)
        assert set(chosen) == {-50, -48, -46}


def test_beyond_the_cap_all_are_equally_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "BONUS", 0.0)
    margins = {number: 7.0 + number for number in range(40)}
    seen = {number for now in range(91, 191) for number in draw(past(margins), now, 0, 2)}
    assert len(seen) > 30


def test_an_edit_that_was_not_scored_for_long_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = Past.of({**past({number: 2.0 for number in range(1, 40)}, at=100), 40: LastScore(5.5, 1)})
    assert draw(edits, 101, 0, 4)[0] == 40
    monkeypatch.setattr(rehearsal, "BONUS", 0.0)
    assert 40 not in draw(edits, 101, 0, 4)


def test_draws_depend_on_their_key_alone() -> None:
    edits = past({number: 9.0 for number in range(100)})
    chosen = draw(edits, 5, 1, 8)
    assert chosen == draw(Past.of(dict(edits)), 5, 1, 8)
    assert all(chosen != draw(edits, *key, 8) for key in ((6, 1), (5, 2)))


def test_what_is_taken_or_absent_is_not_drawn() -> None:
    assert draw(Past.of({}), 1, 0, 8) == []
    assert draw(past({1: 0.0, 2: 0.0}), 3, 0, 0) == []
    assert draw(past({1: -9.0, 2: 0.0}), 3, 0, 8, taken=[1]) == [2]


def test_pick_is_without_repetition() -> None:
    assert pick(5, 9, 1, 2) == [0, 1, 2, 3, 4]
    chosen = pick(100, 10, 1, 2)
    assert len(set(chosen)) == 10
    assert chosen != pick(100, 10, 1, 3)


@pytest.fixture
def memory() -> Memory:
    def recall(number: int) -> EditRequest:
        raise AssertionError(number)

    return Memory(recall)


def test_an_edit_that_is_contradicted_is_forgotten(memory: Memory) -> None:
    memory.add(1, "picture and question", "red")
    memory.add(2, "another", "blue")
    assert set(memory.context(3, "picture and question", "red").past) == {1, 2}
    assert set(memory.context(3, "picture and question", "green").past) == {2}
    assert set(memory.context(3, "else", "x").past) == {1, 2}  # a refused edit 3 would have taken nothing away
    memory.add(3, "picture and question", "green")
    assert set(memory.context(4).past) == {2, 3}


def test_margins_are_the_last_seen(memory: Memory) -> None:
    memory.add(1, "a", "x")
    memory.update(1, [(1, 2.5)])
    memory.add(2, "b", "y")
    memory.update(2, [(2, 0.5), (1, 1.5), (7, 9.0)])
    assert memory.context(3).past == {1: LastScore(1.5, 2), 2: LastScore(0.5, 2)}
