"""VisEdit and DualEdit: what they change, for which questions, and what they leave as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.errors import StateError
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query
from more_cli.model.families import family_of
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_lab.editors.adapters.editor import GATE, Adapter, AdapterTuning, DualEdit, DualTuning, VisEdit
from support.tiny_families import make_family

from .test_liveedit import corrections, logits

# Random weights in four layers: an adapter must act early to be heard.
SMALL = {"width": 32, "iterations": 120, "rate": 6e-3, "batch": 4, "depth": 0.1}


def made(name: str, **values) -> VisEdit:
    if name == "visedit":
        return VisEdit(AdapterTuning(**{**SMALL, **values}))
    return DualEdit(DualTuning(**{**SMALL, "text_depth": 0.3, "near": 0.99, **values}))


@pytest.fixture(scope="module")
def edits(tmp_path_factory: pytest.TempPathFactory) -> list[Edit]:
    return corrections(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module", params=["visedit", "dualedit"])
def fitted(request, runtime: Runtime, edits: list[Edit]) -> tuple[str, dict[str, Tensor]]:
    editor = made(request.param)
    with editor.attach(runtime):
        editor.fit(FitData(edits[:4]))
    return request.param, editor.fitted()


@pytest.fixture
def editor(fitted: tuple[str, dict[str, Tensor]]) -> VisEdit:
    editor = made(fitted[0])
    editor.load_fitted(fitted[1])
    return editor


def learn(editor: VisEdit, runtime: Runtime, edit: Edit) -> bool:
    with editor.attach(runtime):
        return editor.edit(EditRequest.of(edit), EditContext()).after.right


def test_an_adapter_is_masked_attention_to_the_edit() -> None:
    torch.manual_seed(0)
    adapter, h, s = Adapter(6, 4, 2).double(), torch.randn(3, 6).double(), torch.randn(5, 6).double()
    assert not adapter(h, s).any(), "an adapter that was not trained changes nothing"
    torch.nn.init.normal_(adapter.O.weight)
    size = h.square().mean().sqrt()
    x, y = h / size, s / s.square().mean().sqrt()
    q, k, v = (part(rows).view(-1, 2, 2) for part, rows in ((adapter.Q, x), (adapter.K, y), (adapter.V, y)))
    attention = torch.einsum("tnd,snd->nts", q, k).div(2**0.5).softmax(-1)
    taken = torch.einsum("nts,snd->tnd", attention, v).flatten(1)
    torch.testing.assert_close(adapter(h, s), adapter.influence(x) * adapter.O(taken) * size)


def test_each_edit_is_learnt_alone_and_takes_the_place_of_the_last(runtime: Runtime, editor: VisEdit, edits) -> None:
    before = logits(runtime, None, edits[:4])
    nll = runtime.score(runtime.batch([runtime.encode(Query.of(edits[0]), edits[0].target)])).nll()
    learn(editor, runtime, edits[0])
    with editor.attach(runtime):
        after = runtime.score(runtime.batch([runtime.encode(Query.of(edits[0]), edits[0].target)])).nll()
    assert float(after) < 0.7 * float(nll), "a model of random weights hears little"
    first = editor.state_dict()
    learn(editor, runtime, edits[2])
    alone = made(editor.name)
    alone.load_fitted(editor.fitted())
    learn(alone, runtime, edits[2])
    assert first.keys() == editor.state_dict().keys(), "its state does not grow"
    assert all(torch.equal(value, editor.state_dict()[name]) for name, value in alone.state_dict().items())
    assert torch.equal(logits(runtime, None, edits[:4]), before)
    kept = editor.state_dict()
    editor.reset()
    assert torch.equal(logits(runtime, editor, edits[:4]), before), "an editor without edits changes no bit"
    editor.load_state_dict(kept)
    assert torch.equal(logits(runtime, editor, edits), logits(runtime, alone, edits))


def test_visedit_changes_what_image_tokens_say_and_text_alone_never(runtime: Runtime, edits, fitted) -> None:
    name, weights = fitted
    if name != "visedit":
        pytest.skip("the other acts on text too")
    editor = made(name)
    editor.load_fitted(weights)
    text = runtime.batch([runtime.encode(Query((), "what is it ?"), "7")])
    before = runtime.score(text).logits
    learn(editor, runtime, edits[0])
    with editor.attach(runtime):
        assert torch.equal(runtime.score(text).logits, before)
        layer, shown = editor.working[1][0], runtime.encode(Query.of(edits[0]), edits[0].target)
        with runtime.base():
            ((plain,),) = runtime.read([shown], [(layer, "input")])
        seen = runtime.image_tokens(runtime.batch([shown]))[0]
        found = list[Tensor]()
        module = runtime.model.get_submodule(layer)
        hook = module.register_forward_pre_hook(lambda _, args: found.append(args[0][0].detach()))
        runtime.score(runtime.batch([shown]))
        hook.remove()
    moved = (found[0].float().cpu() - plain).abs().amax(dim=1) > 0
    assert torch.equal(moved, seen.cpu())


def test_dualedit_acts_where_the_question_is_near_the_correction(runtime: Runtime, edits, fitted) -> None:
    name, weights = fitted
    if name != "dualedit":
        pytest.skip("the other has no gate")
    editor = made(name)
    editor.load_fitted(weights)
    learn(editor, runtime, edits[0])
    asked = [runtime.encode(Query.of(edits[0])), runtime.encode(Query((), "why is the sky blue ?"))]
    with editor.attach(runtime):
        own, other = editor.routes(asked)
        cosines = editor.state_dict()[GATE]
    assert own is not None
    assert other is None
    assert cosines.dim() == 1
    everywhere = made(name, near=-1.0)
    everywhere.load_fitted(weights)
    everywhere.load_state_dict(editor.state_dict())
    with everywhere.attach(runtime):
        assert all(route is not None for route in everywhere.routes(asked))


def test_the_route_is_the_same_whatever_the_target_and_a_generation_keeps_it(
    runtime, editor, edits, monkeypatch
) -> None:
    learn(editor, runtime, edits[0])
    asked: list[int] = []
    real = editor.routes

    def noted(prompts):
        asked.extend(len(prompt.input_ids) for prompt in prompts)
        return real(prompts)

    with editor.attach(runtime):
        monkeypatch.setattr(editor, "routes", noted)
        for target in ("7", "a much longer answer"):
            runtime.score(runtime.batch([runtime.encode(Query.of(edits[0]), target)]))
        runtime.generate([Query.of(edits[0])], 3)
    assert len(set(asked)) == 1, "it sees the prompt alone, once a score and once a generation"
    assert len(asked) == 3


def test_padding_does_not_move_what_is_changed(runtime: Runtime, editor: VisEdit, edits) -> None:
    learn(editor, runtime, edits[0])
    own, longer = (runtime.encode(Query(edits[0].images, question), "7") for question in (edits[0].question, "so " * 9))
    with editor.attach(runtime):
        alone = runtime.score(runtime.batch([own])).logits[0]
        together = runtime.score(runtime.batch([own, longer])).logits[0]
    torch.testing.assert_close(alone, together[-len(alone) :], rtol=1e-3, atol=1e-3)


def test_what_it_cannot_do_is_refused(runtime: Runtime, editor: VisEdit, edits, tmp_path: Path) -> None:
    with editor.attach(runtime):
        outcome = editor.edit(EditRequest("text", Query((), "why ?"), "7"), EditContext())
    assert outcome.status == "refused"
    assert editor.state_dict() == {}
    fresh = made(editor.name)
    with fresh.attach(runtime), pytest.raises(StateError, match="has not been fitted"):
        fresh.edit(EditRequest.of(edits[0]), EditContext())
    with fresh.attach(runtime), pytest.raises(StateError, match="rephrases"):
        fresh.fit(FitData([Edit("text", (), "why ?", "7")]))


@pytest.mark.parametrize("name", ["visedit", "dualedit"])
@pytest.mark.parametrize("family", ["blip-2", "qwen2_vl"])
def test_other_families_are_fitted_and_edited(name: str, family: str, edits) -> None:
    model, processor = make_family(family)
    runtime = Runtime(model, Prompter(processor, family_of(model.config.model_type)))
    before = logits(runtime, None, edits)
    editor = made(name, width=8, heads=2, iterations=2, batch=2)
    with editor.attach(runtime):
        editor.fit(FitData(edits[:3]))
    learn(editor, runtime, edits[0])
    assert all(value.isfinite().all() for value in editor.state_dict().values())
    assert torch.equal(logits(runtime, None, edits), before)


@pytest.mark.parametrize("name", ["visedit", "dualedit"])
def test_a_fit_again_gives_the_same_bytes(runtime: Runtime, name: str, edits) -> None:
    once, again = (made(name, iterations=20) for _ in range(2))
    for editor in (once, again):
        with editor.attach(runtime):
            editor.fit(FitData(edits[:4]))
    assert all(torch.equal(value, again.fitted()[key]) for key, value in once.fitted().items())
