"""The switches for the paper's ablations: each changes what it should, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import pad

from more_cli.core import recursion
from more_cli.editors.anchors import Anchor, make_anchor
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.more.sites import Sites, rebuild_basis
from more_cli.model.backbones import Site
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.store.state import SiteRecord
from support.editing import assert_continues, picture, recipe, requests
from support.equations import closed_form
from support.tiny import make_model

FIXED = {"stop_early": False, "halvings": 0}
LAMBDA = {"default": {"step": "polyak", "lambda": 3.0}}
TRAINED = {"basis_rate": 0.05, "max_steps": 3} | FIXED


def run(editor: MoreEditor, runtime: Runtime, edits: list[EditRequest]) -> None:
    with editor.attach(runtime):
        for number, edit in enumerate(edits, 1):
            editor.edit(edit, EditContext(number))


def own_keys(editor: MoreEditor, runtime: Runtime, edit: EditRequest) -> dict[str, torch.Tensor]:
    """The keys of an edit in the model as it is, by site."""
    batch = runtime.batch([runtime.encode(edit.query, edit.target)])
    runtime.score(batch, keys=True)
    return editor.sites.keys(batch)


def anchors(runtime: Runtime, folder) -> list[Anchor]:
    queries = Query((picture(folder, "white"),), "a photo of"), Query((), "what is it ?")
    return [make_anchor(runtime, query, "a dog") for query in queries]


# --- statistics


@pytest.mark.parametrize("statistics", ["modality", "shared"])
def test_a_shared_p_is_the_closed_form_of_all_its_keys(
    runtime: Runtime, sites: list[Site], tmp_path, statistics: str
) -> None:
    """Float64: a site's P is ((I + S / lambda)^-1) of the block of S that it has coordinates for."""
    editor = MoreEditor.fresh(recipe(statistics=statistics, max_steps=2, **LAMBDA), sites)
    ranks = {record.name: record.rank for record in editor.records}
    assert len(set(ranks.values())) > 1, "sites of different rank share"
    seen: list[tuple[str, torch.Tensor]] = []
    with editor.attach(runtime):
        for number, edit in enumerate([*requests(tmp_path), EditRequest("t", Query((), "why ?"), "a dog")], 1):
            seen += own_keys(editor, runtime, edit).items()
            editor.edit(edit, EditContext(number))
    modality = {site.name: site.modality for site in sites}
    for record in editor.records:
        heard = [z for name, z in seen if statistics == "shared" or modality[name] == record.modality]
        whole = torch.stack([pad(z, (0, max(ranks.values()) - len(z))) for z in heard]).double()
        expected = closed_form(whole[:, : record.rank], 3.0, "unit")
        P = editor.state_dict()[f"{record.name}.P"]
        torch.testing.assert_close(P, expected, atol=1e-10, rtol=1e-10)
        assert record.keys == len(heard)
        assert not recursion.flaw(P, record.keys, 3.0, "unit")


def test_sites_that_share_have_one_lambda(runtime: Runtime, sites: list[Site], tmp_path) -> None:
    """A relative lambda follows the mean |z|^2 of every key in the P, and anchors fix it likewise."""
    for statistics, count in (("site", len(sites)), ("modality", 2), ("shared", 1)):
        editor = MoreEditor.fresh(recipe(statistics=statistics, anchors={"keys": True}), sites)
        with editor.attach(runtime):
            editor.start_from(anchors(runtime, tmp_path))
        assert len({record.ridge for record in editor.records}) == count
        editor = MoreEditor.fresh(recipe(statistics=statistics, max_steps=1), sites)
        run(editor, runtime, requests(tmp_path, 4) * 4)
        found = {round(record.energy / record.keys, 9) for record in editor.records}
        assert len(found) == count


