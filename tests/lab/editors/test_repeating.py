"""What a fit asks of a runtime that sees the same batches often: hidden states kept, and float32 on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_lab.editors.deltas import Delta
from support.editing import requests
from support.tiny import make_model, make_processor

LAST = "model.language_model.layers.3.mlp.down_proj"


@pytest.fixture
def half() -> Runtime:
    processor = make_processor()
    model = make_model(processor.tokenizer, text_layers=4, seed=0).to(torch.bfloat16).eval()
    return Runtime(model.requires_grad_(False), Prompter(processor))


def beside(runtime: Runtime) -> Delta:
    linear = runtime.model.get_submodule(LAST)
    return Delta(LAST, (linear.out_features, linear.in_features), torch.device("cpu"))


def test_batches_are_remembered_while_they_fit(runtime: Runtime, tmp_path: Path) -> None:
    batches = [runtime.batch([runtime.encode(asked.query, asked.target)]) for asked in requests(tmp_path, 3)]
    with runtime.attached([beside(runtime)]):
        cache = runtime._prefix
        assert cache is not None
        expected = [runtime.score(batch).logits for batch in batches]
        assert cache.calls == 3
        assert torch.equal(runtime.score(batches[2]).logits, expected[2])
        runtime.score(batches[0])
        assert cache.calls == 4, "only the last batch is kept"
        with runtime.remembering(1 << 20):
            for _ in range(3):
                assert all(torch.equal(runtime.score(b).logits, e) for b, e in zip(batches, expected, strict=True))
            assert cache.calls == 6
        runtime.score(batches[1])
        assert cache.calls == 7, "nothing is remembered afterwards"
        one = cache._bytes
        with runtime.remembering(one):
            for batch in (batches[0], batches[1], batches[0]):
                runtime.score(batch)
            assert cache.calls == 8, "the one used last is kept beside the newest"
            assert cache._bytes <= 2 * one + 1024


def test_a_small_half_model_computes_in_float32_and_gets_its_weights_back(half: Runtime, tmp_path: Path) -> None:
    (asked, *_) = requests(tmp_path, 1)
    batch, weights = half.batch([half.encode(asked.query, asked.target)]), half.model.state_dict()
    kept = {name: value.clone() for name, value in weights.items()}
    before = half.score(batch).logits
    with half.attached([beside(half)]):
        half.score(batch)
        with half.in_float32():
            exact = half.score(batch).logits
            assert exact.dtype == torch.float32
        assert torch.equal(half.score(batch).logits, before), "no cache mixes the two"
    assert torch.equal(half.score(batch).logits, before)
    assert all(torch.equal(value, kept[name]) for name, value in half.model.state_dict().items())
    assert all(value.dtype == torch.bfloat16 for value in half.model.parameters())
    half.model.float()
    torch.testing.assert_close(half.score(batch).logits, exact)


def test_a_large_model_stays_as_it_is(half: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("more_cli.model.runtime.SMALL", 100)
    with half.in_float32():
        assert half.model.dtype == torch.bfloat16
