"""What loading a quantised model does to its Linears."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.model.batches import Query
from more_cli.model.branches import Branch, computes_beside
from more_cli.model.loading import load_runtime
from support import tiny
from support.quantised import quantise

pytest.importorskip("bitsandbytes")


@pytest.mark.parametrize("scheme", ["int8", "nf4"])
def test_the_first_pass_without_gradients_does_not_end_them(tmp_path: Path, scheme: str) -> None:
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
