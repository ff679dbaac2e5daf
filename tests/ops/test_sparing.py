"""What the tests of commands keep of a checkpoint is what its files are now."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.model.keymap import auto_class
from more_cli.model.loading import load_runtime
from support.tiny import SINGLE, read_weights, set_config, tiny_llava, write_weights

HEAD = "lm_head.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llava(tmp_path / "model", text_layers=1, layout="native")


def head(folder: Path) -> torch.Tensor:
    return load_runtime(open_checkpoint(folder)).model.lm_head.weight


def test_changed_weights_are_loaded_again(folder: Path) -> None:
    before = head(folder)
    tensors = read_weights(folder)
    tensors[HEAD] = tensors[HEAD] + 1
    write_weights(folder, tensors)
    assert torch.equal(head(folder), before + 1)


def test_a_command_changes_no_model_of_another(folder: Path) -> None:
    before = head(folder)
    kept = before.clone()
    before += 1
    assert torch.equal(head(folder), kept)


def test_what_is_kept_outlives_its_files(tmp_path: Path) -> None:
    first, again = (tiny_llava(tmp_path / name, text_layers=1, layout="native", seed=7) for name in ("first", "again"))
    before = head(first).clone()
    (first / SINGLE).write_bytes(b"")
    assert torch.equal(head(again), before), "a copy that was read from the mapped file would end the process"


def test_a_changed_config_makes_another_model(folder: Path) -> None:
    load_runtime(open_checkpoint(folder))
    set_config(folder, projector_hidden_act="relu")
    assert load_runtime(open_checkpoint(folder)).model.config.projector_hidden_act == "relu"


def test_a_copy_is_the_model_that_transformers_loads(folder: Path) -> None:
    for _ in range(2):
        ours = load_runtime(open_checkpoint(folder)).model
    theirs = auto_class(open_checkpoint(folder)).from_pretrained(folder, dtype="float32")
    assert type(ours) is type(theirs)
    found, wanted = ours.state_dict(), theirs.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
