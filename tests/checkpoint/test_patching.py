"""Copies of a checkpoint, bytes against bytes: only what is patched differs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from more_cli.checkpoint import copying
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.patching import copy_patched
from more_cli.errors import StateError
from more_cli.files import sha256_bytes
from support import tiny
from support.helpers import wait_for

LINEAR = "language_model.model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny.tiny_llava(tmp_path / "base", shards=2)


def contents(directory: Path) -> dict[str, bytes]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): file.read_bytes() for file in files}


# ------------------------------------------------------------------------------------------------ copying


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_only_patched_ranges_change(tmp_path: Path, shards: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK", 1000)
    base = tiny.tiny_llava(tmp_path / "base", shards=shards, dtype=dtype, layout="old_hub")
    opened = open_checkpoint(base)
    before = tiny.read_weights(base)
    keys = [LINEAR, "multi_modal_projector.linear_1.weight", "multi_modal_projector.linear_1.bias"]
    added = {key: torch.randn(before[key].shape) for key in keys}

    def patch(key: str) -> Callable[[torch.Tensor, int], torch.Tensor]:
        return lambda rows, first: (rows.float() + added[key][first : first + len(rows)]).to(rows.dtype)

    copied = copy_patched(opened, tmp_path / "out", keys, lambda: {key: patch(key) for key in keys})
    assert copied.left_out == []
    old, new = contents(base), contents(tmp_path / "out")
    assert old.keys() == new.keys()
    for key in keys:
        entry = opened.tensors[key]
        wanted = tiny.raw((before[key].float() + added[key]).to(before[key].dtype))
        assert new[entry.shard][entry.start : entry.stop] == wanted
        assert copied.sha256.pop(key) == sha256_bytes(wanted)
        # Put the old bytes back: then not one byte may differ.
        spliced = bytearray(new[entry.shard])
        spliced[entry.start : entry.stop] = old[entry.shard][entry.start : entry.stop]
        new[entry.shard] = bytes(spliced)
    assert old == new
    assert copied.sha256 == {}
    assert open_checkpoint(tmp_path / "out").tensors == opened.tensors


def test_chunks_are_all_rows_in_order(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK", 7 * 96 * 4 + 1)
    opened = open_checkpoint(base)
    seen: list[tuple[int, int]] = []

    def patch(rows: torch.Tensor, first: int) -> torch.Tensor:
        seen.append((first, len(rows)))
        return rows

    copy_patched(opened, tmp_path / "out", [LINEAR], lambda: {LINEAR: patch})
    assert seen == [(first, min(7, 64 - first)) for first in range(0, 64, 7)]
    assert contents(base) == contents(tmp_path / "out")


def test_files_are_copied_while_patches_are_made(base: Path, tmp_path: Path) -> None:
    def patches() -> dict[str, Callable[[torch.Tensor, int], torch.Tensor]]:
        wait_for(lambda: contents(tmp_path / "out") == contents(base))
        return {LINEAR: lambda rows, first: rows + 1}

    copy_patched(open_checkpoint(base), tmp_path / "out", [LINEAR], patches)
    assert contents(tmp_path / "out") != contents(base)


def test_a_copy_whose_patches_cannot_be_had_ends(base: Path, tmp_path: Path) -> None:
    def patches() -> dict[str, Callable[[torch.Tensor, int], torch.Tensor]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_patched(open_checkpoint(base), tmp_path / "out", [LINEAR], patches)


def test_progress_ends_at_the_whole(base: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    copy_patched(open_checkpoint(base), tmp_path / "out", [], dict, on_bytes=lambda *args: seen.append(args))
    total = sum(len(content) for content in contents(base).values())
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


def test_copy_without_kernel_help(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def part_then_fail(source: int, target: int, size: int) -> int:
        calls.append(size)
        if len(calls) % 2:
            return os.write(target, os.read(source, 100))
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", part_then_fail, raising=False)
    copy_patched(open_checkpoint(base), tmp_path / "out", [LINEAR], lambda: {LINEAR: lambda rows, first: rows})
    assert calls
    assert contents(base) == contents(tmp_path / "out")


def test_hub_cache_snapshot(base: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(base.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    before = contents(blobs)
    copy_patched(open_checkpoint(snapshot), tmp_path / "out", [LINEAR], lambda: {LINEAR: lambda rows, first: rows + 1})
    assert contents(blobs) == before
    assert not any(file.is_symlink() for file in (tmp_path / "out").iterdir())
    assert contents(tmp_path / "out").keys() == contents(base).keys()
    assert contents(tmp_path / "out") != contents(base)


def test_stale_copies_stay_behind(base: Path, tmp_path: Path) -> None:
    stale = ["pytorch_model.bin", "consolidated.00.pth", "model.gguf", "model.fp16.safetensors", "training.pt"]
    stale += ["original/params.json", ".git/HEAD", "onnx/model.onnx", "sub/extra.safetensors", "flax.msgpack"]
    stale += ["checkpoint-500/trainer_state.json"]
    kept = ["chat_templates/tool.jinja", "README.md", ".gitattributes", "empty.txt"]
    for name in [*stale, *kept]:
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("" if name == "empty.txt" else name)
    (base / "dead.txt").symlink_to("nowhere")
    (base / "loop").symlink_to(".")
    left = copy_patched(open_checkpoint(base), tmp_path / "out", [], dict).left_out
    whole = [name for name in stale if name.startswith(("original/", ".git/", "onnx/", "checkpoint-"))]
    folders = {name: f"{name.partition('/')[0]}/" for name in whole}
    assert left == sorted([*(folders.get(name, name) for name in stale), "dead.txt", "loop/"])
    assert contents(tmp_path / "out").keys() == contents(base).keys() - set(stale)
    assert (tmp_path / "out" / "chat_templates" / "tool.jinja").read_text() == "chat_templates/tool.jinja"


def test_copy_refusals(base: Path, tmp_path: Path) -> None:
    opened = open_checkpoint(base)
    with pytest.raises(StateError, match=r"no tensor 'x'"):
        copy_patched(opened, tmp_path / "unknown", ["x"], lambda: {"x": lambda rows, first: rows})
    with pytest.raises(StateError, match="inside the checkpoint"):
        copy_patched(opened, base / "merged", [], dict)
    assert not (tmp_path / "out").exists()
    copy_patched(opened, tmp_path / "out", [], dict)
    with pytest.raises(FileExistsError):
        copy_patched(opened, tmp_path / "out", [], dict)
    with pytest.raises(TypeError, match="patched to"):
        copy_patched(opened, tmp_path / "other", [LINEAR], lambda: {LINEAR: lambda rows, first: rows.double()})


def test_copy_of_a_checkpoint_that_changed(base: Path, tmp_path: Path) -> None:
    opened = open_checkpoint(base)
    entry = opened.tensors[LINEAR]
    tensors = {**opened.tensors, LINEAR: replace(entry, stop=1 << 40, start=(1 << 40) - entry.stop + entry.start)}
    with pytest.raises(StateError, match="shorter"):
        copy_patched(
            replace(opened, tensors=tensors), tmp_path / "out", [LINEAR], lambda: {LINEAR: lambda rows, first: rows}
        )


@pytest.mark.parametrize("kept", [0, 10_000])
def test_a_shard_that_shrinks_while_it_is_copied(
    base: Path, tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait for bytes that never come are let go, with the reason."""

    def short(source: FileIO, target: FileIO) -> Iterator[int]:
        if data := source.read(kept):
            yield target.write(data)

    monkeypatch.setattr(copying, "_copy_bytes", short)
    with pytest.raises(StateError, match=r"`.+` changed while it was copied"):
        copy_patched(open_checkpoint(base), tmp_path / "out", [LINEAR], lambda: {LINEAR: lambda rows, first: rows})


