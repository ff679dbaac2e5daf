"""One thread for every test: small matrices gain nothing from more, and bytes depend on the number.

A tiny LLaVA with its sites, for the tests of editors. And a check of every JSON object that a command prints.
"""

import os
import signal
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # the width of tables: the same wherever the tests run
os.environ.pop("FORCE_COLOR", None)
os.environ.pop("CLICOLOR_FORCE", None)

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.cli.output import Output
from more_cli.model.backbones import Site, find_sites
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import Runtime
from more_cli.outputs.base import Printed
from support.schemas import differences
from support.tiers import pytest_collection_modifyitems, pytest_ignore_collect  # noqa: F401 (pytest finds them here)
from support.tiny import make_model, make_processor, tiny_llava

torch.set_num_threads(1)
# A shell starts its background jobs deaf to Ctrl-C, and what they start is deaf too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _outputs_follow_their_schemas() -> Iterator[None]:
    """Compare every JSON object with its type; where it differs, the command that prints it fails."""
    original = Output.json

    def checked(self: Output, printed: Printed) -> None:
        original(self, printed)
        if self.as_json:
            wrong = differences(printed)
            assert not wrong, "\n".join(["an output is not as its type says", *wrong])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Output, "json", checked)
        yield


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
