"""Where image features lie in a sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.model.batches import Query
from more_cli.model.loading import load_runtime
from more_cli.model.runtime import Runtime
from support.editing import picture
from support.tiny_families import tiny_family


def encoded(runtime: Runtime, folder: Path):
    shown = runtime.encode(Query((picture(folder),), "what is in the image ?"), "7")
    return [shown, runtime.encode(Query((), "what is it ?"), "a dog")]


@pytest.mark.parametrize("family", ["llava", "blip-2", "instructblip", "qwen2_vl"])
def test_image_tokens_are_where_the_model_puts_features(runtime: Runtime, tmp_path: Path, family: str) -> None:
    if family != "llava":
        runtime = load_runtime(open_checkpoint(tiny_family(tmp_path / "model", family)))
    batch = runtime.batch(encoded(runtime, tmp_path)[:1])
    inputs, found = batch.inputs, []

    def keep(module, args, kwargs) -> None:
        found.append(kwargs["inputs_embeds"])

    text = runtime.model.get_decoder()
    handle = text.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        runtime.model(**inputs, use_cache=False)
    handle.remove()
    own = runtime.model.get_input_embeddings()(inputs["input_ids"])
    places = runtime.image_tokens(batch)
    assert places.any()
    assert torch.equal(places, (found[0] != own).any(dim=-1)), "elsewhere are the embeddings of the tokens"


def test_each_row_has_its_own(runtime: Runtime, tmp_path: Path) -> None:
    shown, asked = encoded(runtime, tmp_path)
    together = runtime.image_tokens(runtime.batch([asked, shown]))
    alone = runtime.image_tokens(runtime.batch([shown]))
    assert not together[0].any()
    assert torch.equal(together[1, -alone.shape[1] :], alone[0])
    assert together[1].sum() == alone.sum() == 4


def test_a_decoder_that_only_looks_at_the_image_holds_none(tmp_path: Path) -> None:
    runtime = load_runtime(open_checkpoint(tiny_family(tmp_path / "model", "blip-2 t5")))
    batch = runtime.batch(encoded(runtime, tmp_path)[:1])
    places = runtime.image_tokens(batch)
    assert places.shape == batch.answer.shape
    assert not places.any()
