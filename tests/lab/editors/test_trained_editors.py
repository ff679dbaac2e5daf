"""FT-L, FT-M and the LoRA editors, compared with plain torch on a tiny model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from more_cli.editors.base import EditContext, Editor, EditRequest
from more_cli.editors.past import LastScore, Past
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_lab.editors.finetune import FineTuneText, FineTuneVision
from more_lab.editors.lora import LoraAllEditor, LoraAllTuning, LoraEditor, LoraTuning
from more_lab.editors.training import Tuning
from support.editing import picture, requests

LAST = "model.language_model.layers.3.mlp.down_proj"
PROJECTOR = "model.multi_modal_projector"


def editors() -> list[Editor]:
    return [
        FineTuneText(Tuning(rate=1e-2)),
        FineTuneVision(Tuning(rate=1e-2)),
        LoraEditor(LoraTuning(steps=25, rate=1e-2)),
    ]


def adamw(runtime: Runtime, request: EditRequest, names: list[str], tuning: Tuning) -> dict[str, torch.Tensor]:
    """The same training as a researcher writes it: the whole sequence through the model, shifted labels."""
    model = copy.deepcopy(runtime.model)
    encoded = runtime.encode(request.query, request.target)
    inputs = runtime.batch([encoded]).inputs
    labels = torch.full_like(encoded.input_ids, -100)
    labels[encoded.target.start : encoded.target.stop] = encoded.input_ids[encoded.target.start : encoded.target.stop]
    weights = {name: model.get_parameter(name).requires_grad_() for name in names}
    optimiser = torch.optim.AdamW(weights.values(), lr=tuning.rate, weight_decay=0.0)
    for _ in range(tuning.steps):
        logits = model(**inputs, use_cache=False).logits[0]
        loss = cross_entropy(logits[:-1], labels[1:])
        if loss < tuning.stop:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: weight.detach() for name, weight in weights.items()}


@pytest.mark.parametrize(
    ("editor", "names"),
    [
        (FineTuneText, [f"{LAST}.weight"]),
        (FineTuneVision, [f"{PROJECTOR}.linear_{n}.{part}" for n in (1, 2) for part in ("weight", "bias")]),
    ],
)
def test_fine_tuning_is_adamw_of_plain_torch(runtime, tmp_path, editor, names) -> None:
    tuning, (request, *_) = Tuning(steps=6), requests(tmp_path, 1)
    made = editor(tuning)
    with made.attach(runtime):
        outcome = made.edit(request, EditContext())
    expected = adamw(runtime, request, names, tuning)
    assert set(made.state_dict()) == set(names), "these weights and no others are trained"
    assert outcome.writes == 6
    for name in names:
        assert not torch.equal(expected[name], runtime.model.get_parameter(name))
        torch.testing.assert_close(made.state_dict()[name], expected[name], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("editor", editors(), ids=lambda editor: editor.name)
def test_an_edit_is_learnt_and_can_be_removed_completely(runtime, tmp_path, editor) -> None:
    (request, *_) = requests(tmp_path, 1)
    batch = runtime.batch([runtime.encode(request.query, request.target)])
    before, modules = runtime.score(batch).logits, [name for name, _ in runtime.model.named_modules()]
    flags = [(name, value.requires_grad) for name, value in runtime.model.named_parameters()]
    random = torch.random.get_rng_state()
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, before), "an editor without edits changes no bit"
        outcome = editor.edit(request, EditContext())
        edited = runtime.score(batch)
        with runtime.base():
            assert torch.equal(runtime.score(batch).logits, before)
    assert outcome.status == "learnt"
    assert 0 < outcome.writes <= 25
    assert bool(edited.all_right()[0])
    assert torch.equal(runtime.score(batch).logits, before)
    assert [name for name, _ in runtime.model.named_modules()] == modules
    assert [(name, value.requires_grad) for name, value in runtime.model.named_parameters()] == flags
    assert torch.equal(torch.random.get_rng_state(), random)
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, edited.logits), "it comes back as it was"
    kept = editor.state_dict()
    editor.reset()
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, before)
    editor.load_state_dict(kept)
    with editor.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, edited.logits)
    editor.reset()


def test_a_right_edit_is_not_trained_on(runtime, tmp_path) -> None:
    editor, (request, *_) = FineTuneText(Tuning(steps=300, rate=1e-2, stop=0.5)), requests(tmp_path, 1)
    with editor.attach(runtime):
        editor.edit(request, EditContext())
        again = editor.edit(request, EditContext(2))
    assert (again.status, again.writes) == ("already-right", 0)


def test_training_the_vision_side_never_changes_answers_to_text(runtime, tmp_path) -> None:
    editor = FineTuneVision(Tuning(rate=1e-2))
    text = runtime.batch([runtime.encode(Query((), "what is in the image ?"), "7")])
    shown = runtime.batch([runtime.encode(Query((picture(tmp_path, "black"),), "what is in the image ?"), "7")])
    before, seen = runtime.score(text).logits, runtime.score(shown).logits
    with editor.attach(runtime):
        for number, request in enumerate(requests(tmp_path, 3), 1):
            editor.edit(request, EditContext(number))
        assert torch.equal(runtime.score(text).logits, before)
        assert not torch.equal(runtime.score(shown).logits, seen)


@pytest.mark.parametrize("steps", [1, 25])
def test_a_loss_that_is_not_finite_is_refused(runtime, tmp_path, monkeypatch, steps: int) -> None:
    def broken(optimiser: torch.optim.Optimizer) -> None:
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                parameter.data.fill_(torch.nan)

    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    editor, (request, *_) = FineTuneText(Tuning(steps=steps)), requests(tmp_path, 1)
    batch = runtime.batch([runtime.encode(request.query, request.target)])
    with editor.attach(runtime):
        before = runtime.score(batch).logits
        outcome = editor.edit(request, EditContext())
        assert (outcome.status, outcome.writes) == ("refused", 0)
        assert torch.isfinite(runtime.score(batch).logits).all()
        torch.testing.assert_close(runtime.score(batch).logits, before, atol=1e-5, rtol=1e-5)


def test_lora_all_trains_on_everything_before_it_is_asked(runtime, tmp_path) -> None:
    editor = LoraAllEditor(LoraAllTuning(steps=15, rate=1e-2, batch=2))
    asked = requests(tmp_path, 3)
    with editor.attach(runtime):
        for number, request in enumerate(asked, 1):
            past = Past.of({n: LastScore(0.0, n) for n in range(1, number)})
            editor.edit(request, EditContext(number, past, lambda n: asked[n - 1]))
        assert editor.catch_up() == 15 * 3, "cost: every correction in every epoch"
        assert editor.catch_up() == 0.0
        batch = runtime.batch([runtime.encode(request.query, request.target) for request in asked])
        assert runtime.score(batch).all_right().all()
        first = editor.state_dict()
    # Earlier training makes no difference: it starts from the initial values.
    other = LoraAllEditor(LoraAllTuning(steps=15, rate=1e-2, batch=2))
    with other.attach(runtime):
        for number, request in enumerate(asked, 1):
            past = Past.of({n: LastScore(0.0, n) for n in range(1, number)})
            other.edit(request, EditContext(number, past, lambda n: asked[n - 1]))
            other.catch_up()
        assert all(torch.equal(first[name], value) for name, value in other.state_dict().items())


def test_a_contradicted_correction_is_no_longer_trained_on(runtime, tmp_path: Path) -> None:
    editor = LoraAllEditor(LoraAllTuning(steps=1))
    asked = requests(tmp_path, 3)
    with editor.attach(runtime):
        editor.edit(asked[0], EditContext(1))
        editor.edit(asked[1], EditContext(2, Past.of({1: LastScore(0.0, 1)}), lambda n: asked[n - 1]))
        editor.edit(asked[2], EditContext(3, Past.of({2: LastScore(0.0, 2)}), lambda n: asked[n - 1]))
        assert editor.catch_up() == 2