@pytest.mark.parametrize(("statistics", "moves"), [("site", False), ("modality", False), ("shared", True)])
def test_visual_keys_change_a_text_p_only_where_all_share(
    runtime: Runtime, sites: list[Site], tmp_path, monkeypatch: pytest.MonkeyPatch, statistics: str, moves: bool
) -> None:
    original, visual = Sites.keys, {site.name for site in sites if site.modality == "visual"}
    found = []
    for loudness in (1.0, 30.0):
        monkeypatch.setattr(
            Sites,
            "keys",
            lambda self, batch, loudness=loudness: {
                name: key * (loudness if name in visual else 1.0) for name, key in original(self, batch).items()
            },
        )
        # P off: B, and with it the next key, may not depend on P for this comparison
        editor = MoreEditor.fresh(recipe(statistics=statistics, precondition=False, max_steps=2, **LAMBDA), sites)
        run(editor, runtime, requests(tmp_path))
        found.append(editor.state_dict())
    for site in sites:
        if site.modality == "text":
            assert torch.equal(found[0][f"{site.name}.B"], found[1][f"{site.name}.B"])
            assert torch.equal(found[0][f"{site.name}.P"], found[1][f"{site.name}.P"]) != moves


# --- keys


def test_without_the_mask_a_text_key_is_the_mean_over_all_tokens(runtime: Runtime, sites: list[Site], tmp_path) -> None:
    edit = requests(tmp_path, 1)[0]
    found = {}
    for masked in (True, False):
        editor = MoreEditor.fresh(recipe(key_mask=masked), sites)
        with editor.attach(runtime):
            found[masked] = own_keys(editor, runtime, edit)
            for site in editor.sites:
                Z = site.branch._Z[0].reshape(-1, site.record.rank).double()
                if not masked:
                    torch.testing.assert_close(found[masked][site.record.name], Z.mean(dim=0))
    for site in sites:
        assert torch.equal(found[True][site.name], found[False][site.name]) == (site.modality == "visual")


@pytest.mark.parametrize("rehearsed", [0, 4])
def test_a_key_taken_after_the_write_is_that_of_the_edited_model(
    runtime: Runtime, sites: list[Site], tmp_path, rehearsed: int
) -> None:
    edit = requests(tmp_path, 1)[0]
    before, after = (
        MoreEditor.fresh(recipe(key_taken=when, rehearsal={"size": rehearsed}, max_steps=3, **LAMBDA), sites)
        for when in ("before", "after")
    )
    with before.attach(runtime):
        first = own_keys(before, runtime, edit)
        before.edit(edit, EditContext(1))
    with after.attach(runtime):
        after.edit(edit, EditContext(1))
        last = own_keys(after, runtime, edit)
    for editor, keys in ((before, first), (after, last)):
        for name, key in keys.items():
            expected = closed_form(key[None], 3.0, "unit")
            torch.testing.assert_close(editor.state_dict()[f"{name}.P"], expected, atol=1e-9, rtol=1e-9)
    text = [site.name for site in sites if site.modality == "text"]
    assert all(torch.equal(before.state_dict()[f"{n}.B"], after.state_dict()[f"{n}.B"]) for n in text), "the same write"
    assert not torch.allclose(first[text[-1]], last[text[-1]])


def test_p_can_absorb_the_key_after_each_of_several_writes(runtime: Runtime, sites: list[Site], tmp_path) -> None:
    """The last site's key after write k is the first's of write k + 1: P of the two orders differs by the ends."""
    edit, states = requests(tmp_path, 1)[0], {}
    for when in ("before", "after"):
        values = {"key_taken": when, "absorb": "write", "max_steps": 3, "precondition": False}
        editor = MoreEditor.fresh(recipe(**values, **FIXED, **LAMBDA), sites)
        with editor.attach(runtime):
            ends = [own_keys(editor, runtime, edit)]
            editor.edit(edit, EditContext(1))
            ends.append(own_keys(editor, runtime, edit))
        states[when] = editor
        assert {record.keys for record in editor.records} == {3}
    for name, (one, other) in {site.name: (ends[0][site.name], ends[1][site.name]) for site in sites}.items():
        gap = [torch.inverse(states[when].state_dict()[f"{name}.P"]) for when in ("before", "after")]
        torch.testing.assert_close(
            gap[1] - gap[0], (torch.outer(other, other) - torch.outer(one, one)) / 3.0, atol=1e-8, rtol=1e-6
        )


