"""The estimated memory of a pass is what autograd keeps, and the split into passes depends on the samples alone."""

import pytest
import torch

from more_cli.model import activations
from more_cli.model.activations import Activations
from support.tiny import make_model, make_processor

TEXT = "model.language_model.layers.{}.mlp.down_proj"
PROJECTOR = "model.multi_modal_projector.linear_1"
TOKENS = 64


@pytest.fixture(scope="module")
def model():
    return make_model(make_processor().tokenizer, text_layers=4, seed=0).eval().requires_grad_(False)


def kept_by_autograd(model, first: int) -> int:
    """Return the bytes that the text layers from this one on keep of a sequence."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def differentiate(module, args, kwargs):
        return tuple(arg.requires_grad_() for arg in args), kwargs

    embeddings = torch.randn(1, TOKENS, model.config.text_config.hidden_size, dtype=model.dtype)
    layer = model.model.language_model.layers[first]
    hook = layer.register_forward_pre_hook(differentiate, with_kwargs=True)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.model.language_model(inputs_embeds=embeddings, use_cache=False)
    finally:
        hook.remove()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_is_what_autograd_keeps(model, dtype) -> None:
    model = model.to(dtype)
    try:
        for sites, first in (([PROJECTOR], 0), ([TEXT.format(3), TEXT.format(2)], 2), ([TEXT.format(3)], 3)):
            said = TOKENS * Activations.of(model, sites).kept
            assert said == pytest.approx(kept_by_autograd(model, first), rel=0.25)
    finally:
        model.float()


def test_parts_are_bounded_and_in_order(model, monkeypatch) -> None:
    found = Activations.of(model, [PROJECTOR])
    lengths = [10, 10, 10, 40, 10, 500, 10]
    monkeypatch.setattr(activations, "PART", found.bytes(80, "backward"))
    parts = list(found.parts(lengths, "backward", int))
    assert parts == [[10, 10, 10], [40, 10], [500], [10]]
    monkeypatch.setattr(activations, "PART", 1 << 60)
    monkeypatch.setattr(activations, "BATCH", 3)
    assert list(found.parts(lengths, "backward", int)) == [[10, 10, 10], [40, 10, 500], [10]]
    assert list(found.parts([], "forward", int)) == []


def test_scoring_holds_less_than_differentiating(model) -> None:
    found = Activations.of(model, [TEXT.format(0)])
    assert found.bytes(1, "forward") < found.bytes(1, "answer") < found.bytes(1, "backward")
    assert Activations.of(model, []).kept == 0
