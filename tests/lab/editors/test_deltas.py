"""Delta W beside a Linear, compared with plain torch."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from more_cli.model.runtime import Runtime
from more_lab.editors.deltas import Delta
from support.editing import requests

LAST = "model.language_model.layers.3.mlp.down_proj"


@pytest.fixture
def encoded(runtime: Runtime, tmp_path: Path):
    request = requests(tmp_path, 1)[0]
    return runtime.encode(request.query, request.target)


def beside(runtime: Runtime) -> Delta:
    linear = runtime.model.get_submodule(LAST)
    return Delta(LAST, (linear.out_features, linear.in_features), torch.device("cpu"))


def test_it_gives_the_logits_of_a_changed_weight(runtime: Runtime, encoded) -> None:
    delta, batch = beside(runtime), runtime.batch([encoded])
    delta.value = 0.1 * torch.randn(delta.value.shape, generator=torch.Generator().manual_seed(0))
    model = copy.deepcopy(runtime.model)
    with torch.no_grad():
        model.get_submodule(LAST).weight += delta.value
    expected = model(**batch.inputs, use_cache=False).logits[:, batch.keep]
    with runtime.attached([delta]):
        assert torch.allclose(runtime.score(batch).logits, expected, atol=1e-5)
        with runtime.base():
            base = runtime.score(batch).logits
    assert torch.equal(base, runtime.score(batch).logits)


def test_inputs_and_gradients_make_the_gradient_of_the_weight(runtime: Runtime, encoded) -> None:
    delta, batch = beside(runtime), runtime.batch([encoded])
    with runtime.attached([delta]):
        runtime.backward(runtime.score(batch, record=True).nll().mean())
    model = copy.deepcopy(runtime.model)
    weight = model.get_submodule(LAST).weight.requires_grad_()
    logits = model(**batch.inputs, use_cache=False).logits[:, batch.keep]
    torch.nn.functional.cross_entropy(logits[0], batch.targets[0]).backward()
    found = torch.einsum("nto,nti->oi", delta.gradients, delta.inputs)
    assert weight.grad is not None
    assert torch.allclose(found, weight.grad, atol=1e-6)


def test_a_value_with_a_gradient_is_trained_through(runtime: Runtime, encoded) -> None:
    delta, batch = beside(runtime), runtime.batch([encoded])
    factor = torch.zeros((), requires_grad=True)
    delta.value = factor * torch.ones_like(delta.value)
    with runtime.attached([delta]):
        runtime.backward(runtime.score(batch, record=True).nll().mean())
    assert factor.grad is not None
    assert factor.grad != 0


def test_a_delta_that_is_zero_changes_no_bit(runtime: Runtime, encoded) -> None:
    batch = runtime.batch([encoded])
    expected = runtime.score(batch).logits
    delta = beside(runtime)
    with runtime.attached([delta]):
        assert torch.equal(runtime.score(batch).logits, expected)
        delta.value = torch.ones_like(delta.value)
        delta.clear()
        assert not delta.written
        assert torch.equal(runtime.score(batch).logits, expected)
