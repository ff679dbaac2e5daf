"""One thread for every test: small matrices gain nothing from more, and bytes depend on the number.

And a tiny LLaVA with its sites, for the tests of editors.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.model.backbones import Site, find_sites
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from support.tiny import make_model, make_processor, tiny_llava

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> list[Site]:
    checkpoint = open_checkpoint(tiny_llava(tmp_path_factory.mktemp("tiny") / "llava"))
    model = meta_model(checkpoint)
    found, refusals = find_sites(model, key_map(model, checkpoint), checkpoint, ("text.ffn_out", "projector"), 2)
    assert not refusals
    return found


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    processor = make_processor()
    model = make_model(processor.tokenizer, text_layers=4, seed=0).eval()
    return Runtime(model, Prompter(processor))
