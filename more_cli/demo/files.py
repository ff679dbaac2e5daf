"""Folders of the embedded models, and the files that the pages use."""

from __future__ import annotations

import shutil
from pathlib import Path

from more_cli.files import replacing_directory
from more_cli.recipe.files import data_folder

HERE = Path(__file__).parent


def demo_model_dir(family: str = "llava") -> Path:
    """Return the folder of the embedded checkpoint."""
    return HERE / family


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
