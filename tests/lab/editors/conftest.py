"""Tiny models of two shapes for the tests of editors."""

from __future__ import annotations

import pytest

from more_cli.model.families import family_of
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from support.tiny_families import make_family


@pytest.fixture(scope="module")
def blip() -> Runtime:
    """BLIP-2 with OPT: biases, ReLU, query tokens, and an FFN that gets all rows as one."""
    model, processor = make_family("blip-2")
    return Runtime(model.requires_grad_(False).eval(), Prompter(processor, family_of(model.config.model_type)))


@pytest.fixture(params=["llava", "blip-2"])
def model(request: pytest.FixtureRequest, runtime: Runtime, blip: Runtime) -> Runtime:
    """Each of both."""
    return {"llava": runtime, "blip-2": blip}[request.param]
