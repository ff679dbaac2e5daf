"""The reason of an edit that did not take: each known cause is named, with what to type."""

import pytest
import torch

from more_cli.editors.more.advice import Failure, explain
from more_cli.editors.outcome import EditScore
from more_cli.recipe.schema import Recipe

HARM = "it would change the answer to `a?` from `x` to `y` (by 0.3 nats)"


def score(nll: float) -> EditScore:
    return EditScore(nll, -1.0, False, torch.tensor([1]), nll)


def failure(**changes: object) -> Failure:
    values = {"recipe": Recipe(max_steps=10), "first": score(3.0), "last": score(1.0), "writes": 10, "stopped": ""}
    return Failure(**({"worsened": [], "drifts": {}, "pictured": True} | values | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "still wrong after 10 writes (NLL from 3 to 1 nats); `--retry` with `--set max_steps=20` may help"),
        ({"last": score(3.5)}, "`--retry` with `--set rho=0.5` and `--set max_steps=20` may help"),
        ({"stopped": HARM}, f"{HARM}; `--retry` with `--set anchors.max_drift=2` may help"),
        ({"stopped": "a write is not finite"}, "`--retry` with `--set max_write=0.0125` may help"),
        ({"worsened": ["e7"]}, "`e7` pulls against it: check that they do not contradict each other"),
        ({"worsened": ["a", "b", "c", "d"]}, "`a`, `b`, `c` pull against it"),
        ({"drifts": {"a?": 0.01, "b?": 0.2, "c?": 0.5}}, "2 anchors pulled against it: `c?`, `b?`"),
        ({"drifts": {"b?": 0.2}}, "1 anchor pulled against it: `b?`"),
        ({"first": score(0.276)}, "the base is unsure here: it gave the target NLL 0.28 before any write"),
        ({"first": score(14.1)}, "the target is far from anything the model says here: check picture"),
        ({"first": score(14.1), "pictured": False}, "the model says here: check question and target; "),
    ],
)
def test_each_cause_is_named(changes: dict[str, object], said: str) -> None:
    assert said in explain(failure(**changes))


def test_only_causes_that_are_there_are_named() -> None:
    said = explain(failure(drifts={"a?": 0.01}))
    assert not any(word in said for word in ("anchor", "pull", "unsure", "far from"))
