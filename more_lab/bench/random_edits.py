"""Random edits, about random pictures where the model sees, to measure a model without edits of its own."""

from __future__ import annotations

from pathlib import Path

import jsonlines
import numpy as np
from PIL import Image

from more_cli.text import canonical_json

SIDE, CELLS = 336, 7
"""Pixels of a picture and coloured cells in it, each way."""
WORDS = ("cat", "dog", "fish", "bird", "house", "tree", "boat", "train")


def write_random_edits(folder: Path, count: int, seed: int, *, pictured: bool = True) -> Path:
    """Write `count` edits and return their file; each about its own picture or, without pictures, its own number."""
    folder.mkdir()
    lines = []
    for number in range(count):
        random = np.random.Generator(np.random.Philox([seed, number]))
        cells = Image.fromarray(random.integers(0, 256, (CELLS, CELLS, 3), dtype=np.uint8))
        word = WORDS[int(random.integers(len(WORDS)))]
        line = {"id": f"random-{number + 1}", "question": f"What is thing {number + 1}?", "target": word}
        if pictured:
            name = f"{number + 1:05}.png"
            cells.resize((SIDE, SIDE), Image.Resampling.NEAREST).save(folder / name)
            line |= {"image": name, "question": "What is this?"}
        lines.append(line)
    path = folder / "edits.jsonl"
    with jsonlines.open(path, "w", dumps=canonical_json) as file:
        file.write_all(lines)
    return path
