"""WISE on tiny models: distances, masks, routing and merges, and that it forgets without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.editors.base import EditContext, FitData
from more_cli.inputs.edits import Edit
from more_cli.inputs.edits import Probe as Question
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_lab.editors.wise.editor import WiseEditor, WiseTuning
from more_lab.editors.wise.side_memory import SideMemory, block_mask
from support.editing import picture, requests

FAR = Query((), "fox jumps over the lazy dog 0123456789")


def pool(folder: Path) -> list[Edit]:
    asked = (Question("is it a dog ?"), Question("what colour is it ?", (picture(folder, "black"),)))
    colours = ("yellow", "black", "orange", "pink")
    edits = [Edit(c, (picture(folder, c),), f"what is {c} ?", "7", locality=asked) for c in colours]
    return [*edits, Edit("text", (), "is it a dog ?", "a", locality=(Question("fox jumps over ?"),))]


def fitted(runtime: Runtime, folder: Path, **numbers: object) -> WiseEditor:
    editor = WiseEditor(WiseTuning.model_validate({"rate": 0.3, "unrelated": 4} | numbers))
    with editor.attach(runtime):
        editor.fit(FitData(pool(folder)))
    assert editor.empty, "edits that measure the unit are dropped"
    return editor


def test_a_distance_is_zero_before_an_edit_with_a_bias_too(model: Runtime, tmp_path: Path) -> None:
    editor = fitted(model, tmp_path, steps=1)
    with editor.attach(model):
        linear = model.model.get_submodule(editor.path)
        (inputs,) = editor.inputs([model.encode(requests(tmp_path, 1)[0].query)])
        memory = SideMemory(torch.zeros_like(linear.weight))
        assert memory.distance(inputs).item() == 0.0
        memory.delta = torch.randn(memory.delta.shape, generator=torch.Generator().manual_seed(0))
        there, here = inputs @ (linear.weight + memory.delta).T, inputs @ linear.weight.T
        if linear.bias is not None:
            there, here = there + linear.bias, here + linear.bias
        torch.testing.assert_close(memory.distance(inputs), (there - here).norm(dim=1).mean())


def test_an_edit_is_learnt_and_prompts_below_the_threshold_keep_every_bit(model: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = fitted(model, tmp_path), requests(tmp_path, 1)
    own = model.batch([model.encode(request.query, request.target)])
    both = model.batch([model.encode(FAR, request.target), model.encode(request.query, request.target)])
    before, unrelated = model.score(own).logits, model.score(both).logits
    with editor.attach(model):
        assert torch.equal(model.score(own).logits, before), "an editor without edits changes no bit"
        outcome = editor.edit(request, EditContext())
        assert outcome.status == "learnt"
        assert outcome.writes > 0
        assert editor.routes(both.sequences) == [None, 0]
        after = model.score(both).logits
        assert torch.equal(after[0], unrelated[0])
        assert not torch.allclose(after[1], unrelated[1])
        edited, kept = model.score(own).logits, editor.state_dict()
        answer = model.encode(request.query, request.target).target_ids
        assert model.generate([request.query], len(answer)) == [answer], "the effect lasts through an answer"
        with model.base():
            assert torch.equal(model.score(own).logits, before)
    assert torch.equal(model.score(own).logits, before)
    editor.reset()
    with editor.attach(model):
        assert torch.equal(model.score(own).logits, before)
    editor.load_state_dict(kept)
    with editor.attach(model):
        assert torch.equal(model.score(own).logits, edited)


def test_a_routed_prompt_is_answered_by_the_weight_itself(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = fitted(runtime, tmp_path, steps=5), requests(tmp_path, 1)
    batch = runtime.batch([runtime.encode(request.query, request.target)])
    with editor.attach(runtime):
        editor.edit(request, EditContext())
        assert editor.routes(batch.sequences) == [0]
        edited, path = runtime.score(batch).logits, editor.path
    weight = runtime.model.get_submodule(path).weight
    kept = weight.detach().clone()
    try:
        weight.data += editor.memories[0].delta
        torch.testing.assert_close(runtime.score(batch).logits, edited, atol=1e-4, rtol=1e-4)
    finally:
        weight.data.copy_(kept)


def test_only_entries_of_the_mask_change(runtime: Runtime, tmp_path: Path) -> None:
    editor, asked = fitted(runtime, tmp_path, mask=0.2, block=2, merge=5, steps=4), requests(tmp_path, 3)
    with editor.attach(runtime):
        for number, request in enumerate(asked, 1):
            editor.edit(request, EditContext(number))
    assert len(editor.memories) == 2, "a third edit starts the next block"
    for block, memory in enumerate(editor.memories):
        mask = block_mask(tuple(memory.delta.shape), 0.2, editor.tuning.seed, block)
        assert memory.delta[mask].any()
        assert not memory.delta[~mask].any()


def test_a_mask_leaves_as_many_inputs_as_published_or_all() -> None:
    assert [WiseTuning().share(inputs) for inputs in (384, 4_403, 11_008)] == [
        1.0,
        pytest.approx(0.5, abs=1e-3),
        pytest.approx(0.2),
    ]
    assert WiseTuning(mask=0.3).share(384) == 0.3


def test_changes_stay_within_the_bound(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = fitted(runtime, tmp_path, rate=100.0, bound=0.01, steps=5), requests(tmp_path, 1)
    with editor.attach(runtime):
        editor.edit(request, EditContext())
        weight = runtime.model.get_submodule(editor.path).weight
    largest = editor.memories[0].delta.abs().max().item()
    assert largest == pytest.approx(0.01 * weight.square().mean().sqrt().item())


def test_full_memories_are_merged(runtime: Runtime, tmp_path: Path) -> None:
    editor, asked = fitted(runtime, tmp_path, mask=0.2, block=1, merge=2, steps=4), requests(tmp_path, 4)
    counts = []
    with editor.attach(runtime):
        for number, request in enumerate(asked, 1):
            editor.edit(request, EditContext(number))
            counts.append(len(editor.memories))
    assert counts == [1, 1, 2, 2], "the second and the fourth edit fill a second memory, and two are merged"
    first = editor.memories[0]
    masks = [block_mask(tuple(first.delta.shape), 0.2, editor.tuning.seed, block) for block in (0, 1)]
    assert first.delta[masks[0] & ~masks[1]].any()
    assert first.delta[masks[1] & ~masks[0]].any()
    assert not first.delta[~masks[0] & ~masks[1]].any()


def test_without_retrieval_the_last_memory_alone_answers() -> None:
    for retrieve, expected in ((True, [0, 1]), (False, [None, 1])):
        editor = WiseEditor(WiseTuning(retrieve=retrieve))
        editor.memories = [SideMemory(torch.diag(torch.tensor(d)), 1.0) for d in ([2.0, 0.0], [0.0, 2.0])]
        assert [editor.route(inputs[None]) for inputs in torch.eye(2)] == expected


def test_the_route_is_the_same_whatever_the_target(runtime: Runtime, tmp_path: Path) -> None:
    editor, asked = fitted(runtime, tmp_path, block=2, steps=6), requests(tmp_path, 3)
    seen = set()
    with editor.attach(runtime):
        for number, request in enumerate(asked, 1):
            editor.edit(request, EditContext(number))
        for query in [FAR, *(request.query for request in asked)]:
            found = {tuple(editor.routes([runtime.encode(query, target)])) for target in ("7", "a dog", "x y z")}
            assert found == {tuple(editor.routes([runtime.encode(query)]))}
            seen |= found
    assert len(seen) > 1


def test_two_runs_give_equal_bytes_and_a_loaded_one_goes_on_equally(runtime: Runtime, tmp_path: Path) -> None:
    asked, states = requests(tmp_path, 4), []
    first = fitted(runtime, tmp_path, block=1, steps=4)
    for loaded in (False, True):
        editor = fitted(runtime, tmp_path, block=1, steps=4)
        assert all(torch.equal(value, editor.fitted()[name]) for name, value in first.fitted().items())
        for number, request in enumerate(asked, 1):
            if loaded:
                state, editor = editor.state_dict(), WiseEditor(editor.tuning)
                editor.load_state_dict(state)
                editor.load_fitted(first.fitted())
            with editor.attach(runtime):
                editor.edit(request, EditContext(number))
        states.append(editor.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_margins_raise_the_own_prompt_above_unrelated_ones(runtime: Runtime, tmp_path: Path) -> None:
    (request, *_), gaps = requests(tmp_path, 1), []
    for numbers in ({}, {"out_margin": 100.0, "in_margin": 0.0, "gap": 0.0}):
        editor = fitted(runtime, tmp_path, **numbers)
        with editor.attach(runtime):
            editor.edit(request, EditContext())
            (memory,) = editor.memories
            own, other = (
                memory.distance(inputs) for inputs in editor.inputs([*map(runtime.encode, (request.query, FAR))])
            )
        gaps.append(float(own / other))
    assert gaps[0] > 1.2 * gaps[1], "without margins nothing keeps the two apart"


def test_a_training_goes_on_while_a_margin_is_unmet(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("more_lab.editors.wise.editor.SETTLED", 1.0)
    monkeypatch.setattr("more_lab.editors.wise.editor.LOW", 0.5)
    editor, (request, *_), writes = fitted(runtime, tmp_path), requests(tmp_path, 1), []
    for unmet in (0.0, 1.0):
        monkeypatch.setattr(WiseEditor, "_margins", lambda *_, unmet=unmet: torch.tensor(unmet))
        with editor.attach(runtime):
            writes.append(editor.edit(request, EditContext()).writes)
        editor.reset()
    assert writes[0] < editor.tuning.steps == writes[1]


def test_a_loss_that_is_not_finite_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = fitted(runtime, tmp_path, steps=3), requests(tmp_path, 1)
    editor.load_fitted(editor.fitted() | {"unit": torch.tensor(torch.nan)})
    with editor.attach(runtime):
        outcome = editor.edit(request, EditContext())
    assert (outcome.status, outcome.writes) == ("refused", 0)
    assert editor.state_dict() == {}
