"""Edits about drawn pictures, for measuring a model that nobody has corrections for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from more_cli.files import canonical_json

SIDE, CELLS = 336, 7
"""Pixels of a picture and coloured cells in it, each way."""
WORDS = ("cat", "dog", "fish", "bird", "house", "tree", "boat", "train")


def draw_edits(folder: Path, count: int, seed: int) -> Path:
    """Write so many edits, each about a picture of its own, and return their file; the same for the same seed."""
    folder.mkdir()
    lines = []
    for number in range(count):
        random = np.random.Generator(np.random.Philox([seed, number]))
        cells = Image.fromarray(random.integers(0, 256, (CELLS, CELLS, 3), dtype=np.uint8))
        name = f"{number + 1:05}.png"
        cells.resize((SIDE, SIDE), Image.Resampling.NEAREST).save(folder / name)
        word = WORDS[int(random.integers(len(WORDS)))]
        lines.append({"id": f"drawn-{number + 1}", "image": name, "question": "What is this?", "target": word})
    path = folder / "edits.jsonl"
    path.write_text("".join(f"{canonical_json(line)}\n" for line in lines), encoding="utf-8")
    return path
