"""Random edits about random pictures, to measure a model without edits of its own."""

from __future__ import annotations

from pathlib import Path

import jsonlines
import numpy as np
from PIL import Image

from more_cli.text import canonical_json

SIDE, CELLS = 336, 7
"""Pixels of a picture and coloured cells in it, each way."""
WORDS = ("cat", "dog", "fish", "bird", "house", "tree", "boat", "train")


def write_random_edits(folder: Path, count: int, seed: int) -> Path:
    """Write `count` edits, each about its own picture, and return their file; the same for the same seed."""
    folder.mkdir()
    lines = []
    for number in range(count):
        random = np.random.Generator(np.random.Philox([seed, number]))
        cells = Image.fromarray(random.integers(0, 256, (CELLS, CELLS, 3), dtype=np.uint8))
        name = f"{number + 1:05}.png"
        cells.resize((SIDE, SIDE), Image.Resampling.NEAREST).save(folder / name)
        word = WORDS[int(random.integers(len(WORDS)))]
        lines.append({"id": f"random-{number + 1}", "image": name, "question": "What is this?", "target": word})
    path = folder / "edits.jsonl"
    with jsonlines.open(path, "w", dumps=canonical_json) as file:
        file.write_all(lines)
    return path
