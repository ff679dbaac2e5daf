"""Passes that begin at a text layer, from hidden states that were read before, and float32 for a while."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from more_cli.model.batches import Query
from more_cli.model.families import family_of
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.model.structure import find_backbone, text_layers
from more_cli.model.taps import Tap
from support.editing import picture
from support.tiny_families import make_family


@pytest.fixture(params=["llava", "blip-2", "qwen2_vl"])
def made(request: pytest.FixtureRequest, runtime: Runtime) -> Runtime:
    if request.param == "llava":
        return runtime
    model, processor = make_family(request.param)
    return Runtime(model, Prompter(processor, family_of(model.config.model_type)))


def test_a_resumed_pass_is_the_end_of_a_whole_one(made: Runtime, tmp_path: Path) -> None:
    layer = text_layers(made.model, find_backbone(made.model))[1]
    asked = (("red", "why ?", "7"), ("blue", "what is in the image ?", "a dog and a cat"))
    samples = [made.encode(Query((picture(tmp_path, colour),), question), answer) for colour, question, answer in asked]
    shift = torch.zeros((), requires_grad=True)
    states = [found for (found,) in made.read(samples, [(layer, "input")])]
    with made.attached([Tap(layer, lambda hidden, rows: hidden + shift, "input")]):
        whole = made.score(made.batch(samples))
        blind = made.batch([sample.blind for sample in samples])
        assert "pixel_values" not in blind.inputs
        resumed = made.score(blind, record=True, states=states)
        torch.testing.assert_close(resumed.logits, whole.logits, atol=1e-4, rtol=1e-4)
        other = made.score(blind, states=[state.roll(1, 0) for state in states])
        assert not torch.allclose(other.logits, whole.logits, atol=1e-2), "it is the states that count"
        resumed.nll().sum().backward()
    assert shift.grad is not None
    assert shift.grad.isfinite()


def test_float32_for_a_while_restores_every_bit(runtime: Runtime, tmp_path: Path) -> None:
    model = copy.deepcopy(runtime.model).to(torch.bfloat16)
    half = Runtime(model, runtime.prompter)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    layer = text_layers(model, find_backbone(model))[2]
    with half.attached([Tap(layer, lambda hidden, rows: hidden, "input")]):
        batch = half.batch([half.encode(Query((picture(tmp_path),), "why ?"), "7")])
        before = half.score(batch).logits
        with half.in_float32():
            assert half.score(batch).logits.dtype == torch.float32
        assert torch.equal(half.score(batch).logits, before), "nothing that was cached in float32 is left"
    for name, value in model.state_dict().items():
        assert value.dtype == kept[name].dtype
        assert torch.equal(value, kept[name])
