"""MEND, compared with plain torch on tiny models."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_lab.editors.mend import editor as mend
from more_lab.editors.mend.editor import MendEditor, MendTuning, edited
from more_lab.editors.mend.lessons import Lessons
from support.editing import an_edit, assert_continues, picture, requests

TEXT = "model.language_model.layers"


def tuning(**values) -> MendTuning:
    return MendTuning(
        **{"layers": 2, "rank": 16, "iterations": 40, "rate": 1e-3, "alpha": 1e-3, "alpha_rate": 1e-3} | values
    )


def pool(folder: Path) -> list[Edit]:
    edits = [an_edit(folder)]
    for request in requests(folder, 3):
        (image,) = request.query.images
        rephrases = (f"so {request.query.question}",)
        edits.append(
            Edit(request.id, (image,), request.query.question, request.target, rephrases, (picture(folder, "black"),))
        )
    return edits


@pytest.fixture(scope="module")
def networks(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    editor = MendEditor(tuning())
    with editor.attach(runtime):
        editor.fit(FitData(pool(tmp_path_factory.mktemp("pool"))))
    return editor.fitted()


def with_networks(networks: dict[str, Tensor], **values) -> MendEditor:
    editor = MendEditor(tuning(**values))
    editor.load_fitted(networks)
    return editor


def gradients(runtime: Runtime, request: EditRequest, paths: list[str]) -> list[Tensor]:
    """The gradient of every weight by autograd, through the whole sequence and shifted labels."""
    model, encoded = copy.deepcopy(runtime.model), runtime.encode(request.query, request.target)
    weights = [model.get_submodule(path).weight.requires_grad_() for path in paths]
    labels = torch.full_like(encoded.input_ids, -100)
    labels[encoded.target.start : encoded.target.stop] = encoded.input_ids[encoded.target.start : encoded.target.stop]
    logits = model(**runtime.batch([encoded]).inputs, use_cache=False).logits[0]
    cross_entropy(logits[:-1], labels[1:]).backward()
    return [weight.grad for weight in weights]


def test_it_edits_the_ffn_weights_of_the_last_layers(runtime: Runtime, blip: Runtime) -> None:
    names = ("gate_proj", "up_proj", "down_proj")
    assert MendEditor(tuning()).modules(runtime) == [f"{TEXT}.{n}.mlp.{name}" for n in (2, 3) for name in names]
    assert [path.rpartition(".")[2] for path in MendEditor(tuning(layers=1)).modules(blip)] == ["fc1", "fc2"]


def test_factors_reproduce_the_autograd_gradient(model: Runtime, tmp_path: Path) -> None:
    runtime, (request, *_) = model, requests(tmp_path, 1)
    editor = MendEditor(tuning())
    with editor.attach(runtime):
        factors = editor.factors([runtime.encode(request.query, request.target)])
    for (u, delta), expected in zip(factors, gradients(runtime, request, editor.modules(runtime)), strict=True):
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(delta.T @ u, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-4)


def test_an_update_at_first_is_alpha_times_the_normalised_gradient(runtime: Runtime, tmp_path: Path) -> None:
    editor, (request, other, *_) = MendEditor(tuning(alpha=0.02)), requests(tmp_path, 2)
    with editor.attach(runtime):
        net = editor.fresh()
        seen = [editor.factors([runtime.encode(asked.query, asked.target)]) for asked in (other, request)]
        for factors in seen:
            for place, found in enumerate(factors):
                net.watch(place, *found)
        updates = editor.updates(net, seen[1])
    for shape in dict.fromkeys(net.shapes):  # the statistics are those of all weights of a shape
        places = [place for place, own in enumerate(net.shapes) if own == shape]
        rows = [torch.cat([factors[place][side] for factors in seen for place in places]) for side in (0, 1)]
        for place in places:
            u, delta = ((seen[1][place][side] - rows[side].mean(0)) / rows[side].std(0) for side in (0, 1))
            u, delta = u.nan_to_num(), delta.nan_to_num()
            torch.testing.assert_close(updates[place], 0.02 * delta.T @ u, atol=1e-3, rtol=1e-2)
            assert updates[place].abs().max() > 0.1


def test_a_functional_edit_is_differentiable_with_respect_to_the_networks(runtime: Runtime, tmp_path: Path) -> None:
    editor = MendEditor(tuning())
    with editor.attach(runtime):
        net, lessons = editor.fresh(), Lessons(runtime, pool(tmp_path))
        factors = editor.factors([lessons[0].request])
        for place, found in enumerate(factors):
            net.watch(place, *found)

        def loss() -> Tensor:
            with edited(editor.deltas, editor.updates(net, factors)):
                return sum(lessons.losses(lessons[0]))

        loss().backward()
        assert all(parameter.grad is not None for parameter in net.parameters())
        step = 1e-4
        for place in range(len(net.alpha)):
            slope, values = net.alpha.grad[place], []
            for sign in (1, -1):
                with torch.no_grad():
                    net.alpha[place] += sign * step
                    values.append(float(loss()))
                    net.alpha[place] -= sign * step
            torch.testing.assert_close(float(slope), (values[0] - values[1]) / (2 * step), rtol=0.1, atol=0.05)
        assert not any(delta.written for delta in editor.deltas.values()), "no edit is left behind"


def test_training_turns_an_update_that_ascends_into_one_that_learns(
    runtime: Runtime, tmp_path: Path, networks: dict[str, Tensor]
) -> None:
    untrained, (request, *_) = MendEditor(tuning(iterations=1, rate=1e-9, alpha_rate=1e-9)), requests(tmp_path, 1)
    with untrained.attach(runtime):
        untrained.fit(FitData(pool(tmp_path)))
        at_first = untrained.edit(request, EditContext())
    editor = with_networks(networks)
    with editor.attach(runtime):
        trained = editor.edit(request, EditContext())
    assert at_first.after.nll > at_first.before.nll, "no minus sign: alpha > 0 ascends"
    assert trained.after.nll < 0.5 * trained.before.nll
    assert trained.status == "learnt"
    assert (trained.writes, trained.passes) == (1, 3)


def test_a_killed_fit_ends_with_the_same_bytes(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits, kept = pool(tmp_path), {}
    whole, short = MendEditor(tuning(iterations=6)), tuning(iterations=6)
    with whole.attach(runtime):
        whole.fit(FitData(edits))

    def dies(*args: int) -> list[int]:
        if args[-1] == 4:
            raise KeyboardInterrupt
        return picked(*args)

    picked = mend.pick
    monkeypatch.setattr(mend, "pick", dies)
    save = FitData(edits, save=lambda make: kept.update({name: value.clone() for name, value in make().items()}))
    editor = MendEditor(short)
    with pytest.raises(KeyboardInterrupt), editor.attach(runtime):
        editor.fit(save)
    monkeypatch.undo()
    again = MendEditor(short)
    with again.attach(runtime):
        again.fit(FitData(edits, load=lambda: kept))
    assert whole.fitted().keys() == again.fitted().keys()
    assert all(torch.equal(value, again.fitted()[name]) for name, value in whole.fitted().items())


@pytest.mark.parametrize("accumulate", ["sum", "token_mean"])
def test_edits_add_up_or_are_averaged_over_token_rows(
    runtime: Runtime, tmp_path: Path, networks: dict[str, Tensor], accumulate: str
) -> None:
    editor = with_networks(networks, accumulate=accumulate)
    asked = requests(tmp_path, 2)
    with editor.attach(runtime):
        net, expected, rows = editor.fresh(), {}, dict.fromkeys(editor.deltas, 0)
        net.load_state_dict(networks)
        for number, request in enumerate(asked, 1):
            # At the weights as they are: the first edit has changed them.
            factors = editor.factors([runtime.encode(request.query, request.target)])
            for place, (path, (u, delta)) in enumerate(zip(editor.deltas, factors, strict=True)):
                expected[path] = expected.get(path, 0) + net.update(place, u, delta).detach()
                rows[path] += len(u)
            editor.edit(request, EditContext(number))
        for path, delta in editor.deltas.items():
            wanted = expected[path] / (rows[path] if accumulate == "token_mean" else 1)
            torch.testing.assert_close(delta.value, wanted, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("accumulate", ["sum", "token_mean"])
def test_a_stream_continues_from_its_state_and_can_be_removed(
    runtime: Runtime, tmp_path: Path, networks: dict[str, Tensor], accumulate: str
) -> None:
    asked = [*requests(tmp_path, 3), EditRequest("text", Query((), "what colour is it ?"), "red")]
    whole, first, second = (with_networks(networks, accumulate=accumulate) for _ in range(3))
    assert_continues(runtime, whole, first, second, asked)
    assert not whole.state_dict()


def test_a_write_that_is_not_finite_leaves_the_rows_of_the_mean(
    runtime: Runtime, tmp_path: Path, networks: dict[str, Tensor]
) -> None:
    editor, (request, *_) = with_networks(networks, accumulate="token_mean"), requests(tmp_path, 1)
    with editor.attach(runtime):
        editor.edit(request, EditContext())
        kept = editor.state_dict()
    editor.load_fitted(networks | {"alpha": torch.full_like(networks["alpha"], torch.inf)})
    with editor.attach(runtime):
        assert editor.edit(request, EditContext(2)).status == "refused"
        assert all(torch.equal(value, kept[name]) for name, value in editor.state_dict().items())


def test_a_lesson_weighs_each_kind_of_question_alike_and_uses_the_base_as_its_yardstick(
    runtime: Runtime, tmp_path: Path
) -> None:
    editor = MendEditor(tuning())
    with editor.attach(runtime):
        lessons = Lessons(runtime, [an_edit(tmp_path)])
        lesson = lessons[0]
        assert lesson.shares.tolist() == [0.5, 0.5, 1, 1, 1], "two rephrases, an image, a text and an image question"
        edit, locality = lessons.losses(lesson)
        nll = runtime.score(runtime.batch(lesson.asked)).nll()
        torch.testing.assert_close(edit, (nll[0] + nll[1]) / 2 + nll[2])
        torch.testing.assert_close(locality, torch.zeros(()), atol=1e-6, rtol=0)
        moved = {path: 0.05 * torch.randn(delta.value.shape) for path, delta in editor.deltas.items()}
        with edited(editor.deltas, list(moved.values())):
            _, locality = lessons.losses(lesson)
        assert locality > 0.01


def test_the_request_itself_is_asked_where_the_objective_says_so(runtime: Runtime, tmp_path: Path) -> None:
    edit = pool(tmp_path)[0]
    with MendEditor(tuning()).attach(runtime):
        plain, whole = (Lessons(runtime, [edit], request=asked)[0] for asked in (False, True))
    assert whole.changes == plain.changes + 1
    assert whole.asked[0] == whole.request
    assert whole.asked[1].target_ids == plain.asked[0].target_ids


def test_it_works_on_a_model_with_biases_and_query_tokens(blip: Runtime, tmp_path: Path) -> None:
    runtime, (request, *_) = blip, requests(tmp_path, 1)
    editor = MendEditor(tuning(iterations=30))
    batch = runtime.batch([runtime.encode(request.query, request.target)])
    before = runtime.score(batch).logits
    with editor.attach(runtime):
        editor.fit(FitData(pool(tmp_path)))
        outcome = editor.edit(request, EditContext())
    assert outcome.after.nll < outcome.before.nll
    assert torch.equal(runtime.score(batch).logits, before)
