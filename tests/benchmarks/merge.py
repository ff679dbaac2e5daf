"""Memory and time of a merge beside `cp -r`, on a synthetic 4 GB checkpoint with nine (2048, 5632) sites, r = 64.

python tests/benchmarks/merge.py FOLDER      # needs 12 GB free there
"""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tiny import make_processor

from more_cli.cli.app import main as more
from more_cli.state import load_state, save_state

SHARD = 1_500_000_000
SETTLE = 5.0  # seconds
RECIPE = 'sites = ["text.ffn_out"]\nlast = 9\nrank = 64\n'


def build(folder: Path) -> None:
    """Write the checkpoint's files, its weights as one repeated block of noise."""
    folder.mkdir(parents=True)
    processor = make_processor()
    processor.save_pretrained(folder)
    tokenizer = processor.tokenizer
    text = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 42,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32064,
    }
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    vision |= {"num_hidden_layers": 4, "image_size": 28, "patch_size": 14, "projection_dim": 32}
    config = LlavaConfig(
        text_config=text, vision_config=vision, image_token_id=tokenizer.convert_tokens_to_ids("<image>")
    )
    config.architectures, config.dtype = ["LlavaForConditionalGeneration"], "bfloat16"
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in LlavaForConditionalGeneration(config).state_dict().items()}
    write_shards(folder, shapes)


def write_shards(folder: Path, shapes: dict[str, torch.Size]) -> None:
    """Write bfloat16 shards of at most 1.5 GB and their index."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        if size + 2 * shape.numel() > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += 2 * shape.numel()
    noise = (torch.randn(1 << 22) * 0.02).bfloat16().view(torch.uint8).numpy().tobytes()
    placed = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, offset = {}, 0
        for name in names:
            placed[name], length = file, 2 * shapes[name].numel()
            header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [offset, offset + length]}
            offset += length
        raw = json.dumps(header).encode()
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(raw)) + raw)
            for name in names:
                left = 2 * shapes[name].numel()
                while left > 0:
                    out.write(noise[:left])
                    left -= len(noise)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def edited_state(folder: Path, model: Path) -> None:
    """Make a state whose B is not zero, as if edits had been written."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    assert more(["init", str(model), "--recipe", str(recipe), "-q"]) == 0
    path = model.with_name("model.more")
    state = load_state(path)
    state.B = {name: 0.01 * torch.randn_like(B) for name, B in state.B.items()}
    save_state(path, state)


def run(*command: str, sync: bool = False, allowed: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Return seconds, with `sync` until the disk has everything, and peak resident memory in MB."""
    os.sync()
    # A virtual machine hands memory that was just freed back to its host, and getting it again takes as long as the
    # copy. A merge first imports torch, so without this pause only `cp` would find the last output's memory.
    time.sleep(SETTLE)
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        # Not the rusage of the child: it starts with what this process held when it forked.
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024)
        time.sleep(0.02)
    assert process.returncode in allowed, command
    if sync:
        os.sync()
    return time.perf_counter() - started, peak


def main() -> None:
    """Print rounds of copy and merge."""
    folder = Path(sys.argv[1])
    model, copy, merged = folder / "model", folder / "copy", folder / "merged"
    if not model.exists():
        build(model)
    edited_state(folder, model)
    _, imports = run(sys.executable, "-c", "import torch, safetensors.torch")
    for _ in range(5):
        # Each from the same page cache: the base in it, nothing else, the memory of the last output free again.
        copying, _ = timed(copy, "cp", "-r", str(model), str(copy))
        durable, _ = timed(copy, "cp", "-r", str(model), str(copy), sync=True)
        merging, memory = timed(merged, sys.executable, "-m", "more_cli", "merge", str(model), "-o", str(merged))
        extra, limit = memory - imports, 1.3 * copying + 3
        print(
            f"cp -r {copying:.1f} s, with sync {durable:.1f} s; merge {merging:.1f} s (limit {limit:.1f} s), "
            f"{extra:.0f} MB above the imports"
        )


def timed(out: Path, *command: str, sync: bool = False) -> tuple[float, float]:
    """Run a command that writes `out`, and remove what it wrote."""
    shutil.rmtree(out, ignore_errors=True)
    found = run(*command, sync=sync)
    shutil.rmtree(out)
    return found


if __name__ == "__main__":
    main()
