"""Rivals in M-ORE's loop: they write until an edit holds, look at earlier ones, and train on anchors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.editors.anchors import drift, make_anchor
from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.editors.outcome import score_edit
from more_cli.editors.past import LastScore, Past
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.recipe.files import load_recipe
from more_lab.editors.finetune import FineTuneText
from more_lab.editors.joint import JointEditor
from more_lab.editors.locate.alphaedit import AlphaEditor, AlphaEditTuning
from more_lab.editors.locate.memit import MemitEditor, MemitTuning
from more_lab.editors.locate.pool import Keys
from more_lab.editors.looped import Looped
from more_lab.editors.mend.editor import MendEditor, MendTuning
from more_lab.editors.training import Tuning
from support.editing import picture, requests
from support.locating import pool

RECIPE = load_recipe("default")
LOCATE = {"clamp": 8.0, "steps": 40, "neutral": 2}


def rivals() -> list[JointEditor]:
    """One of every way to write."""
    return [
        FineTuneText(Tuning(rate=1e-2)),
        AlphaEditor(AlphaEditTuning.model_validate({"share": 0.5} | LOCATE)),
        MemitEditor(MemitTuning.model_validate({"weight": 1e-3} | LOCATE)),
        MendEditor(MendTuning(iterations=2)),
    ]


def looped(inner: JointEditor, runtime: Runtime, folder: Path) -> Looped:
    editor = Looped(inner, RECIPE)
    if "fit" in editor.capabilities:
        with editor.attach(runtime):
            editor.fit(FitData(pool(folder)))
    return editor


def context(number: int, asked: list[EditRequest]) -> EditContext:
    past = Past.of({n: LastScore(0.0, n) for n in range(1, number)})
    return EditContext(number, past, lambda n: asked[n - 1])


def test_an_edit_is_trained_until_it_leads_by_the_margin_and_then_no_further(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = looped(FineTuneText(Tuning(rate=1e-2)), runtime, tmp_path), requests(tmp_path, 1)
    encoded = runtime.encode(request.query, request.target)
    with editor.attach(runtime):
        made = editor.edit(request, EditContext())
        held = score_edit(runtime, encoded).margin
        again = editor.edit(request, EditContext())
    assert 1 < made.writes < 25
    assert held >= RECIPE.margin
    assert (made.status, again.status, again.writes) == ("learnt", "already-right", 0)
    assert made.margins == {1: round(held, 3)}


@pytest.mark.parametrize("place", range(4), ids=["ft-l", "alphaedit", "memit", "mend"])
def test_a_past_edit_that_was_forgotten_is_written_again(runtime: Runtime, tmp_path: Path, place: int) -> None:
    asked = requests(tmp_path, 3)
    first = [runtime.encode(asked[0].query, asked[0].target)]
    editor, alone = looped(rivals()[place], runtime, tmp_path), rivals()[place]
    alone.load_fitted(editor.fitted())
    written = list[int]()
    write = editor.inner.write_together

    def spied(edits, anchors, work) -> None:
        written.append(sum(edit.target_ids == first[0].target_ids for edit in edits))
        write(edits, anchors, work)

    editor.inner.write_together = spied
    with editor.attach(runtime):
        outcome = editor.edit(asked[1], context(2, asked))
    assert set(outcome.margins) == {1, 2}, "the past edit was scored with the new one"
    assert sum(written) >= 1, "and written, since it was never learnt"
    assert outcome.writes == len(written) <= editor.inner.most_writes()


def test_anchors_move_less_where_a_write_trains_on_them(runtime: Runtime, tmp_path: Path) -> None:
    (request, *_) = requests(tmp_path, 1)
    questions = [Query((picture(tmp_path, colour),), "what is here ?") for colour in ("blue", "green", "white")]
    moved = []
    for held in (False, True):
        editor = looped(FineTuneText(Tuning(rate=1e-2)), runtime, tmp_path)
        with editor.attach(runtime):
            anchors = [make_anchor(runtime, query, None) for query in questions]
            if held:
                editor.hold(anchors, fresh=True)
            assert editor.edit(request, EditContext()).status == "learnt"
            scored = runtime.score(runtime.batch([anchor.encoded for anchor in anchors]))
            moved.append(float(drift(scored, anchors).mean()))
    assert moved[1] < moved[0]


@pytest.mark.parametrize("place", [1, 2], ids=["alphaedit", "memit"])
def test_anchors_join_the_second_moments_once(runtime: Runtime, tmp_path: Path, place: int) -> None:
    editor = looped(rivals()[place], runtime, tmp_path)
    before = Keys.of(editor.fitted())
    with editor.attach(runtime):
        anchors = [make_anchor(runtime, Query((picture(tmp_path, "blue"),), "what is here ?"), None)]
        editor.hold(anchors, fresh=True)
        once = editor.fitted()
        editor.hold(anchors, fresh=False)
        (keys,) = runtime.read([anchors[0].encoded], [(path, "input") for path in before.paths])
    after, again = Keys.of(once), Keys.of(editor.fitted())
    for path, key in zip(before.paths, keys, strict=True):
        own = key.double().T @ key.double() / len(key)
        torch.testing.assert_close(after.apart(path)["image"], (before.apart(path)["image"] + own) / 2)
        assert torch.equal(after.apart(path)["text"], before.apart(path)["text"]), "no anchor is a text alone"
        assert torch.equal(after.together(path), again.together(path))


def test_a_run_that_continues_takes_the_anchors_keys_from_the_base(runtime: Runtime, tmp_path: Path) -> None:
    (request, *_), (*_, memit, _) = requests(tmp_path, 1), rivals()  # it edits several layers
    editor = looped(memit, runtime, tmp_path)
    fit = editor.fitted()
    with editor.attach(runtime):
        anchors = [make_anchor(runtime, Query((picture(tmp_path, "blue"),), "what is here ?"), None)]
        editor.hold(anchors, fresh=True)
        assert editor.edit(request, EditContext()).writes
    once, state = Keys.of(editor.fitted()), editor.state_dict()
    again = Looped(rivals()[2], RECIPE)
    again.load_fitted(fit)
    again.load_state_dict(state)
    with again.attach(runtime):
        again.hold(anchors, fresh=False)
    continued = Keys.of(again.fitted())
    assert all(torch.equal(continued.together(path), once.together(path)) for path in once.paths)


def test_a_write_that_is_not_finite_is_taken_back(runtime: Runtime, tmp_path: Path) -> None:
    endless = Tuning.model_construct(rate=float("inf"))  # no user can set it
    editor, (request, *_) = looped(FineTuneText(endless), runtime, tmp_path), requests(tmp_path, 1)
    batch = runtime.batch([runtime.encode(request.query, request.target)])
    base = runtime.score(batch).logits
    with editor.attach(runtime):
        made = editor.edit(request, EditContext())
        assert torch.equal(runtime.score(batch).logits, base)
    assert (made.status, made.reason) == ("refused", "a write is not finite")
