"""`Memory`: which edits stand, and the last known margin of each."""

from __future__ import annotations

from more_cli.editors.base import EditRequest
from more_cli.editors.memory import Memory
from more_cli.editors.past import LastScore, Past


def recall(number: int) -> EditRequest:
    raise KeyError(number)


def test_the_last_margin_counts_however_often_it_is_read() -> None:
    asked, unasked = Memory(recall), Memory(recall)
    for memory in (asked, unasked):
        for number in range(1, 6):
            memory.add(number, f"s{number}", f"c{number}")
            memory.update(number, [(past, number + past / 10) for past in range(number, 0, -2)])
            if memory is asked:
                memory.context(number + 1)
    wanted = {
        1: LastScore(5.1, 5),
        2: LastScore(4.2, 4),
        3: LastScore(5.3, 5),
        4: LastScore(4.4, 4),
        5: LastScore(5.5, 5),
    }
    assert dict(asked.context(6).past) == dict(unasked.context(6).past) == wanted
    assert list(unasked.context(6).past) == [1, 2, 3, 4, 5]


def test_an_edit_that_no_longer_stands_is_not_in_the_past() -> None:
    memory = Memory(recall)
    memory.add(1, "subject", "a")
    memory.update(1, [(1, 1.0)])
    memory.add(2, "subject", "b")
    memory.update(2, [(1, 9.0), (2, 2.0), (7, 3.0), (0, 4.0), (-1, 5.0)])
    assert dict(memory.context(3).past) == {2: LastScore(2.0, 2)}
    assert dict(memory.context(3, "subject", "c").past) == {}


def test_the_past_is_a_mapping_that_never_changes() -> None:
    past = Past.of({5: LastScore(1.0, 7), 2: LastScore(-0.5, 6)})
    assert list(past.items()) == [(2, LastScore(-0.5, 6)), (5, LastScore(1.0, 7))]
    assert (2 in past, 3 in past, 9 in past, "2" in past, past.get(9)) == (True, False, False, False, None)
    seen = past.updated({5: 3.0, 4: 9.0}, now=8)
    assert dict(seen) == {2: LastScore(-0.5, 6), 5: LastScore(3.0, 8)}
    assert dict(past.without([2, 3])) == {5: LastScore(1.0, 7)}
    assert dict(past) == {2: LastScore(-0.5, 6), 5: LastScore(1.0, 7)}
    assert not Past.of({})
    assert 1 not in Past.of({})
