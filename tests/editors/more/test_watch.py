"""The harm budget on a tiny LLaVA: watched anchors, edits that move them, what such an edit ends as."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from more_cli.editors.anchors import Anchor, drift, make_anchor
from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.more import watch
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.more.watch import Watched, split
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.recipe.schema import Recipe
from support.editing import picture

QUESTION = "what is in the image ?"


def recipe(**anchors) -> Recipe:
    values = {"max_write": 1.0, "max_steps": 8, "criterion": "margin"}
    return Recipe.model_validate(values | {"anchors": {"size": 4, "watched": 2} | anchors})


def asked(runtime: Runtime, folder: Path) -> list[Anchor]:
    colours = ("white", "black", "yellow", "green", "blue", "purple", "orange", "gray")
    return [make_anchor(runtime, Query((picture(folder, colour),), QUESTION), None) for colour in colours]


def edited(runtime: Runtime, sites, folder: Path, **anchors) -> tuple[MoreEditor, EditOutcome, list[float]]:
    """Make one edit under a harm budget; return the editor, the outcome and the anchors' drift after it."""
    editor = MoreEditor.fresh(recipe(**anchors), sites)
    edit = EditRequest("e", Query((picture(folder, "red"),), QUESTION), "a dog")
    with editor.attach(runtime):
        held = asked(runtime, folder)
        editor.hold(held, fresh=True)
        outcome = editor.edit(edit, EditContext())
        moved = [float(drift(runtime.score(runtime.batch([anchor.encoded])), [anchor])) for anchor in held]
    return editor, outcome, moved


def test_one_anchor_of_each_block_is_watched_and_more_anchors_change_nothing() -> None:
    anchors = [object() for _ in range(24)]
    held, watched = split(anchors, 4)
    assert len(watched) == 6
    assert [place // 4 for place in watched] == list(range(6))
    assert held == {place: anchor for place, anchor in enumerate(anchors) if place not in watched}
    _, more = split([*anchors, *(object() for _ in range(30))], 4)
    assert {place: more[place] for place in watched} == watched
    assert split(anchors, 0) == (dict(enumerate(anchors)), {})


def test_the_nearest_are_those_with_the_most_similar_keys() -> None:
    watched = Watched({3: None, 5: None, 8: None}, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]))
    assert watched.nearest(torch.tensor([0.0, 1.0]), 2) == [5, 8]


def test_watched_anchors_take_no_part_in_writes(runtime, sites, tmp_path) -> None:
    """P knows their keys; B is what it is without them."""
    edit = EditRequest("e", Query((picture(tmp_path, "red"),), QUESTION), "a dog")
    states = []
    for watched in (2, 0):
        editor = MoreEditor.fresh(recipe(keys=True, watched=watched, max_drift=100.0), sites)
        with editor.attach(runtime):
            everything = asked(runtime, tmp_path)
            held, _ = split(everything, 2)
            editor.start_from(everything)
            editor.hold(everything if watched else list(held.values()))
            editor.edit(edit, EditContext())
        states.append(editor.state_dict())
    assert any(value.any() for name, value in states[0].items() if name.endswith(".B"))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_an_edit_within_the_budget_reports_the_drift_that_it_left(runtime, sites, tmp_path) -> None:
    _, outcome, moved = edited(runtime, sites, tmp_path, max_drift=100.0)
    assert outcome.status == "learnt"
    _, watched = split(moved, 2)
    assert outcome.drifts.keys() == watched.keys()
    for place, value in outcome.drifts.items():
        assert value == pytest.approx(moved[place], rel=0.02, abs=1e-4)


def test_an_edit_that_breaks_the_budget_is_refused_and_names_the_answer(runtime, sites, tmp_path) -> None:
    editor, outcome, moved = edited(runtime, sites, tmp_path, max_drift=1e-6)
    assert outcome.status == "refused"
    assert f"it would change the answer to `{QUESTION}`" in outcome.reason
    assert "`--set anchors.max_drift=2e-06` may help" in outcome.reason
    assert outcome.drifts == {}
    assert max(moved) == pytest.approx(0.0, abs=1e-5)
    assert not any(value.any() for name, value in editor.state_dict().items() if name.endswith(".B"))


def test_an_edit_is_written_again_with_the_anchors_it_moved(runtime, sites, tmp_path) -> None:
    """Between no budget and one that nothing meets there is one that only the second try meets."""
    _, free, _ = edited(runtime, sites, tmp_path, max_drift=100.0)
    worst = max(free.drifts.values())
    again = None
    for part in (0.9, 0.7, 0.5, 0.3):
        _, outcome, _ = edited(runtime, sites, tmp_path, max_drift=part * worst)
        if outcome.status != "refused":
            again = outcome
            assert max(outcome.drifts.values()) <= part * worst + 1e-4
    assert again is not None
    assert again.passes > free.passes, "both tries are counted"


def test_every_so_many_edits_all_watched_anchors_are_looked_at(runtime, sites, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(watch, "NEAR", 1)
    monkeypatch.setattr(watch, "SWEEP", 2)
    values = {}
    for number in (1, 2):
        editor = MoreEditor.fresh(recipe(max_drift=100.0), sites)
        edit = EditRequest("e", Query((picture(tmp_path, "red"),), QUESTION), "a dog")
        with editor.attach(runtime):
            editor.hold(asked(runtime, tmp_path), fresh=True)
            values[number] = len(editor.edit(edit, EditContext(number)).drifts)
    assert values == {1: 1, 2: 4}


def test_nearness_does_not_depend_on_what_is_written(runtime, sites, tmp_path) -> None:
    editor, _, _ = edited(runtime, sites, tmp_path, max_drift=100.0)
    before = editor._watched.directions
    with editor.attach(runtime):
        editor.hold(asked(runtime, tmp_path))
    torch.testing.assert_close(editor._watched.directions, before, atol=1e-6, rtol=1e-6)


def test_a_try_that_writes_nothing_reports_no_drift_of_the_try_before() -> None:
    moved = {3: SimpleNamespace(drift=0.5)}
    passes = SimpleNamespace(
        recipe=recipe(max_drift=0.1), tally=SimpleNamespace(written=True), before_edit=contextlib.nullcontext
    )
    found = watch.Watch(SimpleNamespace(moved=lambda *_: moved), passes, [3], before={3: 0.0})
    assert found.harm()
    assert found.drifts == {3: 0.5}
    passes.tally.written = False
    assert not found.harm()
    assert (found.drifts, found.harmed) == ({}, [])
