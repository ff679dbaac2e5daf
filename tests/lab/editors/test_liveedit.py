"""LiveEdit: experts that are made, chosen and deleted one by one, and never by the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from more_cli.editors.base import EditContext, EditRequest, FitData
from more_cli.errors import StateError
from more_cli.inputs.edits import Edit
from more_cli.inputs.edits import Probe as Question
from more_cli.model.batches import Query
from more_cli.model.families import family_of
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_lab.editors.adapters.editor import AdapterTuning, DualEdit, DualTuning, VisEdit
from more_lab.editors.liveedit.editor import LiveEdit, LiveEditTuning
from more_lab.editors.liveedit.experts import ExpertNet, Mixture, Reps, similarities, soft_weights
from more_lab.editors.liveedit.losses import KINDS, LOCALITY, Draw, divergence, soft_routing
from support.editing import picture
from support.tiny_families import make_family

SMALL = {"width": 16, "iterations": 300, "rate": 3e-3, "batch": 4, "variants": 0}
QUESTIONS = ("what is in the image ?", "what colour is it ?")
COLOURS = ("red", "blue", "green", "white")
TARGETS = ("7", "fox", "a dog", "red", "9", "blue", "a cat", "two")


def corrections(folder: Path) -> list[Edit]:
    """Two questions about each of four images."""
    return [
        Edit(
            id=f"{colour}-{number}",
            images=(picture(folder, colour),),
            question=question,
            target=TARGETS[2 * place + number],
            rephrases=(f"tell me : {question}",),
            image_rephrases=(picture(folder, f"light{colour}" if colour in ("blue", "green") else colour),),
            locality=(
                Question("why is the sky blue ?", (), "x"),
                Question("is it a dog ?", (picture(folder, ("black", "yellow")[number]),), "no"),
            ),
        )
        for place, colour in enumerate(COLOURS)
        for number, question in enumerate(QUESTIONS)
    ]


@pytest.fixture(scope="module")
def edits(tmp_path_factory: pytest.TempPathFactory) -> list[Edit]:
    return corrections(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def weights(runtime: Runtime, edits: list[Edit]) -> dict[str, Tensor]:
    editor = LiveEdit(LiveEditTuning(**SMALL))
    with editor.attach(runtime):
        editor.fit(FitData(edits[:4]))
    return editor.fitted()


@pytest.fixture
def editor(weights: dict[str, Tensor]) -> LiveEdit:
    made = LiveEdit(LiveEditTuning(**SMALL))
    made.load_fitted(weights)
    return made


def learn(editor: LiveEdit, runtime: Runtime, edits: Sequence[Edit]) -> list[bool]:
    with editor.attach(runtime):
        return [editor.edit(EditRequest.of(edit), EditContext(n)).after.right for n, edit in enumerate(edits, 1)]


def logits(runtime: Runtime, editor: LiveEdit | None, edits: Sequence[Edit]) -> Tensor:
    batch = runtime.batch([runtime.encode(Query(edit.images, edit.question), edit.target) for edit in edits])
    if editor is None:
        return runtime.score(batch).logits
    with editor.attach(runtime):
        return runtime.score(batch).logits


def test_edits_are_learnt_and_told_from_others_about_the_same_image(runtime, editor, edits) -> None:
    batch = runtime.batch([runtime.encode(Query(edit.images, edit.question), edit.target) for edit in edits[:4]])
    before = runtime.score(batch).nll()
    learn(editor, runtime, edits[:4])
    with editor.attach(runtime):
        assert (runtime.score(batch).nll() < before / 2).all()
        routes = editor.routes([runtime.encode(Query(edit.images, edit.question)) for edit in edits[:4]])
    for edit, route in zip(edits, routes, strict=False):
        assert route is not None
        assert len(route.weights) == 2, "the sentinel keeps back the experts of the other image"
        own = editor.state_dict()["values"][editor.notes()["ids"].index(edit.id)]
        assert torch.equal(route.values[route.weights.argmax()], own), "and the question decides between those of one"
        assert route.weights.max() > 0.8


def test_leaving_the_model_restores_it_and_states_go_round(runtime, editor, edits) -> None:
    before = logits(runtime, None, edits)
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in runtime.model.modules()]
    random = torch.random.get_rng_state()
    assert torch.equal(logits(runtime, editor, edits), before), "an editor without edits changes no bit"
    learn(editor, runtime, edits[:3])
    edited = logits(runtime, editor, edits)
    assert not torch.equal(edited, before)
    assert torch.equal(logits(runtime, None, edits), before)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in runtime.model.modules()] == hooks
    assert torch.equal(torch.random.get_rng_state(), random)
    kept, notes, weights = editor.state_dict(), editor.notes(), editor.fitted()
    editor.reset()
    assert torch.equal(logits(runtime, editor, edits), before)
    other = LiveEdit(LiveEditTuning(**SMALL))
    other.load_fitted(weights)
    other.load_state_dict(kept)
    other.load_notes(notes)
    assert torch.equal(logits(runtime, other, edits), edited)
    for each in (editor, other):
        learn(each, runtime, edits[3:] if each is other else edits)
    assert torch.equal(logits(runtime, other, edits), logits(runtime, editor, edits)), "it continues identically"
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in editor.state_dict().items())


def test_answers_to_text_alone_change_no_bit(runtime, editor, edits) -> None:
    text = runtime.batch([runtime.encode(Query((), question), "7") for question in QUESTIONS])
    both = runtime.batch([runtime.encode(Query(images, QUESTIONS[0]), "7") for images in ((), edits[0].images)])
    before, mixed = runtime.score(text).logits, runtime.score(both).logits
    learn(editor, runtime, edits)
    with editor.attach(runtime):
        assert torch.equal(runtime.score(text).logits, before)
        after = runtime.score(both).logits
    assert torch.equal(after[0], mixed[0])
    assert not torch.equal(after[1], mixed[1])


def test_an_edit_without_an_image_is_refused(runtime, editor, edits) -> None:
    learn(editor, runtime, edits[:1])
    with editor.attach(runtime):
        outcome = editor.edit(EditRequest("text", Query((), "why ?"), "7"), EditContext(2))
    assert (outcome.status, outcome.writes) == ("refused", 0)
    assert "image" in outcome.reason
    assert editor.notes() == {"ids": [edits[0].id]}


def test_the_order_of_edits_changes_no_bit(runtime, editor, edits) -> None:
    learn(editor, runtime, edits)
    expected = logits(runtime, editor, edits)
    for order in (edits[::-1], edits[4:] + edits[:4]):
        editor.reset()
        learn(editor, runtime, order)
        assert torch.equal(logits(runtime, editor, edits), expected)


def test_a_deleted_edit_leaves_no_trace(runtime, editor, edits) -> None:
    learn(editor, runtime, edits[:3])
    expected, kept = logits(runtime, editor, edits), editor.state_dict()
    learn(editor, runtime, edits[3:4])
    assert not torch.equal(logits(runtime, editor, edits), expected)
    editor.forget(edits[3].id)
    editor.forget("never seen")
    assert torch.equal(logits(runtime, editor, edits), expected)
    assert all(torch.equal(value, kept[name]) for name, value in editor.state_dict().items())
    for edit in edits[:3]:
        editor.forget(edit.id)
    assert editor.state_dict() == {}
    assert torch.equal(logits(runtime, editor, edits), logits(runtime, None, edits))


def test_the_same_id_replaces_its_expert(runtime, editor, edits) -> None:
    learn(editor, runtime, edits[:2])
    expected = editor.state_dict()
    learn(editor, runtime, edits[:1])
    assert editor.notes() == {"ids": sorted(edit.id for edit in edits[:2])}
    assert all(torch.equal(value, expected[name]) for name, value in editor.state_dict().items())


def test_the_route_is_the_same_whatever_the_target(runtime, editor, edits, monkeypatch) -> None:
    learn(editor, runtime, edits)
    seen: list[Mixture | None] = []
    routes = editor.routes
    monkeypatch.setattr(editor, "routes", lambda prompts: seen.extend(found := routes(prompts)) or found)
    query = Query(edits[0].images, edits[0].question)
    with editor.attach(runtime):
        for target in (edits[0].target, "a dog and a cat", "x"):
            runtime.score(runtime.batch([runtime.encode(query, target)]))
        runtime.generate([query], 2)
    assert len(seen) == 4
    for route in seen:
        assert route is not None
        assert torch.equal(route.weights, seen[0].weights)
        assert torch.equal(route.values, seen[0].values)


def test_a_generated_answer_keeps_its_route(runtime, editor, edits) -> None:
    learn(editor, runtime, edits)
    with editor.attach(runtime):
        for edit in edits:
            query = Query(edit.images, edit.question)
            (answer,) = runtime.generate([query], 5)
            forced = runtime.score(runtime.batch([runtime.encode(query).followed_by(answer)]))
            assert forced.predicted()[0].tolist() == answer


def test_the_state_grows_with_every_edit(runtime, editor, edits) -> None:
    learn(editor, runtime, edits[:1])
    one = editor.footprint()
    learn(editor, runtime, edits[1:2])
    two = editor.footprint()
    assert (one.fixed, two.growing, one.fitted) == (0, 2 * one.growing, two.fitted)
    assert one.growing == 4 * (2 * 4 * SMALL["width"] + 2 * 4 * 64)


def test_a_fit_again_gives_the_same_bytes_and_restores_the_model(runtime, edits) -> None:
    tuning, made = LiveEditTuning(**SMALL | {"iterations": 3}), []
    before = logits(runtime, None, edits)
    for _ in range(2):
        editor = LiveEdit(tuning)
        with editor.attach(runtime):
            assert editor.fit(FitData(edits))["records"] == len(edits)
        made.append(editor.fitted())
    assert all(torch.equal(value, made[1][name]) for name, value in made[0].items())
    assert torch.equal(logits(runtime, None, edits), before)


@pytest.mark.parametrize(
    "editor", [LiveEdit(LiveEditTuning()), VisEdit(AdapterTuning(variants=3)), DualEdit(DualTuning(variants=3))]
)
def test_each_correction_is_also_trained_with_targets_of_others(edits, editor) -> None:
    made = editor.examples(edits)
    assert made[: len(edits)] == edits
    assert len(made) == 4 * len(edits)
    for place, edit in enumerate(made[len(edits) :]):
        own = edits[place % len(edits)]
        assert edit.target != own.target
        assert edit.target in TARGETS
        assert replace(edit, target=own.target) == own
    assert len({edit.target for edit in made[len(edits) :]}) > len(edits) / 2, "and not always the same one"
    assert editor.examples(edits) == made
    assert editor.examples(edits[:1]) == edits[:1], "no other target is there"


def test_a_fit_needs_edits_with_images(runtime) -> None:
    editor = LiveEdit(LiveEditTuning())
    with editor.attach(runtime), pytest.raises(StateError, match="rephrases"):
        editor.fit(FitData([Edit("text", (), "why ?", "7")]))


def test_it_is_not_used_before_it_is_fitted(runtime, edits) -> None:
    editor = LiveEdit(LiveEditTuning())
    with editor.attach(runtime), pytest.raises(StateError, match="not been fitted"):
        editor.edit(EditRequest.of(edits[0]), EditContext())


@pytest.mark.parametrize("family", ["blip-2", "qwen2_vl"])
def test_other_families_are_fitted_and_edited(family, edits) -> None:
    model, processor = make_family(family)
    runtime = Runtime(model, Prompter(processor, family_of(model.config.model_type)))
    before = logits(runtime, None, edits)
    editor = LiveEdit(LiveEditTuning(width=8, iterations=2, heads=2, batch=2))
    with editor.attach(runtime):
        editor.fit(FitData(edits[:3]))
    learn(editor, runtime, edits[:2])
    assert all(value.isfinite().all() for value in editor.state_dict().values())
    assert torch.equal(logits(runtime, None, edits), before)


# ---------------------------------------------------------------------------------------------------- formulas


@pytest.fixture
def net() -> ExpertNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ExpertNet(8, 5, width=4, heads=2, queries=3, rank=2)


def test_a_residual_is_the_weighted_sum_of_its_experts(net) -> None:
    draw = torch.Generator().manual_seed(1)
    states, weights = torch.randn(6, 8, generator=draw), torch.tensor([0.3, 0.9])
    keys, values = torch.randn(2, 2, 2, 8, generator=draw)
    expected = torch.zeros(6, 8)
    for weight, key, value in zip(weights, keys, values, strict=True):
        for position, state in enumerate(states):
            expected[position] += weight * value.T @ torch.relu(key @ net.norm(state))
    torch.testing.assert_close(net.residual(states, Mixture(weights, keys, values)), expected)


def test_scores_are_mean_products_and_weights_shrink_with_them(net) -> None:
    draw = torch.Generator().manual_seed(1)
    inputs, edits = torch.randn(2, 3, 4, generator=draw), torch.randn(5, 3, 4, generator=draw)
    scores = similarities(inputs, edits)
    for i, e in ((0, 0), (1, 3)):
        mean = sum(inputs[i, j] @ edits[e, j] for j in range(3)) / (3 * math.sqrt(4))
        torch.testing.assert_close(scores[i, e], mean)
    one = soft_weights(torch.tensor([0.7]))
    torch.testing.assert_close(one, torch.sigmoid(torch.tensor([0.7])))


def test_features_do_not_depend_on_padding_or_on_the_target(net) -> None:
    draw = torch.Generator().manual_seed(2)
    short, long = torch.randn(6, 8, generator=draw), torch.randn(9, 8, generator=draw)
    image = torch.tensor([False, True, True, True, False, False])
    other = torch.cat([image, torch.zeros(3, dtype=torch.bool)])
    alone = net.of_input(Reps.of([short[:5]], [image[:5]], [5]))
    together = net.of_input(Reps.of([short, long], [image, other], [5, 8]))
    for one, two in ((alone.vision, together.vision), (alone.text, together.text)):
        torch.testing.assert_close(one[0], two[0])


def test_draws_are_the_ones_of_the_paper() -> None:
    draws = [Draw.of(20, 8, 0, n) for n in range(300)]
    near = torch.cat([torch.as_tensor(draw.near) for draw in draws], 1)
    apart = torch.cat([torch.as_tensor(draw.apart) for draw in draws], 1)
    assert all(len(set(draw.records)) == 8 for draw in draws)
    assert {int(n) for draw in draws for n in draw.prefixes.ravel()} == set(range(9))
    assert bool(((near[0] == LOCALITY) == (near[1] == LOCALITY)).all()), "both of one neighbourhood"
    assert bool(((apart[0] == LOCALITY) != (apart[1] == LOCALITY)).all()), "one of each"
    shares = torch.bincount(near[0], minlength=KINDS) / near.shape[1]
    torch.testing.assert_close(shares, torch.tensor([1 / 3, 1 / 6, 1 / 6, 1 / 3]), atol=0.04, rtol=0)
    assert Draw.of(3, 8, 0, 0).records != Draw.of(20, 8, 0, 1).records
    assert len(Draw.of(3, 8, 0, 0).records) == 3, "a pool smaller than a batch"


def test_losses_are_least_where_they_should_be() -> None:
    right, wrong = 9 * (2 * torch.eye(4) - 1), 9 * (2 * torch.eye(4).roll(1, 0) - 1)
    assert soft_routing(right) < 0.01 < 5 < soft_routing(wrong)
    draw = torch.Generator().manual_seed(3)
    targets, mask = torch.zeros(1, 2, dtype=torch.long), torch.tensor([[False, True]])
    base, other = (Scored(torch.randn(1, 2, 5, generator=draw), targets, mask) for _ in range(2))
    p, q = other.log_probabilities()[0, 1], base.log_probabilities()[0, 1]
    torch.testing.assert_close(divergence(other, base), (p.exp() * (p - q)).sum())
    torch.testing.assert_close(divergence(other, base, from_base=True), (q.exp() * (q - p)).sum())
    assert divergence(base, base) == 0
