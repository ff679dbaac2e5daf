"""GRACE on tiny models: what it replaces, on which prompts, and that it forgets without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.editors.base import EditContext, FitData
from more_cli.editors.outcome import EditScore
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_lab.editors import routed
from more_lab.editors.grace.editor import GraceEditor, GraceTuning
from support.editing import picture, requests

COLOURS = ("red", "blue", "green", "white", "black", "yellow")


def pool(folder: Path) -> list[Edit]:
    """Questions about pictures and one without, to be fitted on."""
    edits = [Edit(c, (picture(folder, c),), f"what is {c} ?", "7", ("why ?",)) for c in COLOURS]
    return [*edits, Edit("text", (), "is it a dog ?", "a")]


def fitted(runtime: Runtime, folder: Path, **numbers: object) -> GraceEditor:
    editor = GraceEditor(GraceTuning.model_validate({"quantile": 0.05, "steps": 15} | numbers))
    with editor.attach(runtime):
        editor.fit(FitData(pool(folder)))
    return editor


@pytest.mark.parametrize("replace", ["last", "prompt", "all"])
def test_an_edit_is_learnt_where_it_is_near_and_leaves_the_rest_bit_for_bit(
    model: Runtime, tmp_path: Path, replace: str
) -> None:
    editor, (request, *_) = fitted(model, tmp_path, replace=replace), requests(tmp_path, 1)
    far = model.batch([model.encode(Query((), "fox jumps over the lazy dog 0123456789"), "7")])
    own = model.batch([model.encode(request.query, request.target)])
    before, unrelated = model.score(own).logits, model.score(far).logits
    with editor.attach(model):
        assert torch.equal(model.score(own).logits, before), "an empty codebook changes no bit"
        outcome = editor.edit(request, EditContext())
        assert outcome.writes > 0
        assert outcome.after.nll < 0.8 * outcome.before.nll
        assert float(model.score(own).nll()[0]) == pytest.approx(outcome.after.nll)
        assert editor.routes(far.sequences) == [None]
        assert torch.equal(model.score(far).logits, unrelated), "outside of every ball"
        edited, kept = model.score(own).logits, editor.state_dict()
        (answer,) = model.generate([request.query], 4)
        forced = model.score(model.batch([model.encode(request.query).followed_by(answer)]))
        assert forced.predicted()[0].tolist() == answer, "the effect lasts through an answer"
        with model.base():
            assert torch.equal(model.score(own).logits, before)
    assert torch.equal(model.score(own).logits, before)
    editor.reset()
    with editor.attach(model):
        assert torch.equal(model.score(own).logits, before)
    editor.load_state_dict(kept)
    with editor.attach(model):
        assert torch.equal(model.score(own).logits, edited)


def test_the_route_is_the_same_whatever_the_target(runtime: Runtime, tmp_path: Path) -> None:
    editor, asked = fitted(runtime, tmp_path, steps=3), requests(tmp_path, 3)
    with editor.attach(runtime):
        for number, request in enumerate(asked, 1):
            editor.edit(request, EditContext(number))
        for request in asked:
            found = {
                tuple(editor.routes([runtime.encode(request.query, target)])) for target in ("7", "a dog", "x y z")
            }
            assert found == {tuple(editor.routes([runtime.encode(request.query)]))} != {(None,)}


def test_a_row_is_changed_only_if_it_has_a_route(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = fitted(runtime, tmp_path), requests(tmp_path, 1)
    texts = [Query((), "fox jumps over the lazy dog 0123456789"), request.query]
    batch = runtime.batch([runtime.encode(query, "7") for query in texts])
    before = runtime.score(batch).logits
    with editor.attach(runtime):
        editor.edit(request, EditContext())
        after = runtime.score(batch).logits
    assert torch.equal(after[0], before[0])
    assert not torch.allclose(after[1], before[1])


def test_two_runs_give_equal_bytes_and_a_loaded_one_goes_on_equally(runtime: Runtime, tmp_path: Path) -> None:
    asked, states = requests(tmp_path, 3), []
    first = fitted(runtime, tmp_path, start="cold", steps=5)
    for loaded in (False, True):
        editor = fitted(runtime, tmp_path, start="cold", steps=5)
        editor.load_fitted(first.fitted())
        for number, request in enumerate(asked, 1):
            if loaded:
                state, editor = editor.state_dict(), GraceEditor(editor.tuning)
                editor.load_state_dict(state)
                editor.load_fitted(first.fitted())
            with editor.attach(runtime):
                editor.edit(request, EditContext(number))
        states.append(editor.state_dict())
    assert len(states[0]["keys"]) > 0
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_what_is_right_gets_no_entry(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = EditScore(0.5, 1.0, True, torch.zeros(1, dtype=torch.long), 0.5)
    editor, (request, *_) = fitted(runtime, tmp_path), requests(tmp_path, 1)
    monkeypatch.setattr(routed, "score_edit", lambda runtime, encoded: right)
    with editor.attach(runtime):
        outcome = editor.edit(request, EditContext())
    assert (outcome.status, outcome.writes, editor.state_dict()) == ("already-right", 0, {})


def test_other_values_are_not_trained(runtime: Runtime, tmp_path: Path) -> None:
    editor, asked = fitted(runtime, tmp_path, quantile=0.001), requests(tmp_path, 2)
    with editor.attach(runtime):
        editor.edit(asked[0], EditContext(1))
        (first,) = editor.state_dict()["values"].clone()
        editor.edit(asked[1], EditContext(2))
    assert len(editor.codebook) == 2
    assert torch.equal(editor.codebook.values[0], first)


def test_a_loss_that_is_not_finite_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = fitted(runtime, tmp_path), requests(tmp_path, 1)
    editor.load_fitted({"radius": torch.tensor(1.0), "unit": torch.tensor(torch.inf)})
    with editor.attach(runtime):
        outcome = editor.edit(request, EditContext())
    assert (outcome.status, outcome.writes) == ("refused", 0)
    assert editor.state_dict() == {}


def test_the_radius_follows_the_size_of_the_activations(runtime: Runtime, tmp_path: Path) -> None:
    small, large = (fitted(runtime, tmp_path, quantile=q).fitted()["radius"] for q in (0.05, 0.9))
    assert 0 < small < large
