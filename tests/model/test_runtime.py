"""A model with an attached editor: branches equal plain torch, and nothing is left behind."""

import copy
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from more_cli.core import basis
from more_cli.model.batches import Query
from more_cli.model.branches import Branch
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from support.editing import picture
from support.tiny import make_model, make_processor


class Interruption(Exception):
    pass


PLACES = {
    "projector": "model.multi_modal_projector.linear_1",
    "text": "model.language_model.layers.2.mlp.down_proj",
    "last": "model.language_model.layers.3.mlp.down_proj",
}


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    processor = make_processor()
    model = make_model(processor.tokenizer, text_layers=4, seed=0).eval()
    return Runtime(model, Prompter(processor))


def branches(runtime: Runtime, *, size: float) -> list[Branch]:
    made = []
    for number, (name, module) in enumerate(PLACES.items()):
        d_out, d_in = runtime.model.get_submodule(module).weight.shape
        rank = min(16, d_in // 4)
        generator = torch.Generator().manual_seed(number)
        B = size * torch.randn(d_out, rank, generator=generator)
        made.append(Branch(name, module, basis.draw_basis(rank, d_in, number), B, 2.0))
    return made


@pytest.fixture
def batch(runtime: Runtime, tmp_path: Path):
    queries = [
        (Query((picture(tmp_path),), "what colour is it ?"), "red"),
        (Query((picture(tmp_path, "blue"),), "what is in the image ?"), "a blue circle"),
    ]
    return runtime.batch([runtime.encode(*pair) for pair in queries])


def folded(runtime: Runtime, made: list[Branch]):
    model = copy.deepcopy(runtime.model)
    for branch in made:
        weight = model.get_submodule(branch.module).weight
        weight.data += branch.scale * branch.B @ branch.A
    return model


def test_zero_b_changes_no_bit(runtime: Runtime, batch) -> None:
    with runtime.attached([]):
        expected = runtime.score(batch).logits
    with runtime.attached(branches(runtime, size=0.0)):
        assert torch.equal(runtime.score(batch).logits, expected)
        assert torch.equal(runtime.score(batch, record=True).logits.detach(), expected)


def test_branches_equal_folded_weights(runtime: Runtime, batch) -> None:
    made = branches(runtime, size=0.05)
    with runtime.attached(made):
        ours = runtime.score(batch).logits
        with runtime.base():
            base = runtime.score(batch).logits
    theirs = folded(runtime, made)(**batch.inputs, logits_to_keep=batch.keep).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert float((ours - base).abs().max()) > 1e-2


def test_gradients_and_keys_equal_autograd(runtime: Runtime, batch) -> None:
    made = branches(runtime, size=0.05)
    with runtime.attached(made):
        scored = runtime.score(batch, record=True)
        scored.nll().mean().backward()
        gradients = {branch.name: branch.gradient().dense() for branch in made}
        keys = {branch.name: branch.key(None if branch.name == "projector" else batch.answer) for branch in made}
        assert all(parameter.grad is None for parameter in runtime.model.parameters())

    model = folded(runtime, []).requires_grad_(False)
    leaves, inputs = {}, {}
    for branch in made:
        leaf = leaves[branch.name] = branch.B.clone().requires_grad_()

        def hook(module, args, output, *, leaf=leaf, branch=branch):
            inputs[branch.name] = args[0].detach()
            return output + branch.scale * (args[0] @ branch.A.T) @ leaf.T

        model.get_submodule(branch.module).register_forward_hook(hook)
    logits = model(**batch.inputs).logits[:, batch.keep]
    picked = torch.log_softmax(logits, -1).gather(-1, batch.targets[..., None])[..., 0]
    (-(picked * batch.mask).sum(1) / batch.mask.sum(1)).mean().backward()
    for branch in made:
        torch.testing.assert_close(gradients[branch.name], leaves[branch.name].grad, atol=1e-5, rtol=1e-3)
        Z = inputs[branch.name] @ branch.A.T
        relevant = Z.reshape(-1, Z.shape[-1]) if branch.name == "projector" else Z[batch.answer]
        torch.testing.assert_close(keys[branch.name], relevant.double().mean(0), atol=1e-5, rtol=1e-4)


def test_the_last_layer_keeps_only_rows_with_a_gradient(runtime: Runtime, batch) -> None:
    made = branches(runtime, size=0.0)
    with runtime.attached(made):
        runtime.score(batch, record=True).nll().mean().backward()
        last, text = made[2].gradient(), made[1].gradient()
    assert last.D is not None
    assert len(last.D) == int(batch.mask.sum())
    assert text.built is not None, "so many rows that G is smaller"


@pytest.mark.parametrize("split", [(1, 1, 1, 1), (3, 1), (2, 2)])
def test_parts_of_a_batch_add_up_to_its_gradient(runtime: Runtime, tmp_path: Path, split: tuple[int, ...]) -> None:
    query, targets = Query((picture(tmp_path),), "what colour is it ?"), ("red", "blue", "a dog", "7")
    samples = [runtime.encode(query, target) for target in targets]
    made = branches(runtime, size=0.05)
    with runtime.attached(made):
        runtime.score(runtime.batch(samples), record=True).nll().sum().backward()
        whole = {branch.name: branch.gradient().dense() for branch in made}
        start = 0
        for size in split:
            part = runtime.batch(samples[start : start + size])
            runtime.score(part, record=True, add=start > 0).nll().sum().backward()
            start += size
        for branch in made:
            torch.testing.assert_close(branch.gradient().dense(), whole[branch.name], atol=1e-5, rtol=1e-3)
            assert len(branch._Z) == 1, "of the parts before no key is kept"


def test_keys_alone_build_no_graph_and_are_those_of_a_recorded_pass(runtime: Runtime, batch) -> None:
    made = branches(runtime, size=0.05)
    with runtime.attached(made):
        assert runtime.score(batch, record=True).logits.requires_grad
        recorded = [branch.key(None) for branch in made]
        assert not runtime.score(batch, keys=True).logits.requires_grad
        for branch, key in zip(made, recorded, strict=True):
            torch.testing.assert_close(branch.key(None), key, atol=1e-6, rtol=1e-5)


def test_the_model_is_given_back_as_it_was(runtime: Runtime, batch) -> None:
    model = runtime.model
    model.train()
    model.lm_head.weight.requires_grad_(True)
    try:
        hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
        flags = {name: p.requires_grad for name, p in model.named_parameters()}
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        random = torch.get_rng_state()
        with suppress(Interruption), runtime.attached(branches(runtime, size=0.05)):
            runtime.score(batch, record=True).nll().mean().backward()
            assert not model.training
            raise Interruption
        assert all(module.training for module in model.modules())
        assert {name: len(module._forward_hooks) for name, module in model.named_modules()} == hooks
        assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
        assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
        layers = model.get_submodule("model.vision_tower.encoder.layers")
        assert not any("forward" in layer.__dict__ for layer in layers)
        assert torch.equal(torch.get_rng_state(), random)
    finally:
        model.eval().requires_grad_(False)


def test_an_image_meets_the_vision_tower_once_and_a_warm_cache_changes_no_bit(runtime: Runtime, batch) -> None:
    with runtime.attached(branches(runtime, size=0.05)):
        cold = runtime.score(batch).logits
        for _ in range(3):
            warm = runtime.score(batch, record=True).logits.detach()
        assert runtime._vision.calls == 2
    assert torch.equal(cold, warm)


def test_the_cache_keeps_only_what_is_read_and_as_much_as_fits(runtime: Runtime, batch) -> None:
    with runtime.attached([]):
        first = runtime.score(batch).logits
        cache = runtime._vision
        # The features come from the last layer but one of four: the others are neither kept nor run again.
        assert [sorted(outputs) for outputs in cache._outputs.values()] == [[2], [2]]
        cache.capacity = 1
        assert torch.equal(runtime.score(batch).logits, first)
        other = runtime.batch([runtime.encode(Query((), "what ?"), "red"), batch.sequences[0], batch.sequences[1]])
        runtime.score(other)
        cache._outputs_of(("another",), lambda: None)
        assert list(cache._outputs) == [("another",)]
        assert cache._bytes == 0


def test_what_nobody_reads_would_be_seen_if_somebody_did(runtime: Runtime, batch) -> None:
    tower = runtime.model.model.vision_tower
    with runtime.attached([]):
        runtime.score(batch)
        with runtime._serving(batch), torch.no_grad():
            states = tower(batch.inputs["pixel_values"], output_hidden_states=True).hidden_states
    assert [bool(state.isnan().any()) for state in states] == [False, True, True, False, True]


def test_layers_before_an_edited_one_are_kept(runtime: Runtime, batch) -> None:
    tower = "model.vision_tower.encoder.layers"
    generator = torch.Generator().manual_seed(0)
    inside = Branch(
        "vision", f"{tower}.1.mlp.fc2", torch.eye(4, 48), 0.05 * torch.randn(32, 4, generator=generator), 2.0
    )
    expected = folded(runtime, [inside])(**batch.inputs, logits_to_keep=batch.keep).logits
    with runtime.attached([inside]):
        for _ in range(2):
            torch.testing.assert_close(runtime.score(batch).logits, expected, atol=1e-4, rtol=1e-4)
        assert [sorted(outputs) for outputs in runtime._vision._outputs.values()] == [[0], [0]]
        runtime.score(batch, record=True).nll().mean().backward()
        assert inside.gradient().dense().any()
    first = Branch("vision", f"{tower}.0.mlp.fc2", torch.eye(4, 48), torch.zeros(32, 4), 2.0)
    with runtime.attached([first]):
        assert runtime._vision is None
        assert runtime._prefix is None


def test_what_an_image_becomes_may_change_every_text_layer(runtime: Runtime) -> None:
    made = branches(runtime, size=0.05)
    kinds = {branch.module.split(".")[1]: branch for branch in made}
    assert set(kinds) == {"multi_modal_projector", "language_model"}
    for chosen, kept in ((made, False), ([kinds["language_model"]], True), ([], False)):
        with runtime.attached(chosen):
            assert (runtime._prefix is not None) == kept


def test_a_text_only_input_never_meets_the_projector(runtime: Runtime) -> None:
    made = branches(runtime, size=0.05)
    with runtime.attached(made):
        text = runtime.batch([runtime.encode(Query((), "what ?"), "red")])
        runtime.score(text, record=True).nll().mean().backward()
        ran = {branch.name: branch.ran for branch in made}
        assert ran == {"projector": False, "text": True, "last": True}
        assert not made[0].gradient().dense().any()


def test_batched_scores_equal_single_ones(runtime: Runtime, tmp_path: Path) -> None:
    pairs = [(Query((picture(tmp_path),), "what colour is it ?"), "red"), (Query((picture(tmp_path),), "what ?"), "a")]
    with runtime.attached([]):
        together = runtime.score(runtime.batch([runtime.encode(*pair) for pair in pairs])).nll()
        alone = [float(runtime.score(runtime.batch([runtime.encode(*pair)])).nll()) for pair in pairs]
    assert together.tolist() == pytest.approx(alone, abs=1e-4)


def test_generation_stops_at_the_end_of_sequence_and_follows_the_branches(runtime: Runtime, tmp_path: Path) -> None:
    query = Query((picture(tmp_path),), "what colour is it ?")
    with runtime.attached(branches(runtime, size=0.0)):
        ids = runtime.generate([query, query], 6)
        assert ids[0] == ids[1]
        assert 1 <= len(ids[0]) <= 6
        batch = runtime.batch([runtime.encode(query).followed_by(ids[0])])
        assert runtime.score(batch).predicted()[0].tolist() == ids[0]


def test_an_answer_holds_no_image_token(runtime: Runtime, tmp_path: Path) -> None:
    token = runtime.model.config.image_token_id
    head = runtime.model.get_output_embeddings()
    before = head.weight.detach().clone()
    try:
        with torch.no_grad():  # whatever is asked, the image token or the one after it is the most likely
            head.weight[token] = 100 * runtime.model.get_input_embeddings().weight.mean(dim=0).sign()
            head.weight[token + 1 :] = -head.weight[token]
        with runtime.attached([]):
            (answer,) = runtime.generate([Query((picture(tmp_path),), "what colour is it ?")], 6)
            scored = runtime.score(runtime.batch([runtime.encode(Query((), "a"), "b")]))
        assert (scored.logits.argmax(-1) == token).any()
        assert answer
        assert token not in answer
    finally:
        with torch.no_grad():
            head.weight.copy_(before)
