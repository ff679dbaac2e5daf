"""Equal effort: every editor has as many settings to try, around its own, over more than one constant."""

from __future__ import annotations

from typing import Any

import pytest

from more_cli.demo.files import demo_model_dir
from more_cli.editors.registry import EditorOptions, editor_names, entry_of
from more_lab.experiments.calibrate import at_edge, settings_of

TRIED = [(), ("rate=0.001",), ("rate=0.1",), ("steps=5",), ("steps=50",), ("mode=all",)]

TRIES = 8
"""Settings that calibration tries of every editor beside its own: the same effort for all."""


def test_every_editor_has_the_same_number_of_tries_over_several_constants() -> None:
    for name in sorted(set(editor_names()) - {"none"}):
        tries = entry_of(name).tries
        assert len(set(tries)) == len(tries) == TRIES, name
        assert len({text.split("=")[0] for setting in tries for text in setting}) >= 2, f"{name}: learning rates alone"
        assert settings_of(entry_of(name), TRIES + 1) == [(), *tries], name


@pytest.mark.parametrize(
    ("chosen", "edge"),
    [
        ((), []),
        (("rate=0.01", "steps=20"), []),
        (("rate=0.001",), ["rate=0.001"]),
        (("rate=0.01", "steps=50"), ["steps=50"]),
        (("mode=all",), []),
    ],
)
def test_a_choice_at_the_edge_of_what_was_tried_is_named(chosen: tuple[str, ...], edge: list[str]) -> None:
    assert at_edge([*TRIED, ("rate=0.01", "steps=20")], chosen) == edge


@pytest.mark.parametrize("name", sorted(set(editor_names()) - {"none"}))
def test_the_own_value_lies_between_those_that_are_tried(name: str) -> None:
    constants = entry_of(name).make(EditorOptions(demo_model_dir())).constants()
    tried: dict[str, list[float]] = {}
    for text in (text for setting in entry_of(name).tries for text in setting):
        key, value = text.split("=")
        own: Any = constants
        for part in key.split("."):
            own = own.get(part, own.get({"lambda": "ridge", "lambda_rel": "ridge_rel"}.get(part, part)))
        if isinstance(own, int | float):
            tried.setdefault(f"{key} {own}", []).append(float(value))
    for key, values in tried.items():
        assert min(values) < float(key.split()[1]) < max(values), f"{key}: {values}"
