"""What loading a quantised model does to its Linears."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.quantised import matrix
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError
from more_cli.inputs.images import ImageSource
from more_cli.model.batches import Query
from more_cli.model.branches import Branch, computes_beside
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import load_runtime
from support import tiny
from support.editing import picture
from support.quantised import COMPRESSED, quantise
from support.tiny_families import tiny_family

SITES = {"model.multi_modal_projector.linear_1": 64, "model.language_model.layers.0.mlp.down_proj": 128}
"""Of the tiny LLaVA, with their numbers of inputs."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scheme", COMPRESSED)
def test_gradients_are_those_of_plain_weights(tmp_path: Path, scheme: str, dtype: str) -> None:
    """To the bit those of a checkpoint whose weights are the matrices that the packed ones stand for."""
    full = tiny.tiny_llava(tmp_path / "full", text_layers=2, wide=True, dtype=dtype)
    packed = open_checkpoint(quantise(full, tmp_path / "packed", scheme))
    plain = open_checkpoint(dequantised(packed, full))
    ours, theirs = gradients(packed, picture(tmp_path)), gradients(plain, picture(tmp_path))
    assert ours.keys() == theirs.keys() == SITES.keys()
    for site in SITES:
        assert bool(theirs[site].any())
        assert ours[site].equal(theirs[site]), site


@pytest.mark.parametrize("scheme", ["W4A16", "W8A16 naive", "float8"])
def test_the_model_answers_as_transformers_loads_it_by_itself(tmp_path: Path, scheme: str) -> None:
    full = tiny_family(tmp_path / "full", "qwen2_vl", dtype="bfloat16", wide=True)
    opened = open_checkpoint(quantise(full, tmp_path / "packed", scheme))
    served = AutoModelForImageTextToText.from_pretrained(opened.path, dtype="auto").eval()
    runtime = load_runtime(opened)
    batch = runtime.batch([runtime.encode(Query((picture(tmp_path),), "what is it ?"), "a red square")])
    with torch.no_grad():
        theirs = served(**batch.inputs).logits[:, batch.keep]
    assert runtime.score(batch).logits.equal(theirs)


def dequantised(packed: Checkpoint, full: Path) -> Path:
    """Replace the weights of a full checkpoint by the matrices of a packed one."""
    tensors = tiny.read_weights(full)
    plain = open_checkpoint(full)
    names = key_map(meta_model(plain), plain).disk
    for name, key in key_map(meta_model(packed), packed).disk.items():
        if key in packed.packed:
            tensors[names[name]] = matrix(packed, packed.packed[key]).to(tensors[names[name]].dtype)
    tiny.write_weights(full, tensors)
    return full


def gradients(checkpoint: Checkpoint, image: ImageSource) -> dict[str, torch.Tensor]:
    """The gradient of B at every site, after a pass without gradients."""
    runtime, generator = load_runtime(checkpoint), torch.Generator().manual_seed(0)
    outputs = {path: runtime.model.get_submodule(path).out_features for path in SITES}
    branches = {
        path: Branch(path, path, torch.randn(4, inputs, generator=generator), torch.zeros(outputs[path], 4), 1.0)
        for path, inputs in SITES.items()
    }
    with runtime.attached(list(branches.values())):
        batch = runtime.batch([runtime.encode(Query((image,), "a photo of"), "a red square")])
        runtime.score(batch)
        runtime.backward(runtime.score(batch, record=True).logits.float().square().sum())
        return {path: branch.gradient().dense() for path, branch in branches.items()}


@pytest.mark.parametrize("scheme", ["int8", "nf4"])
def test_the_first_pass_without_gradients_does_not_end_them(tmp_path: Path, scheme: str) -> None:
    pytest.importorskip("bitsandbytes")
    full = tiny.tiny_llava(tmp_path / "full", text_layers=2, wide=True, dtype="bfloat16")
    checkpoint = open_checkpoint(quantise(full, tmp_path / "packed", scheme))
    path = "model.language_model.layers.0.mlp.down_proj"
    A = torch.randn(4, 128)

    def gradient(passes: int) -> torch.Tensor:
        """The gradient of B after so many passes without gradients."""
        runtime, branch = load_runtime(checkpoint), Branch("site", path, A, torch.zeros(64, 4), 1.0)
        assert computes_beside(runtime.model, path) is torch.bfloat16
        with runtime.attached([branch]):
            batch = runtime.batch([runtime.encode(Query((), "a photo of"), "a red square")])
            for _ in range(passes):
                runtime.score(batch)
            runtime.backward(runtime.score(batch, record=True).logits.float().square().sum())
            return branch.gradient().dense()

    fresh = gradient(0)
    assert bool(fresh.any())
    assert gradient(2).equal(fresh)


def test_a_package_that_fetches_kernels_is_not_there_while_bitsandbytes_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `kernels` it takes a kernel from the hub, on processors with AVX512-BF16."""
    from more_cli.model.quantised import _without

    present = type(sys)("kernels")
    monkeypatch.setitem(sys.modules, "kernels", present)
    with _without("kernels"), pytest.raises(ImportError):
        import kernels  # noqa: F401
    assert sys.modules["kernels"] is present


def test_a_transformers_that_does_not_unpack_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier one leaves 4 and 8 bits packed until the whole model runs."""
    full = tiny.tiny_llava(tmp_path / "full", text_layers=1, wide=True)
    checkpoint = open_checkpoint(quantise(full, tmp_path / "packed", "W4A16"))
    monkeypatch.setattr("transformers.CompressedTensorsConfig", lambda run_compressed=True: None)
    with pytest.raises(StateError, match="does not unpack as it loads") as failed:
        load_runtime(checkpoint)
    assert failed.value.hint == "pip install --upgrade transformers"
