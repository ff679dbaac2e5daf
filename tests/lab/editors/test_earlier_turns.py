"""Rivals are fitted on what is scored: a question comes behind its earlier turns and their pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from more_cli.evaluation.probes import probes_of
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.inputs.turns import Turn
from more_cli.model.batches import Query
from more_lab.editors.ike.retrieval import asked_of
from more_lab.editors.liveedit.losses import inputs_of
from more_lab.editors.serac.examples import _queries

TURNS = (Turn("user", "what is it ?", 1), Turn("assistant", "a dog"))


def picture(number: int) -> ImageSource:
    return ImageSource(f"{number}.png", None, f"{number:064}")


EDIT = Edit(
    "e",
    (picture(1), picture(2)),
    "and here ?",
    "a cat",
    rephrases=("and there ?",),
    image_rephrases=(picture(3),),
    locality=(Probe("why ?", (picture(1), picture(4)), "because", turns=TURNS),),
    turns=TURNS,
)
SCORED = [probe.query for probe in probes_of(EDIT)]


def of_ike() -> Iterable[Query]:
    asked = asked_of([EDIT], shown=True)
    return [*asked.own, *(query for _, query in (*asked.inside, *asked.outside))]


@pytest.mark.parametrize(
    ("fitted_on", "scored"),
    [
        pytest.param(of_ike, SCORED, id="ike"),
        pytest.param(lambda: [query for query, _ in inputs_of(EDIT)], SCORED, id="liveedit"),
        pytest.param(lambda: _queries(EDIT), SCORED[:3], id="serac"),
    ],
)
def test_they_see_what_is_scored(fitted_on: Callable[[], Iterable[Query]], scored: list[Query]) -> None:
    assert list(fitted_on()) == scored
    assert all(query.turns == TURNS and query.images[0] == picture(1) for query in scored)
