"""What an editor says it changed is what it changed: added to the weights, it gives the edited model's logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.inputs.images import grey_image
from more_cli.model.batches import Query
from more_cli.model.loading import load_runtime
from support.tiny import tiny_llava

SETTINGS = {
    "more": ("max_steps=2",),
    "ft-l": ("steps=2",),
    "ft-m": ("steps=2",),
    "lora": ("steps=2",),
    "scopeedit": ("steps=1", "locality=0"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llava(tmp_path_factory.mktemp("tiny") / "llava")


@pytest.mark.parametrize("name", SETTINGS)
def test_the_changes_of_an_editor_are_its_effect(model: Path, name: str) -> None:
    runtime = load_runtime(open_checkpoint(model))
    editor = entry_of(name).make(EditorOptions(model, settings=SETTINGS[name]))
    query = Query((grey_image(),), "what colour is it ?")
    before = runtime.score(runtime.batch([runtime.encode(query, "r")])).logits
    with editor.attach(runtime):
        first = editor.changes()
        assert all(not bool(change.dense().any()) for change in first.values())
        editor.edit(EditRequest("e", query, "r"), EditContext())
        changes = editor.changes()
        edited = runtime.score(runtime.batch([runtime.encode(query, "r")])).logits
    assert set(first) == set(changes)
    biased = {}
    if name == "ft-m":  # biases are vectors, which no analysis of matrices reads
        trained = editor.state_dict()
        biased = {path: value for path, value in trained.items() if path.endswith(".bias")}
    with torch.no_grad():
        for path, change in changes.items():
            runtime.model.get_submodule(path).weight += change.dense()
        for path, value in biased.items():
            runtime.model.get_parameter(path).copy_(value)
    added = runtime.score(runtime.batch([runtime.encode(query, "r")])).logits
    assert float((added - edited).abs().max()) < 2e-3 * float((edited - before).abs().max()) + 1e-5


def test_an_editor_of_prompts_changes_no_weights(model: Path) -> None:
    runtime = load_runtime(open_checkpoint(model))
    editor = entry_of("none").make(EditorOptions(model))
    with editor.attach(runtime):
        assert editor.changes() == {}