# --- the basis


def basis_of(editor: MoreEditor, record: SiteRecord) -> torch.Tensor:
    """A of a site as it is now; one that is not stored is drawn again."""
    stored = editor.state_dict().get(f"{record.name}.A")
    return rebuild_basis(record, editor.recipe.basis) if stored is None else stored


@pytest.mark.parametrize("kind", ["gaussian", "xavier"])
def test_an_edit_is_learnt_in_another_basis_within_the_cap(runtime: Runtime, sites: list[Site], tmp_path, kind) -> None:
    editor = MoreEditor.fresh(recipe(basis=kind, max_steps=1, max_write=1e-3, **FIXED), sites)
    run(editor, runtime, requests(tmp_path, 1))
    for record in editor.records:
        A, B = basis_of(editor, record), editor.state_dict()[f"{record.name}.B"]
        assert torch.equal(A, rebuild_basis(record, kind))
        W = runtime.model.get_submodule(record.module).weight.detach()
        assert 0 < record.scale * float((B @ A).norm()) <= 1e-3 * float(W.norm()) * (1 + 1e-5)
    assert not any(name.endswith(".A") for name in editor.state_dict()), "it is drawn again"


def test_a_data_driven_basis_spans_what_the_sites_read_of_the_anchors(
    runtime: Runtime, sites: list[Site], tmp_path
) -> None:
    asked = anchors(runtime, tmp_path)
    editor = MoreEditor.fresh(recipe(basis="pca", anchors={"keys": True}), sites)
    with editor.attach(runtime):
        editor.hold(asked, fresh=True)
    for record in editor.records:
        A = basis_of(editor, record).double()
        torch.testing.assert_close(A @ A.T, torch.eye(record.rank).double(), atol=1e-5, rtol=0)
        assert not torch.allclose(A.float(), rebuild_basis(record, "pca"), atol=1e-3)
        read: list[torch.Tensor] = []
        module = runtime.model.get_submodule(record.module)
        handle = module.register_forward_pre_hook(lambda _, args, read=read: read.append(args[0][0]))
        for anchor in asked if record.modality == "text" else asked[:1]:
            batch = runtime.batch([anchor.encoded])
            runtime.score(batch)
            read[-1] = read[-1][batch.answer[0]] if record.modality == "text" else read[-1]
        handle.remove()
        X = torch.cat(read).double()
        X = X - X.mean(dim=0)
        kept = float((X @ A.T @ A).norm() / X.norm())
        drawn = rebuild_basis(record, "pca").double()
        assert kept > 0.999 or kept > float((X @ drawn.T @ drawn).norm() / X.norm()) + 0.1
    before = editor.state_dict()
    editor.reset()
    with editor.attach(runtime):
        editor.hold(asked, fresh=True)
    assert all(torch.equal(before[name], value) for name, value in editor.state_dict().items())


def test_a_trained_a_takes_a_step_down_its_gradient(runtime: Runtime, sites: list[Site], tmp_path) -> None:
    """Both steps start from the same gradients: that of A is zero at the first write, where B is."""
    edit, rate = requests(tmp_path, 1)[0], 0.05
    values = {"max_steps": 1, "basis_rate": rate, "default": {"step": 0.05, "lambda": 2000.0}} | FIXED
    editor = MoreEditor.fresh(recipe(**values), sites)
    run(editor, runtime, [edit])
    first = editor.state_dict()
    assert all(torch.equal(basis_of(editor, record), rebuild_basis(record)) for record in editor.records)
    run(editor, runtime, [edit])

    model = make_model(runtime.prompter.tokenizer, text_layers=4, seed=0).eval().requires_grad_(False)
    leaves = {}
    for record in editor.records:
        A = leaves[record.name] = first[f"{record.name}.A"].clone().requires_grad_()

        def hook(module, args, output, *, A=A, B=first[f"{record.name}.B"], s=record.scale):
            return output + s * (args[0] @ A.T) @ B.T

        model.get_submodule(record.module).register_forward_hook(hook)
    batch = runtime.batch([runtime.encode(edit.query, edit.target)])
    torch.nn.functional.cross_entropy(model(**batch.inputs).logits[0, batch.keep], batch.targets[0]).backward()
    for name, A in leaves.items():
        moved = editor.state_dict()[f"{name}.A"] - first[f"{name}.A"]
        assert A.grad.any()
        torch.testing.assert_close(moved, -rate * A.grad, atol=1e-6, rtol=1e-2)


