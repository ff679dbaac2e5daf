"""Metadata of a model card: what the hub reads there about an edited checkpoint or an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from more_cli.ops.card import hub_id, titled

BASE = b"""---
license: llama2
language: [en]
pipeline_tag: image-text-to-text
base_model: org/older
base_model_relation: quantized
tags:
- vision
- m-ore
model-index:
- name: base
new_version: org/newer
---
# A card
---
text
"""


def metadata(card: bytes) -> dict[str, Any]:
    head, _, _ = card.removeprefix(b"---\n").partition(b"\n---\n")
    values = yaml.safe_load(head)
    assert isinstance(values, dict)
    return values


def test_an_edited_checkpoint_keeps_the_bases_licence_and_names_the_base() -> None:
    card = titled(BASE, "finetune", "org/base")
    assert metadata(card) == {
        "license": "llama2",
        "language": ["en"],
        "pipeline_tag": "image-text-to-text",
        "base_model": "org/base",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "tags": ["vision", "m-ore", "model-editing"],
    }
    assert card.endswith(b"---\n# A card\n---\ntext\n")


def test_the_hubs_own_library_reads_it(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "README.md").write_bytes(titled(BASE, "finetune", "org/base"))
    data = hub.ModelCard.load(tmp_path / "README.md").data
    assert (data.base_model, data.license, data.library_name) == ("org/base", "llama2", "transformers")


def test_metadata_that_cannot_be_written_again_stays_as_it_is() -> None:
    """YAML reads a number of any length in hexadecimal, and Python writes none of more than 4,300 digits."""
    card = b"---\nsize: 0x" + b"f" * 5000 + b"\n---\n# A card\n"
    assert titled(card, "finetune", "org/base") == card
    assert titled(card, "adapter", "org/base") == b""


def test_an_adapter_takes_licence_and_task_but_not_the_text() -> None:
    assert titled(BASE, "adapter", "org/base").endswith(b"---\n")
    assert metadata(titled(BASE, "adapter", "org/base")) == {
        "license": "llama2",
        "language": ["en"],
        "pipeline_tag": "image-text-to-text",
        "base_model": "org/base",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "tags": ["model-editing", "m-ore"],
    }


def test_without_an_id_the_bases_own_origin_stays_and_no_name_is_made_up() -> None:
    assert metadata(titled(BASE, "finetune", None))["base_model"] == "org/older"
    assert "base_model" not in metadata(titled(b"# A card", "finetune", None))


@pytest.mark.parametrize(
    "block",
    [
        *(b"a: [", b"- a\n- b", b"a: \xff", b"&a [*a", b"!!python/object/apply:os.system ['true']", b"a: 2024-99-99"),
        *(
            b"a: !!bool maybe",
            b"a: !!timestamp soon",
            b'a: !!int ""',
            b'a: "\\UFFFFFFFF"',
            b"a: " + b"1:" * 300 + b"1.5",
        ),
    ],
)
def test_metadata_that_cannot_be_read_is_left_as_it_is(block: bytes) -> None:
    card = b"---\n" + block + b"\n---\n# A card\n"
    assert titled(card, "finetune", "org/base") == card
    assert titled(card, "adapter", "org/base") == b""


@pytest.mark.parametrize("card", [b"", b"# A card\n", b"---\nnot closed\n", b"----\na: b\n----\n", b"\xff"])
def test_a_card_without_metadata_gets_some_above_it(card: bytes) -> None:
    titles = titled(card, "finetune", "org/base")
    assert metadata(titles)["base_model"] == "org/base"
    assert titles.endswith(b"---\n" + card)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_empty_metadata_and_other_line_ends_are_read(end: bytes) -> None:
    assert metadata(titled(end.join((b"---", b"license: mit", b"---", b"x")), "finetune", None))["license"] == "mit"
    empty = titled(end.join((b"---", b"---", b"x")), "finetune", "org/base")
    assert (metadata(empty)["base_model"], empty[-5:]) == ("org/base", b"---\nx")


def test_the_id_is_that_of_the_hubs_cache_or_of_the_config(tmp_path: Path) -> None:
    cached = tmp_path / "models--llava-hf--llava-1.5-7b-hf" / "snapshots" / "abc"
    assert hub_id(cached, {}) == "llava-hf/llava-1.5-7b-hf"
    assert hub_id(tmp_path / "llava", {"_name_or_path": "llava-hf/llava-1.5-7b-hf"}) == "llava-hf/llava-1.5-7b-hf"
    for path in ("/data/llava", "./llava", "llava", "a/b/c", 3, None):
        assert hub_id(tmp_path / "llava", {"_name_or_path": path}) is None
