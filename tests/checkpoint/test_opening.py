"""Bytes against bytes: what is read and fingerprinted, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from more_cli.checkpoint import headers as module
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.quantised import quantisation
from more_cli.checkpoint.reader import fingerprint
from more_cli.errors import StateError
from support import tiny

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
LINEAR = "language_model.model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny.tiny_llava(tmp_path / "base", shards=2)


def refused(path: Path) -> StateError:
    with pytest.raises(StateError) as caught:
        open_checkpoint(path)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


# ------------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_tensors_are_those_safetensors_reads(tmp_path: Path, shards: int, dtype: str) -> None:
    path = tiny.tiny_llava(tmp_path, shards=shards, dtype=dtype)
    opened = open_checkpoint(path)
    theirs = tiny.read_weights(path)
    assert opened.tensors.keys() == theirs.keys()
    assert len(opened.shards) == shards
    for key, entry in opened.tensors.items():
        assert entry.shape == tuple(theirs[key].shape)
        assert tiny.raw(opened.read_tensor(entry)) == tiny.raw(theirs[key])
        on_disk = (path / entry.shard).read_bytes()[entry.start : entry.stop]
        assert on_disk == tiny.raw(theirs[key])
    assert tiny.raw(opened.read_rows(opened.tensors[LINEAR], 3, 10)) == tiny.raw(theirs[LINEAR][3:10])


def test_scalars_and_empty_tensors_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"s": torch.tensor(2.5), "e": torch.zeros(0, 3)}, tmp_path / tiny.SINGLE)
    opened = open_checkpoint(tmp_path)
    assert opened.read_tensor(opened.tensors["s"]) == 2.5
    assert opened.read_tensor(opened.tensors["e"]).shape == (0, 3)


def test_opening_reads_headers_only(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", pytest.fail)
    assert LINEAR in open_checkpoint(base).tensors


def test_missing_folder(tmp_path: Path) -> None:
    assert "no such directory" in refused(tmp_path / "nothing").message


def test_hub_id_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(Path("llava-hf/llava-1.5-7b-hf"))
    assert "nothing is fetched" in error.hint
    assert "hf download llava-hf/llava-1.5-7b-hf" in error.hint


def test_file_instead_of_folder(base: Path) -> None:
    assert "not a checkpoint directory" in refused(base / "config.json").message


def test_no_config(base: Path) -> None:
    (base / "config.json").unlink()
    assert "no config.json" in refused(base).message


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["LlavaLlamaForCausalLM"]},
        {"architectures": [7, "LlavaQwenForCausalLM"]},
        {"model_type": "llava_mistral", "architectures": None},
        {"mm_vision_tower": "openai/clip-vit-large-patch14-336", "architectures": "LlavaNext"},
    ],
)
def test_original_llava(base: Path, change: dict[str, object]) -> None:
    tiny.set_config(base, **change)
    error = refused(base)
    assert "a checkpoint of LLaVA's own code" in error.message
    assert "convert_llava_weights_to_hf.py" in error.hint


@pytest.mark.parametrize(
    ("content", "into"),
    [
        ('{"base_model_name_or_path": "llava-hf/llava-1.5-7b-hf"}', "'llava-hf/llava-1.5-7b-hf'"),
        ('{"base_model_name_or_path": "\\u001b[2J"}', "'�[2J'"),
        ("{}", "its base"),
        ("{", "its base"),
    ],
)
def test_an_adapter_names_its_base(tmp_path: Path, content: str, into: str) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    assert refused(tmp_path).hint.startswith(f"merge it into {into} first")


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", '{"a": 1, "a": 2}', "[" * 100_000])
def test_broken_config(base: Path, text: str) -> None:
    (base / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in refused(base).message


def test_config_that_names_other_weights(base: Path) -> None:
    tiny.set_config(base, transformers_weights="other.safetensors")
    assert "other.safetensors" in refused(base).message


def test_only_pickles(base: Path) -> None:
    assert "pytorch_model.bin" in refused(tiny.bin_only(base)).message


def test_no_weights_at_all(base: Path) -> None:
    for shard in base.glob("model*"):
        shard.unlink()
    assert "no model.safetensors" in refused(base).message


def test_adapter_inside(base: Path) -> None:
    assert "adapter_config.json" in refused(tiny.with_adapter(base)).message


def test_truncated_shard(base: Path) -> None:
    message = refused(tiny.truncated(base)).message
    assert "model-00002-of-00002.safetensors" in message
    assert "truncated" in message


def test_key_in_two_shards(base: Path) -> None:
    message = refused(tiny.key_in_two_shards(base)).message
    assert "model-00001-of-00002.safetensors" in message
    assert "model-00002-of-00002.safetensors" in message


def test_lfs_pointer(base: Path) -> None:
    (base / "model-00001-of-00002.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0")
    assert "git lfs pull" in refused(base).message


def test_missing_shard(base: Path) -> None:
    (base / "model-00001-of-00002.safetensors").unlink()
    assert "model-00001-of-00002.safetensors is missing" in refused(base).message


def test_two_sets_of_weights(base: Path) -> None:
    shutil.copy(base / "model-00001-of-00002.safetensors", base / tiny.SINGLE)
    assert "two sets of weights" in refused(base).message


@pytest.mark.parametrize(
    "change",
    [
        {"absent.weight": "model-00001-of-00002.safetensors"},
        {"x": "/etc/passwd.safetensors"},
        {"x": "../base/model-00001-of-00002.safetensors"},
        {"x": "..\\model.safetensors"},
        {"x": "config.json"},
        {"x": "a\0.safetensors"},
        {"x": 3},
    ],
)
def test_index_that_does_not_fit(base: Path, change: dict[str, object]) -> None:
    index = json.loads((base / tiny.INDEX).read_text())
    index["weight_map"].update(change)
    (base / tiny.INDEX).write_text(json.dumps(index))
    assert tiny.INDEX in refused(base).message


def test_an_index_without_metadata_is_refused_as_transformers_refuses_it(base: Path) -> None:
    index = json.loads((base / tiny.INDEX).read_text())
    (base / tiny.INDEX).write_text(json.dumps(index | {"metadata": {}}))
    open_checkpoint(base)  # no total_size is needed
    del index["metadata"]
    (base / tiny.INDEX).write_text(json.dumps(index))
    assert f"{tiny.INDEX}: no metadata" in refused(base).message


# ------------------------------------------------------------------------------------------------ hostile headers


def write_header(directory: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (directory / "config.json").write_text("{}")
    size = len(text) if length is None else length
    (directory / tiny.SINGLE).write_bytes(size.to_bytes(8, "little") + text + data)
    return directory


def tensor(**change: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **change}


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 1},
        {"a": tensor(dtype="F1")},
        {"a": tensor(dtype=[1])},
        {"a": tensor(dtype="BF16")},
        {"a": tensor(shape=[2])},
        {"a": tensor(shape=[-1])},
        {"a": tensor(shape=[True])},
        {"a": tensor(shape=[1.0])},
        {"a": tensor(shape=[1 << 80])},
        {"a": tensor(shape=[1] * 100)},
        {"a": tensor(shape="1")},
        {"a": tensor(data_offsets=[4, 0])},
        {"a": tensor(data_offsets=[4, 8])},
        {"a": tensor(data_offsets=[0, 4, 8])},
        {"a": tensor(), "b": tensor()},
        {"a\n": tensor()},
        {},
        b'{"a":' * 50_000,
        b"\xff\xfe",
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {}}',
    ],
)
def test_hostile_header(tmp_path: Path, header: object) -> None:
    assert tiny.SINGLE in refused(write_header(tmp_path, header, bytes(4))).message


@pytest.mark.parametrize("length", [0, 1, 10_000, 1 << 40, (1 << 64) - 1])
def test_hostile_header_length(tmp_path: Path, length: int) -> None:
    assert tiny.SINGLE in refused(write_header(tmp_path, {"a": tensor()}, bytes(4), length)).message


def test_header_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_header(tmp_path, {"a": tensor()}, bytes(4))
    monkeypatch.setattr(module, "_HEADER_LIMIT", 20)
    assert "a header of" in refused(tmp_path).message


GOOD = {
    "__metadata__": {"format": "pt"},
    "a.weight": tensor(shape=[2, 3], data_offsets=[0, 24]),
    "b.weight": tensor(dtype="BF16", shape=[4], data_offsets=[24, 32]),
}


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_shards_open_or_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray((write_header(tmp_path, GOOD, bytes(32)) / tiny.SINGLE).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(whole) - 1))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"[", b"}", b"9", b"-", b",", b"e9"]))
        whole[place : place + data.draw(st.integers(0, 4))] = piece
    (tmp_path / tiny.SINGLE).write_bytes(bytes(whole))
    with suppress(StateError):
        for entry in open_checkpoint(tmp_path).tensors.values():
            assert 8 <= entry.start <= entry.stop <= len(whole)


# ------------------------------------------------------------------------------------------------ reading


def test_quantised_tensors_are_not_read(base: Path) -> None:
    path = tiny.quantised(base, LINEAR.removesuffix(".weight"))
    opened = open_checkpoint(path)
    with pytest.raises(StateError, match="dtype U8"):
        opened.read_tensor(opened.tensors[LINEAR])
    assert quantisation(opened.config) == {"quantization_config": "bitsandbytes"}


def test_quantisation_is_found_at_any_depth() -> None:
    config = {
        "text_config": {"quantization_config": {"quant_method": "gptq"}},
        "quantization_config": {"load_in_8bit": True},
        "a": {"b": {"compression_config": {}}},
    }
    assert quantisation(config) == {
        "a.b.compression_config": "unknown",
        "quantization_config": "bitsandbytes",
        "text_config.quantization_config": "gptq",
    }


def test_shard_that_shrank_after_opening(base: Path) -> None:
    opened = open_checkpoint(base)
    entry = max(opened.tensors.values(), key=lambda entry: entry.stop)
    os.truncate(base / entry.shard, entry.stop - 1)
    with pytest.raises(StateError, match="shorter"):
        opened.read_tensor(entry)
    with pytest.raises(StateError, match="shorter"):
        fingerprint(opened, [entry.key])


# ------------------------------------------------------------------------------------------------ fingerprint


def test_fingerprint_does_not_depend_on_the_place(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "elsewhere")
    ours = fingerprint(open_checkpoint(base), [LINEAR])
    assert ours == fingerprint(open_checkpoint(tmp_path / "elsewhere"), [LINEAR])
    assert json.loads(json.dumps(ours)) == ours
    assert str(tmp_path) not in json.dumps(ours)
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "processor_config.json", "chat_template.jinja"}
    assert ours.keys() == {"config.json", "headers", f"tensor:{LINEAR}", *tokenizer}


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "processor_config.json"])
def test_fingerprint_sees_every_file(base: Path, name: str) -> None:
    before = fingerprint(open_checkpoint(base), [])
    (base / name).write_bytes((base / name).read_bytes() + b" ")
    after = fingerprint(open_checkpoint(base), [])
    assert {key for key in before if before[key] != after[key]} == {name}


def test_a_file_that_stays_as_it_is_is_read_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, read = open_checkpoint(base), list[str]()
    hashed = module._hashed

    def counted(path: Path, start: int, stop: int) -> str:
        read.append(path.name)
        return hashed(path, start, stop)

    monkeypatch.setattr(module, "_hashed", counted)
    monkeypatch.setattr(module, "SETTLED", -1.0)  # the time of the last change cannot be set back
    first = fingerprint(opened, [LINEAR])
    assert read
    read.clear()
    assert fingerprint(open_checkpoint(base), [LINEAR]) == first
    assert read == []
    entry = opened.tensors[LINEAR]
    with (base / entry.shard).open("r+b") as file:  # in place, and as old as before
        file.seek(entry.start)
        file.write(b"\xff")
    os.utime(base / entry.shard, (time.time() - 3600,) * 2)
    assert fingerprint(opened, [LINEAR]) != first
    assert read == [entry.shard]


def test_a_file_that_has_just_changed_is_read_again(base: Path) -> None:
    found = set[str]()
    for value in b"abcdefgh":  # all of them perhaps within one tick of the file system's clock
        (base / "config.json").write_bytes((base / "config.json").read_bytes()[:-1] + bytes([value]))
        size = (base / "config.json").stat().st_size
        found.add(module.range_sha256(base / "config.json", 0, size))
    assert len(found) == 8


def test_fingerprint_sees_site_bytes_and_headers(base: Path) -> None:
    before = fingerprint(open_checkpoint(base), [LINEAR])
    tensors = tiny.read_weights(base)
    tensors[LINEAR][0, 0] += 1
    tiny.write_weights(base, tensors, 2)
    opened = open_checkpoint(base)
    after = fingerprint(opened, [LINEAR])
    assert before[f"tensor:{LINEAR}"] != after[f"tensor:{LINEAR}"]
    assert fingerprint(opened, []) == {key: after[key] for key in after if not key.startswith("tensor:")}
    tiny.write_weights(base, {**tensors, "extra": torch.zeros(1)}, 2)
    assert fingerprint(open_checkpoint(base), [])["headers"] != after["headers"]
