"""What `init`, `edit` and `merge` take: on the embedded model, on 270 million parameters, and on a 7B-shaped LLaVA-1.5.

python tests/benchmarks/large.py FOLDER [demo] [270M] [7B]    # 7B: 30 GB of disk there, 22 GiB of memory; see SIZES.md

Weights are random bfloat16. The 7B shapes and the names on disk are those of llava-hf/llava-1.5-7b-hf; the tokenizer
is a small byte-level one.
"""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import torch
from PIL import Image
from transformers import LlavaConfig, LlavaForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from merge import run
from tiny import make_processor, old_hub_name

from more_cli.demo.files import demo_model_dir

KEPT = ("status", "writes", "cost", "wall_ms", "nll_before", "nll_after")
SHARD = 5_000_000_000
TEXT = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
SMALL_TEXT = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16}
SMALL_TEXT |= {"num_key_value_heads": 16}
SMALL_VISION = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8}
SMALL_VISION |= {"image_size": 168}


def build(folder: Path, text: dict[str, object] | None = None, vision: dict[str, object] | None = None) -> Path:
    """Write a checkpoint of these shapes (by default the 7B ones), one tensor in memory at a time."""
    text, vision = TEXT | (text or {}), VISION | (vision or {})
    folder.mkdir(parents=True)
    processor = make_processor()
    size = vision["image_size"]
    processor.image_processor.size = {"shortest_edge": size}
    processor.image_processor.crop_size = {"height": size, "width": size}
    processor.patch_size = vision["patch_size"]
    processor.save_pretrained(folder)
    tokenizer = processor.tokenizer
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = LlavaConfig(
        text_config=text | special,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    config.architectures, config.dtype = ["LlavaForConditionalGeneration"], "bfloat16"
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in LlavaForConditionalGeneration(config).named_parameters()}
    write_shards(folder, {old_hub_name(name): shape for name, shape in shapes.items()})
    return folder


def write_shards(folder: Path, shapes: dict[str, torch.Size]) -> None:
    """Write bfloat16 shards and their index."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        if size and size + 2 * shape.numel() > SHARD:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += 2 * shape.numel()
    placed = {}
    generator = torch.Generator().manual_seed(0)
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, offset = {}, 0
        for name in names:
            placed[name], length = file, 2 * shapes[name].numel()
            header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [offset, offset + length]}
            offset += length
        raw = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(raw)) + raw)
            for name in names:
                out.write(values(name, shapes[name], generator).view(torch.uint8).numpy().data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def values(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Random numbers in bfloat16: unit gain through every matrix, norms at one, biases at zero."""
    if len(shape) == 1:
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        return (centre + 0.05 * torch.randn(shape, generator=generator)).bfloat16()
    fan_in = shape[1:].numel()
    return (torch.randn(shape, generator=generator) * fan_in**-0.5).bfloat16()


def checkpoint(name: str, folder: Path) -> Path:
    """Write one of the checkpoints that are measured: the embedded one, 270 million parameters, or 7 billion."""
    if name == "demo":
        return Path(shutil.copytree(demo_model_dir(), folder))
    return build(folder, *((SMALL_TEXT, SMALL_VISION) if name == "270M" else ()))


def questions(folder: Path, count: int) -> tuple[Path, Path]:
    """Write corrections and, about other pictures, anchors."""
    shades = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple", "grey", "pink", "brown", "cyan"]
    for shade in shades:
        Image.new("RGB", (336, 336), shade).save(folder / f"{shade}.png")
    asked = {"question": "what colour is it ?"}
    edits = [{"image": f"{shade}.png", "target": shade[:3]} | asked for shade in shades[:count]]
    anchors = [{"image": f"{shade}.png", "answer": "a photo"} | asked for shade in shades[-4:]]
    files = folder / "edits.jsonl", folder / "anchors.jsonl"
    for file, lines in zip(files, (edits, anchors), strict=True):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return files


def measure(name: str, folder: Path, edits: int, anchored: bool, options: list[str]) -> dict[str, object]:
    """Run the commands on a fresh checkpoint, each in its own process: seconds and peak memory of each."""
    root = folder / name
    root.mkdir(parents=True)
    model = checkpoint(name, root / "model")
    stream, anchors = questions(root, edits)
    more = [sys.executable, "-m", "more_cli"]
    _, imports = run(sys.executable, "-c", "import torch, transformers, more_cli.ops.edit")
    found: dict[str, object] = {"imports": imports}
    held = ["--anchors", str(anchors)] if anchored else []
    found["init"] = run(*more, "init", str(model), "-q", *options, *held)
    told = subprocess.run([*more, "status", str(model), "--estimate", "--json"], capture_output=True, check=True)
    found["estimate"] = json.loads(told.stdout)["estimate"]
    found["edit"] = run(*more, "edit", str(model), str(stream), "-q", allowed=(0, 3))
    ledger = (root / "model.more.d/ledger.jsonl").read_text().splitlines()
    found["ledger"] = [{key: json.loads(line)[key] for key in KEPT} for line in ledger]
    found["state"] = (root / "model.more").stat().st_size
    found["merge"] = run(*more, "merge", str(model), "-o", str(root / "merged"), "-q")
    shutil.rmtree(root)
    return found


def main() -> None:
    """Measure all three and print one JSON line each."""
    folder = Path(sys.argv[1])
    small = ["--set", "rehearsal.size=0", "--set", "anchors.size=4"]  # so that every write is of five samples
    for name, arguments in {
        "demo": (12, False, []),
        "270M": (2, True, small),
        # Two writes: on these random weights the default recipe goes on to a fifth, and then refuses the edit.
        "7B": (1, False, ["--set", "max_steps=2", "--set", "margin=0.1"]),
    }.items():
        if name in sys.argv[2:] or len(sys.argv) == 2:
            print(json.dumps({"model": name} | measure(name, folder, *arguments)), flush=True)


if __name__ == "__main__":
    main()