@pytest.mark.parametrize("piece", [1 << 28, 5000])
@pytest.mark.parametrize("patched", [True, False])
def test_every_byte_that_is_not_patched_is_compared(
    base: Path, tmp_path: Path, piece: int, patched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte of a copy is another, wherever it is: also in a tensor that might have been patched and was not."""
    opened = open_checkpoint(base)
    entry = opened.tensors[LINEAR]
    size = (base / entry.shard).stat().st_size
    inside, outside = [entry.start, entry.stop - 1], [0, entry.start - 1, entry.stop, size - 1]
    copy = copying._copy_bytes

    def spoilt(source: FileIO, target: FileIO) -> Iterator[int]:
        copied = sum(copy(source, target))
        if copied == size:
            os.pwrite(target.fileno(), bytes([os.pread(source.fileno(), 1, place)[0] ^ 1]), place)
        yield copied

    monkeypatch.setattr(copying, "_PIECE", piece)
    monkeypatch.setattr(copying, "_copy_bytes", spoilt)
    for place in outside if patched else outside + inside:
        patches = {LINEAR: lambda rows, first: rows + 1} if patched else {}
        with pytest.raises(StateError, match="differs from its base"):
            copy_patched(opened, tmp_path / str(place), [LINEAR], lambda patches=patches: patches)


def test_what_was_not_named_is_not_patched(base: Path, tmp_path: Path) -> None:
    """Its shard may be linked: then a patch would change the base itself."""
    opened, out = open_checkpoint(base), tmp_path / "out"
    elsewhere = next(key for key, entry in opened.tensors.items() if entry.shard != opened.tensors[LINEAR].shard)
    before = contents(base)
    out.mkdir()
    with pytest.raises(StateError, match="the state changed meanwhile"):
        copy_patched(opened, out, [elsewhere], lambda: {LINEAR: lambda rows, first: rows + 1}, link=True)
    assert (out / opened.tensors[LINEAR].shard).samefile(base / opened.tensors[LINEAR].shard)
    assert contents(base) == before


def test_what_is_named_need_not_be_patched(base: Path, tmp_path: Path) -> None:
    copied = copy_patched(open_checkpoint(base), tmp_path / "out", [LINEAR], dict)
    assert contents(tmp_path / "out") == contents(base)
    assert copied.sha256 == {}


# ------------------------------------------------------------------------------------------------ the disk


def test_full_disk(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        copy_patched(open_checkpoint(base), tmp_path / "out", [], dict)


def test_files_get_the_users_mode(base: Path, tmp_path: Path) -> None:
    for file in base.iterdir():
        file.chmod(0o400)
    copy_patched(open_checkpoint(base), tmp_path / "out", [], dict)
    umask = os.umask(0)
    os.umask(umask)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "out").iterdir()} == {0o666 & ~umask}


def test_patching_holds_a_chunk_not_a_tensor(tmp_path: Path) -> None:
    """One 256 MB tensor, patched in a process of its own: peak memory grows by less than 100 MB."""
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": torch.zeros(4096, 32768, dtype=torch.bfloat16)}, tmp_path / tiny.SINGLE)
    script = f"""
import resource, pathlib, torch
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.patching import copy_patched
torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
opened = open_checkpoint(pathlib.Path({str(tmp_path)!r}))
low = torch.ones(4096, 8), torch.ones(8, 32768)
before = peak()
fold = lambda rows, first: (rows.float() + low[0][first:first + len(rows)] @ low[1]).to(rows.dtype)
copy_patched(opened, pathlib.Path({str(tmp_path.parent / "big_out")!r}), ["w"], lambda: {{"w": fold}})
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    shutil.rmtree(tmp_path.parent / "big_out")
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 100_000_000
