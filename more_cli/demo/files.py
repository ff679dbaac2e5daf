"""Folders of the embedded models and suites, sample edits for the embedded model, and the files that the pages use."""

from __future__ import annotations

import shutil
from pathlib import Path

from more_cli.files import replacing_directory, sha256_file
from more_cli.recipe.files import data_folder
from more_cli.suites.embedded import suite_folder

HERE = Path(__file__).parent


def demo_model_dir(family: str = "llava") -> Path:
    """Return the folder of the embedded checkpoint."""
    return HERE / family


WEIGHTS = "model.safetensors"
SAMPLES = 24
"""Sample edits if no number is given."""


FILES = "FILES"
"""A file that marks a folder as written by `write_files`: only such a folder is ever replaced."""


def write_files(folder: Path, *, force: bool = False) -> None:
    """Write what the pages of docs/ use: `llava/`, `images/`, and edits, anchors and a regression set as JSON Lines.

    Raises:
        UsageError: the folder is not empty, or `force` was given and it has other files.
    """
    samples = data_folder("sample_edits")
    lines = (samples / "anchors.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    texts = [line for line in lines if '"image"' not in line]
    # Half of the questions are anchors, eight of them without a picture: with fewer, made ones would join them.
    anchors = {*lines[::2], *texts[-4:]}
    with replacing_directory(folder, force, marker=FILES) as scratch:
        shutil.copytree(demo_model_dir(), scratch / "llava")
        shutil.copytree(samples / "images", scratch / "images")
        shutil.copy(samples / "edits.jsonl", scratch)
        for name, kept in (("anchors", True), ("regression", False)):
            text = "".join(line for line in lines if (line in anchors) == kept)
            (scratch / f"{name}.jsonl").write_text(text, encoding="utf-8")
        (scratch / FILES).write_text("written by `more demo --files`\n", encoding="utf-8")


def samples_for(model: Path, limit: int | None, *, fresh: bool) -> tuple[Path | None, Path | None, int | None]:
    """Return a file of edits for a model, anchors for a `fresh` state of it, and how many edits to take.

    The files are those of the embedded suite for the embedded model or a copy of it, and None for any other model.
    """
    weights, own = model / WEIGHTS, demo_model_dir() / WEIGHTS
    same = (
        weights.is_file() and weights.stat().st_size == own.stat().st_size and sha256_file(weights) == sha256_file(own)
    )
    if not same:
        return None, None, limit
    suite = suite_folder("e-vqa-mini")
    return suite / "eval.json", suite / "anchors.jsonl" if fresh else None, limit or SAMPLES
