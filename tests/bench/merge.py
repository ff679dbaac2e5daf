"""Time and memory of a merge on a synthetic 4 GB checkpoint with nine (2048, 5632) sites, r = 64; see speed.py.

Compared in this process with `shutil.copytree`, with the base in the page cache and without; in whole processes with
PEFT's `merge_and_unload` and `save_pretrained` of the same update.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from checkpoints import build
from more_cli.checkpoint.reader import fingerprint
from more_cli.cli.app import main as more
from more_cli.model.machine import Machine
from more_cli.ops.folding import patches_of
from more_cli.ops.session import open_session
from more_cli.store.state import load_state, save_state
from more_cli.store.target import locate
from processes import SETTLE, run

ROUNDS = 5
RECIPE = 'sites = ["text.ffn_out"]\nlast = 9\nrank = 64\n'
PEFT = """
import sys
from peft import PeftModel
from transformers import AutoModelForImageTextToText
model = AutoModelForImageTextToText.from_pretrained(sys.argv[1], dtype="bfloat16")
PeftModel.from_pretrained(model, sys.argv[2]).merge_and_unload().save_pretrained(sys.argv[3])
"""


def edited_state(folder: Path, model: Path) -> None:
    """Make a state whose B is not zero, as if edits had been written."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    assert more(["init", str(model), "--no-anchors", "--recipe", str(recipe), "-q"]) == 0
    path = model.with_name("model.more")
    state = load_state(path)
    generator = torch.Generator().manual_seed(0)
    state.B = {name: 0.01 * torch.randn(B.shape, generator=generator) for name, B in state.B.items()}
    save_state(path, state)


def measure(folder: Path, shape: str = "4GB") -> dict[str, Any]:
    """Return seconds of every round, and memory in MB."""
    model, adapter, out = folder / "model", folder / "adapter", folder / "out"
    if not model.exists():
        build(shape, model)
    if not model.with_name("model.more").exists():
        edited_state(folder, model)
    command = ["merge", str(model), "-o", str(out), "-q"]
    ways: dict[str, Callable[[], object]] = {
        "copytree": lambda: shutil.copytree(model, out),
        "copytree, on disk": lambda: (shutil.copytree(model, out), os.sync()),
        "merge": lambda: more(command),
        "merge --link": lambda: more([*command, "--link"]),
        "merge --sha256": lambda: more([*command, "--sha256"]),
    }
    found: dict[str, Any] = {"cold": {way: [] for way in ways}, "warm": {way: [] for way in ways}}
    for turn in range(ROUNDS):
        # The first place rotates: each way starts with the memory that the one before has left.
        order = list(ways)[turn % len(ways) :] + list(ways)[: turn % len(ways)]
        for cache, way in ((cache, way) for cache in ("cold", "warm") for way in order):
            found[cache][way].append(seconds(ways[way], model, out, cold=cache == "cold"))
    found["cores"] = parts(model, out)
    _, found["imports MB"] = run(sys.executable, "-c", "import more_cli.ops.session, more_cli.ops.folding")
    found["merge, process"] = timed(out, sys.executable, "-m", "more_cli", *command)
    shutil.rmtree(adapter, ignore_errors=True)
    assert more(["export", str(model), "-o", str(adapter), "-q"]) == 0
    found["PEFT, process"] = timed(out, sys.executable, "-c", PEFT, str(model), str(adapter), str(out))
    return found


def parts(model: Path, out: Path) -> dict[str, float]:
    """Return the core seconds of the parts of a merge with `--link`, with the base in the page cache."""
    session = open_session(locate(model, None), Machine())
    keys = {site.disk_key: site.disk_key for site in session.state.meta.sites}
    _, patches = patches_of(session.state, "nearest", 0, keys)
    checkpoint = session.checkpoint
    (shard,) = {checkpoint.tensors[key].shard for key in patches}

    def compare() -> None:
        old, new = bytearray(1 << 20), bytearray(1 << 20)
        with FileIO(model / shard) as ours, FileIO(out) as theirs:
            while ours.readinto(old):
                theirs.readinto(new)
                assert old == new

    def fold() -> None:
        for key, patch in patches.items():
            entry = checkpoint.tensors[key]
            for first in range(0, entry.shape[0], 46):
                patch(checkpoint.read_rows(entry, first, min(first + 46, entry.shape[0])), first)

    works: dict[str, Callable[[], object]] = {
        "opening the state and hashing the tensors of its base": lambda: open_session(locate(model, None), Machine()),
        f"copying {(model / shard).stat().st_size / 1e9:.1f} GB": lambda: shutil.copyfile(model / shard, out),
        "comparing them": compare,
        "folding": fold,
        "hashing what was folded": lambda: fingerprint(checkpoint, patches),
    }
    found, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    for name, work in works.items():
        started = time.process_time()
        work()
        found[name] = round(time.process_time() - started, 2)
    torch.set_num_threads(threads)
    out.unlink()
    return found


def seconds(work: Callable[[], object], model: Path, out: Path, *, cold: bool) -> float:
    """Return the seconds of work that writes `out`, and remove what it wrote."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    for file in model.glob("*.safetensors"):
        with open(file, "rb") as shard:
            if cold:
                os.posix_fadvise(shard.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while shard.read(1 << 24):
                    pass
    time.sleep(SETTLE)
    started = time.perf_counter()
    work()
    took = time.perf_counter() - started
    shutil.rmtree(out)
    return took


def timed(out: Path, *command: str) -> tuple[float, float]:
    """Run a command that writes `out`, and remove what it wrote: seconds and peak memory in MB."""
    shutil.rmtree(out, ignore_errors=True)
    found = run(*command)
    shutil.rmtree(out)
    return found