def test_rows_that_are_made_orthonormal_again_leave_the_model_as_it_is(
    runtime: Runtime, sites: list[Site], tmp_path
) -> None:
    edits = requests(tmp_path)
    products, plain = [], {}
    for again in (False, True):
        editor = MoreEditor.fresh(recipe(basis_orthonormal=again, **TRAINED | {"max_steps": 2}), sites)
        run(editor, runtime, edits[:1])
        state = editor.state_dict()
        products.append({r.name: state[f"{r.name}.B"] @ basis_of(editor, r) for r in editor.records})
        for record in editor.records:
            A = basis_of(editor, record).double()
            gap = float((A @ A.T - torch.eye(record.rank).double()).abs().max())
            if again:
                assert gap < 1e-5
            else:
                plain[record.name] = gap
    assert max(plain.values()) > 1e-4, "without, they are no longer"
    for name, product in products[0].items():
        torch.testing.assert_close(products[1][name], product, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("again", [False, True])
def test_a_refused_edit_leaves_a_as_it_was(runtime: Runtime, sites: list[Site], tmp_path, again: bool) -> None:
    edits = requests(tmp_path)
    editor = MoreEditor.fresh(recipe(basis_orthonormal=again, **TRAINED), sites)
    run(editor, runtime, edits[:2])
    before = editor.state_dict()
    assert any(not torch.equal(basis_of(editor, record), rebuild_basis(record)) for record in editor.records)
    with editor.attach(runtime):
        settings = "rho=1e30", "max_write=1e30", "max_steps=5"
        outcome = editor.edit(edits[2], EditContext(3, settings=settings))
    assert outcome.status == "refused"
    assert all(torch.equal(before[name], value) for name, value in editor.state_dict().items())


@pytest.mark.parametrize("again", [False, True])
def test_a_trained_a_is_part_of_the_state(runtime: Runtime, sites: list[Site], tmp_path, again: bool) -> None:
    made = [MoreEditor.fresh(recipe(basis_orthonormal=again, **TRAINED, **LAMBDA), sites) for _ in range(3)]
    assert {f"{site.name}.{letter}" for site in sites for letter in "BPA"} == set(made[0].state_dict())
    assert_continues(runtime, made[0], made[1], made[2], requests(tmp_path))
    fresh = MoreEditor.fresh(made[0].recipe, sites).state_dict()
    assert all(torch.equal(fresh[name], value) for name, value in made[0].state_dict().items()), "reset"


def test_the_directions_of_watched_anchors_do_not_follow_a_moving_a(
    runtime: Runtime, sites: list[Site], tmp_path
) -> None:
    """They are computed again where their cache is lost, at any time of a stream."""
    values = {"anchors": {"keys": True, "watched": 2}} | TRAINED
    editor, asked = MoreEditor.fresh(recipe(**values), sites), anchors(runtime, tmp_path)
    with editor.attach(runtime):
        editor.hold(asked, fresh=True)
        first = editor.directions
        for number, edit in enumerate(requests(tmp_path), 1):
            editor.edit(edit, EditContext(number))
        state = editor.state_dict()
        editor.hold(asked)
        assert first.keys() == editor.directions.keys() != set()
        assert all(torch.equal(first[place], editor.directions[place]) for place in first)
        assert all(torch.equal(state[name], value) for name, value in editor.state_dict().items())
