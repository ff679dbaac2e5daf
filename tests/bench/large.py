"""Time and memory of `init`, `edit` and `merge`: embedded model, 270 million parameters, and a 7B-shaped LLaVA-1.5.

python tests/bench/large.py FOLDER [demo] [270M] [7B]    # 7B: 30 GB of disk there, 22 GiB of memory; see SIZES.md
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from checkpoints import build
from more_cli.demo.files import demo_model_dir
from processes import run

KEPT = ("status", "writes", "cost", "wall_ms", "nll_before", "nll_after")


def checkpoint(name: str, folder: Path) -> Path:
    """Write one of the measured checkpoints: the embedded one, 270 million parameters, or 7 billion."""
    if name == "demo":
        return Path(shutil.copytree(demo_model_dir(), folder))
    return build(name, folder)


def questions(folder: Path, count: int) -> tuple[Path, Path]:
    """Write edits and, about other pictures, anchors."""
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


def measure(name: str, folder: Path, edits: int) -> dict[str, object]:
    """Run the commands on a fresh checkpoint, each in its own process: seconds and peak memory of each.

    The recipe is the one that `init` picks; 270M has anchors.
    """
    root = folder / name
    root.mkdir(parents=True)
    model = checkpoint(name, root / "model")
    stream, anchors = questions(root, edits)
    more = [sys.executable, "-m", "more_cli"]
    _, imports = run(sys.executable, "-c", "import torch, transformers, more_cli.ops.edit")
    found: dict[str, object] = {"imports": imports}
    held = ["--anchors", str(anchors)] if name == "270M" else ["--no-anchors"]
    found["init"] = run(*more, "init", str(model), "-q", *held)
    status = subprocess.run([*more, "status", str(model), "--estimate", "--json"], capture_output=True, check=True)
    found["estimate"] = json.loads(status.stdout)["estimate"]
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
    for name, edits in {"demo": 12, "270M": 10, "7B": 3}.items():
        if name in sys.argv[2:] or len(sys.argv) == 2:
            print(json.dumps({"model": name} | measure(name, folder, edits)), flush=True)


if __name__ == "__main__":
    main()
