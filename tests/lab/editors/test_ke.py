"""KE, compared with plain torch on tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from more_cli.editors.base import EditContext, FitData
from more_cli.model.runtime import Runtime
from more_lab.editors.ke.editor import KeEditor, KeTuning
from more_lab.editors.ke.net import Gates
from more_lab.editors.mend.editor import edited
from more_lab.editors.mend.lessons import Lessons
from support.editing import assert_continues, requests

from .test_mend import gradients, pool


def tuning(**values) -> KeTuning:
    numbers = {"layers": 2, "width": 16, "iterations": 60, "rate": 1e-2, "alpha": -0.02, "alpha_rate": 1e-2}
    return KeTuning(**{**numbers, **values})


@pytest.fixture(scope="module")
def network(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    editor = KeEditor(tuning())
    with editor.attach(runtime):
        editor.fit(FitData(pool(tmp_path_factory.mktemp("pool"))))
    return editor.fitted()


def test_gates_are_those_of_the_paper_on_the_whole_gradient() -> None:
    torch.manual_seed(0)
    gates, h = Gates((5, 7), 4).double(), torch.randn(4).double()
    for parameter in gates.parameters():
        torch.nn.init.normal_(parameter)
    u, delta = torch.randn(3, 7).double(), torch.randn(3, 5).double()
    a, c, b, e, eta = gates.made(h).split((5, 7, 5, 7, 1))
    gradient = delta.T @ u
    gate = torch.outer(5 * torch.softmax(a, 0), 1 + c)
    expected = 2 * torch.sigmoid(eta) * (gate * gradient / gradient.norm() + torch.outer(5 * torch.softmax(b, 0), e))
    torch.testing.assert_close(gates(h, u, delta), expected)


def test_an_update_at_first_is_the_gradient_of_the_length_of_the_weight(model: Runtime, tmp_path: Path) -> None:
    editor, (request, *_) = KeEditor(tuning(alpha=-0.03)), requests(tmp_path, 1)
    with editor.attach(model):
        net = editor.fresh()
        factors = editor.factors([model.encode(request.query, request.target)])
        with torch.no_grad():
            updates = editor.updates(net, factors)
    paths = editor.modules(model)
    for path, update, gradient in zip(paths, updates, gradients(model, request, paths), strict=True):
        weight = model.model.get_submodule(path).weight.float().norm()
        torch.testing.assert_close(update, -0.03 * weight * gradient / gradient.norm(), rtol=1e-2, atol=1e-4)


def test_the_condition_depends_on_picture_question_and_target(runtime: Runtime, tmp_path: Path) -> None:
    editor, asked = KeEditor(tuning()), requests(tmp_path, 2)
    first, other = (runtime.encode(one.query, one.target) for one in asked)
    shown = runtime.encode(asked[0].query, asked[1].target)
    with editor.attach(runtime):
        net, found = editor.fresh(), []
        for encoded in (first, other, shown, first):
            editor.factors([encoded])
            found.append(net.condition(editor._read[0].float()))
    assert torch.equal(found[0], found[3])
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_every_weight_of_the_network_is_trained(runtime: Runtime, tmp_path: Path) -> None:
    editor = KeEditor(tuning())
    with editor.attach(runtime):
        net, lessons = editor.fresh(), Lessons(runtime, pool(tmp_path))
        for gates in net.nets["gates"]:
            torch.nn.init.normal_(gates.made.weight, std=0.1)
        with edited(editor.deltas, editor.updates(net, editor.factors([lessons[0].request]))):
            sum(lessons.losses(lessons[0])).backward()
        missing = [name for name, value in net.named_parameters() if value.grad is None or not value.grad.any()]
    assert missing == []


def test_a_fit_makes_edits_that_hold(runtime: Runtime, tmp_path: Path, network: dict[str, Tensor]) -> None:
    untrained, (request, *_) = KeEditor(tuning(iterations=1, rate=1e-9, alpha_rate=1e-9)), requests(tmp_path, 1)
    with untrained.attach(runtime):
        untrained.fit(FitData(pool(tmp_path)))
        at_first = untrained.edit(request, EditContext())
    editor = KeEditor(tuning())
    editor.load_fitted(network)
    with editor.attach(runtime):
        trained = editor.edit(request, EditContext())
    assert trained.after.nll < at_first.after.nll
    assert trained.after.nll < 0.5 * trained.before.nll


def test_updates_are_added_until_the_answer_is_right(runtime: Runtime, tmp_path: Path) -> None:
    (request, *_) = requests(tmp_path, 1)
    one = KeEditor(tuning(alpha=-0.01))
    with one.attach(runtime):
        fresh = {name: value.clone() for name, value in one.fresh().state_dict().items()}
        one.load_fitted(fresh)
        outcomes = [one.edit(request, EditContext())]
        while not outcomes[-1].after.right:
            outcomes.append(one.edit(request, EditContext()))
        needed, expected = len(outcomes), one.state_dict()
    assert {outcome.writes for outcome in outcomes} == {1}
    assert needed > 2
    for updates in (needed - 1, needed, needed + 3):
        several = KeEditor(tuning(alpha=-0.01, updates=updates))
        several.load_fitted(fresh)
        with several.attach(runtime):
            outcome = several.edit(request, EditContext())
        assert outcome.writes == min(updates, needed)
        assert outcome.after.right is (updates >= needed)
        if outcome.after.right:
            torch.testing.assert_close(several.state_dict(), expected)
        assert several.fit_constants() == one.fit_constants(), "the network is trained on one update"


def test_a_stream_continues_from_its_state_and_can_be_removed(
    runtime: Runtime, tmp_path: Path, network: dict[str, Tensor]
) -> None:
    def make() -> KeEditor:
        editor = KeEditor(tuning())
        editor.load_fitted(network)
        return editor

    assert_continues(runtime, make(), make(), make(), requests(tmp_path, 3))


def test_it_works_on_a_model_with_biases_and_query_tokens(blip: Runtime, tmp_path: Path) -> None:
    editor = KeEditor(tuning(layers=1, iterations=2))
    with editor.attach(blip):
        editor.fit(FitData(pool(tmp_path)))
        outcome = editor.edit(requests(tmp_path, 1)[0], EditContext())
    assert outcome.writes == 1
