"""GRACE's codebook: when entries are made, grow and share their room."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from more_lab.editors.grace.codebook import SAME, Codebook


def at(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


def placed(*steps: tuple[Tensor, tuple[int, ...]], radius: float = 1.0) -> Codebook:
    book = Codebook()
    for key, label in steps:
        book.place(key, torch.zeros(1), label, radius)
    return book


def test_a_far_key_gets_an_entry_of_its_own() -> None:
    book = placed((at(0.0), (1,)), (at(2.5), (2,)))
    assert book.radii == [1.0, 1.0]
    assert [book.find(at(x)) for x in (-0.9, 0.9, 1.2, 1.6, 3.6)] == [0, 0, None, 1, None]


def test_a_near_key_of_another_label_halves_the_room() -> None:
    book = placed((at(0.0), (1,)), (at(1.0), (2,)))
    assert book.radii == pytest.approx([0.5, 0.5], rel=1e-4)
    assert max(book.radii) < 0.5
    assert [book.find(at(x)) for x in (0.0, 1.0)] == [0, 1]


def test_a_ball_grows_to_a_key_of_the_same_label() -> None:
    book = placed((at(0.0), (1,)), (at(1.5), (1,)))
    assert book.radii == [1.5]
    assert book.place(at(0.3), torch.zeros(1), (1,), 1.0) == 0
    assert book.radii == [1.5], "a key inside changes nothing"


def test_a_ball_does_not_grow_over_one_of_another_label() -> None:
    book = placed((at(0.0, 0.0), (1,)), (at(0.0, 2.1), (2,)), (at(1.4, 0.0), (1,)))
    assert book.radii[0] == 1.0, "1.4 would reach into the other ball"
    assert len(book) == 3


def test_a_new_centre_is_cleared_of_a_large_ball_that_is_not_the_nearest() -> None:
    book = placed((at(0.0), (1,)), (at(1.9), (1,)), (at(2.85), (1,)), (at(2.0), (2,)))
    assert book.radii[0] < 1.0 + 1e-9
    assert book.find(at(2.0)) == len(book) - 1


def test_labels_are_tokens_and_not_their_mean() -> None:
    assert len(placed((at(0.0), (1, 3)), (at(0.5), (2, 2)))) == 2


def test_another_label_for_the_same_key_replaces_the_earlier() -> None:
    book = placed((at(0.0), (1,)))
    assert book.place(at(SAME / 2), at(7.0), (2,), 1.0) == 0
    assert (book.labels, book.radii, book.values[0].item()) == ([(2,)], [1.0], 7.0)


def test_an_entry_with_another_label_is_cleared_of_the_balls_that_its_own_had_grown_over() -> None:
    book = placed((at(0.0), (1,)), (at(2.125), (1,)), (at(-1.5), (1,)), (at(-2.25), (1,)))
    assert book.radii == [2.25, 1.0], "both have one label"
    assert book.place(at(0.0), at(7.0), (2,), 1.0) == 0
    assert sum(book.radii) <= 2.125


@settings(max_examples=60, deadline=None)
@example(2300842, 1, 1.5)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.floats(0.05, 3.0))
def test_no_ball_holds_a_centre_of_another_label(seed: int, width: int, radius: float) -> None:
    draw, book = random.Random(seed), Codebook()
    for _ in range(30):
        key = torch.tensor([draw.uniform(-2, 2) for _ in range(width)])
        entry = book.place(key, torch.zeros(1), (draw.randrange(4),), radius)
        assert book.find(key) == entry, "a placed key is answered by its own entry"
        for one in range(len(book)):
            for other, distance in enumerate(book.distances(book.keys[one])):
                if book.labels[one] != book.labels[other]:
                    assert book.radii[one] < distance
                    assert book.radii[one] + book.radii[other] <= distance * (1 + 1e-6)


def test_a_state_brings_everything_back() -> None:
    book = placed((at(0.0), (1, 3)), (at(0.7), (2,)), (at(5.0), (9,)))
    again = Codebook.of(book.state())
    assert (again.radii, again.labels) == (book.radii, book.labels)
    assert all(map(torch.equal, again.keys, book.keys))
    assert all(map(torch.equal, again.values, book.values))
    assert Codebook.of(Codebook().state()) == Codebook()
