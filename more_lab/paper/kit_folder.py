"""`more reproduce kit`: a folder for somebody who has the weights of a real model and a GPU."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from more_cli.errors import DISTRIBUTION
from more_cli.files import replacing_directory
from more_cli.recipe.files import data_folder

SOURCE = Path(__file__).with_name("kit")
EDITS = 20
PINNED = (DISTRIBUTION, "torch", "transformers", "safetensors", "pillow")


def write_kit(folder: Path) -> list[str]:
    """Write the kit: script, checklist, pinned versions, edits, anchors and their pictures; return the files' names.

    Raises:
        UsageError: the folder is not empty.
        StateError, ResourceError: it cannot be written.
    """
    samples = data_folder("sample_edits")
    edits = _lines(samples / "edits.jsonl")[:EDITS]
    anchors = _lines(samples / "anchors.jsonl")
    with replacing_directory(folder, force=None) as scratch:
        for name in ("run.py", "README.md"):
            shutil.copyfile(SOURCE / name, scratch / name)
        for name, lines in {"edits.jsonl": edits, "anchors.jsonl": anchors}.items():
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            (scratch / name).write_text(text, encoding="utf-8", newline="\n")
        for picture in {picture for line in [*edits, *anchors] for picture in _pictures(line)}:
            (scratch / picture).parent.mkdir(exist_ok=True)
            shutil.copyfile(samples / picture, scratch / picture)
        pins = (f"{name}=={importlib.metadata.version(name).partition('+')[0]}\n" for name in PINNED)
        (scratch / "requirements.txt").write_text("".join(pins), encoding="utf-8", newline="\n")
        return sorted(path.relative_to(scratch).as_posix() for path in scratch.rglob("*") if path.is_file())


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _pictures(line: Any) -> Iterator[str]:
    """Yield every picture that a line names, at any depth."""
    if isinstance(line, dict):
        yield from ([line["image"]] if "image" in line else [])
        yield from line.get("image_rephrases", [])
    for inner in line.get("locality", []):
        yield from _pictures(inner)
