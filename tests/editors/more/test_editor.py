"""M-ORE on a tiny LLaVA: what an edit writes, what it absorbs, and what it leaves alone."""

import pytest
import torch

from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.more.sites import Sites, rebuild_basis
from more_cli.errors import StateError
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from support.editing import recipe, requests
from support.equations import closed_form
from support.tiny import make_model


def run(editor: MoreEditor, runtime: Runtime, edits: list[EditRequest]):
    with editor.attach(runtime):
        return [editor.edit(edit, EditContext()) for edit in edits]


def test_an_edit_is_written_until_it_is_right(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    for outcome in run(editor, runtime, requests(tmp_path)):
        assert outcome.status == "learnt"
        assert outcome.after.right
        assert outcome.after.nll < outcome.before.nll
        assert 1 <= outcome.writes <= 20
        assert outcome.passes >= outcome.writes + 1
    assert set(editor.state_dict()) == {f"{site.name}.{letter}" for site in sites for letter in "BP"}


def test_the_first_write_is_eta_times_the_gradient_of_plain_torch(runtime, sites, tmp_path) -> None:
    """P_0 = I, so one paper write is B = -eta dL/dB with dL/dB = s dL/dW A^T."""
    eta = 0.05
    values = {"default": {"step": eta, "lambda": 2000.0}, "max_steps": 1, "stop_early": False, "halvings": 0}
    editor = MoreEditor.fresh(recipe(**values), sites)
    edit = requests(tmp_path, 1)[0]
    run(editor, runtime, [edit])

    model = make_model(runtime.prompter.tokenizer, text_layers=4, seed=0).eval()
    batch = runtime.batch([runtime.encode(edit.query, edit.target)])
    logits = model(**batch.inputs).logits[0, batch.keep]
    torch.nn.functional.cross_entropy(logits, batch.targets[0]).backward()
    for record in editor.records:
        weight_gradient = model.get_submodule(record.module).weight.grad
        expected = -eta * record.scale * weight_gradient @ rebuild_basis(record).T
        torch.testing.assert_close(editor.state_dict()[f"{record.name}.B"], expected, atol=1e-5, rtol=1e-3)


def test_p_is_the_closed_form_of_the_pooled_keys(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(default={"step": "polyak", "lambda": 3.0}), sites)
    keys: dict[str, list[torch.Tensor]] = {site.name: [] for site in sites}
    with editor.attach(runtime):
        for edit in requests(tmp_path):
            batch = runtime.batch([runtime.encode(edit.query, edit.target)])
            runtime.score(batch, record=True)
            for name, key in editor.sites.keys(batch).items():
                keys[name].append(key)
            editor.edit(edit, EditContext())
    for name, seen in keys.items():
        expected = closed_form(torch.stack(seen), 3.0, "unit")
        torch.testing.assert_close(editor.state_dict()[f"{name}.P"], expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("step", ["polyak", 0.05])
def test_both_normalisations_write_the_same(runtime, sites, tmp_path, step) -> None:
    ridge = 5.0
    scaled = step if step == "polyak" else step * (1 + ridge)
    unit = recipe(default={"step": step, "lambda": 1 + ridge}, max_steps=2, halvings=0, stop_early=False)
    paper = recipe(
        default={"step": scaled, "lambda": ridge}, max_steps=2, halvings=0, stop_early=False, normalisation="paper"
    )
    states = []
    for chosen in (unit, paper):
        editor = MoreEditor.fresh(chosen, sites)
        run(editor, runtime, requests(tmp_path))
        states.append(editor.state_dict())
    for site in sites:
        torch.testing.assert_close(states[0][f"{site.name}.B"], states[1][f"{site.name}.B"], atol=1e-4, rtol=1e-3)


def test_visual_keys_never_change_a_text_p(runtime, sites, tmp_path, monkeypatch) -> None:
    """The statistic of a text site depends on answer positions alone, not on the projector's keys."""

    def text_statistics(loudness: float) -> dict[str, torch.Tensor]:
        original = Sites.keys

        def louder(self, batch):
            keys = original(self, batch)
            visual = {site.name for site in sites if site.modality == "visual"}
            return {name: key * loudness if name in visual else key for name, key in keys.items()}

        monkeypatch.setattr(Sites, "keys", louder)
        # precondition off: B, and with it the next key, may not depend on P for this comparison
        editor = MoreEditor.fresh(recipe(precondition=False), sites)
        run(editor, runtime, requests(tmp_path))
        monkeypatch.setattr(Sites, "keys", original)
        return {site.name: editor.state_dict()[f"{site.name}.P"] for site in sites}

    quiet, loud = text_statistics(1.0), text_statistics(1000.0)
    for site in sites:
        if site.modality == "text":
            assert torch.equal(quiet[site.name], loud[site.name])


def test_text_keys_come_from_answer_positions_only(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    edit = requests(tmp_path, 1)[0]
    with editor.attach(runtime):
        batch = runtime.batch([runtime.encode(edit.query, edit.target)])
        runtime.score(batch, record=True)
        text = next(site for site in editor.sites if site.record.modality == "text")
        Z = text.branch._Z[0]
        assert Z.shape[1] > int(batch.answer.sum())
        torch.testing.assert_close(editor.sites.keys(batch)[text.record.name], Z[batch.answer].double().mean(0))


def test_a_right_edit_writes_nothing_but_its_key_is_absorbed(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(target_nll=50.0), sites)
    edit = requests(tmp_path, 1)[0]
    run(editor, runtime, [edit])
    before = editor.state_dict()
    (outcome,) = run(editor, runtime, [edit])
    after = editor.state_dict()
    assert (outcome.status, outcome.writes) == ("already-right", 0)
    for site in sites:
        assert torch.equal(before[f"{site.name}.B"], after[f"{site.name}.B"])
        assert not torch.equal(before[f"{site.name}.P"], after[f"{site.name}.P"])


def test_a_refused_edit_leaves_no_trace(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    edits = requests(tmp_path, 3)
    run(editor, runtime, edits[:2])
    before, records = editor.state_dict(), editor.records
    explosive = MoreEditor(
        recipe(default={"step": 1e30, "lambda_rel": 1.0}, max_write=1e30),
        editor.records,
        {site.name: before[f"{site.name}.B"] for site in sites},
        {site.name: before[f"{site.name}.P"] for site in sites},
    )
    (outcome,) = run(explosive, runtime, edits[2:])
    assert outcome.status == "refused"
    assert outcome.reason
    assert outcome.writes == 0
    assert outcome.after.nll == outcome.before.nll
    after = explosive.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert explosive.records == records


LONG = {"step": 40.0, "lambda": 1.0}
"""A step that raises the loss."""


def test_a_step_that_is_too_long_is_shortened_until_the_loss_falls(runtime, sites, tmp_path) -> None:
    (edit,) = requests(tmp_path, 1)
    ends = {}
    for halvings in (0, 10):
        editor = MoreEditor.fresh(recipe(default=LONG, halvings=halvings, max_steps=1), sites)
        (ends[halvings],) = run(editor, runtime, [edit])
    assert ends[0].after.nll > ends[0].before.nll
    assert ends[10].after.nll < ends[10].before.nll
    assert ends[10].passes > ends[0].passes, "the extra scores are counted"
    assert ends[10].cost > ends[0].cost


def test_the_next_write_starts_at_the_length_that_worked(runtime, sites, tmp_path, monkeypatch) -> None:
    shares: list[float] = []
    write = Sites.write
    monkeypatch.setattr(Sites, "write", lambda self, *given: (shares.append(given[2]), write(self, *given))[1])
    editor = MoreEditor.fresh(recipe(default=LONG, halvings=10, max_steps=3, margin=9.0, criterion="margin"), sites)
    run(editor, runtime, requests(tmp_path, 1))
    first = next(n for n in range(1, len(shares)) if shares[n] >= shares[n - 1])
    assert first > 1, shares
    assert shares[first] == shares[first - 1], "the second write starts where the first ended"


def test_an_edit_that_no_step_learns_keeps_the_best_it_reached(runtime, sites, tmp_path) -> None:
    """No edit is refused for its step: here every length fails after the first writes."""
    editor = MoreEditor.fresh(recipe(default=LONG, halvings=1), sites)
    (outcome,) = run(editor, runtime, requests(tmp_path, 1))
    assert outcome.status == "not-learnt"
    assert "still wrong after" in outcome.reason
    assert outcome.after.nll <= outcome.before.nll


def test_a_write_is_capped_relative_to_its_weight(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(max_write=0.01, max_steps=1), sites)
    run(editor, runtime, requests(tmp_path, 1))
    for record in editor.records:
        update = record.scale * editor.state_dict()[f"{record.name}.B"] @ rebuild_basis(record)
        weight = runtime.model.get_submodule(record.module).weight.detach()
        assert float(update.norm() / weight.norm()) <= 0.01 * (1 + 1e-4)


def test_top_k_writes_only_the_chosen_groups(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(top_k=1, max_steps=1), sites)
    (outcome,) = run(editor, runtime, requests(tmp_path, 1))
    groups = {"projector" if name.startswith("projector") else name.rpartition(".")[0] for name in outcome.sites}
    assert len(groups) == 1


@pytest.mark.parametrize("normalised", [True, False])
def test_a_relative_lambda_settles_after_sixteen_keys(runtime, sites, tmp_path, normalised) -> None:
    values = {"default": {"step": "polyak", "lambda_rel": 0.5}} if normalised else {}
    editor = MoreEditor.fresh(recipe(max_steps=1, **values), sites)
    edits = requests(tmp_path, 4) * 5
    run(editor, runtime, edits[:15])
    assert all(record.ridge is None and record.keys == 15 for record in editor.records)
    run(editor, runtime, edits[15:17])
    settled = {record.name: record.ridge for record in editor.records}
    assert all(settled.values())
    run(editor, runtime, edits[17:])
    assert {record.name: record.ridge for record in editor.records} == settled


def test_every_token_can_be_a_key_of_its_own(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(pooling="none", max_steps=1), sites)
    edit = requests(tmp_path, 1)[0]
    run(editor, runtime, [edit])
    tokens = len(runtime.encode(edit.query, edit.target).target)
    assert {record.keys for record in editor.records if record.modality == "text"} == {tokens}


def test_reset_and_load_restore_the_tensors(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    fresh = editor.state_dict()
    run(editor, runtime, requests(tmp_path, 2))
    edited = editor.state_dict()
    editor.reset()
    assert all(torch.equal(fresh[name], value) for name, value in editor.state_dict().items())
    assert all(record.keys == 0 for record in editor.records)
    editor.load_state_dict(edited)
    assert all(torch.equal(edited[name], value) for name, value in editor.state_dict().items())


def test_the_same_edits_give_the_same_bits(runtime, sites, tmp_path) -> None:
    states = []
    for _ in range(2):
        editor = MoreEditor.fresh(recipe(), sites)
        run(editor, runtime, requests(tmp_path))
        states.append(editor.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_another_basis_is_an_error_never_another_model(runtime, sites) -> None:
    record = MoreEditor.fresh(recipe(), sites).records[0]
    with pytest.raises(StateError, match="cannot be rebuilt"):
        rebuild_basis(record.model_copy(update={"seed": record.seed + 1}))
    with pytest.raises(StateError, match="cannot be rebuilt"):
        rebuild_basis(record.model_copy(update={"basis_version": record.basis_version + 1}))


def test_an_edit_without_an_image_leaves_the_projector_alone(runtime, sites, tmp_path) -> None:
    editor = MoreEditor.fresh(recipe(), sites)
    (outcome,) = run(editor, runtime, [EditRequest("t", Query((), "what is the fox ?"), "a dog")])
    assert outcome.status == "learnt"
    state = editor.state_dict()
    for record in editor.records:
        if record.modality == "visual":
            assert record.keys == 0
            assert not state[f"{record.name}.B"].any()
