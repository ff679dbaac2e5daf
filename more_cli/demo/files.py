"""Folders of the embedded models and suites, and sample edits for the embedded model."""

from __future__ import annotations

from pathlib import Path

from more_cli.files import sha256_file
from more_cli.suites.embedded import suite_folder

HERE = Path(__file__).parent
SUITES = ("e-vqa-mini", "e-ic-mini", "mme-mini")


def demo_model_dir(family: str = "llava") -> Path:
    """Return the folder of the embedded checkpoint."""
    return HERE / family


def suite_dir(name: str) -> Path:
    """Return the folder of one of `SUITES`."""
    return suite_folder(name)


WEIGHTS = "model.safetensors"
SAMPLES = 24
"""Sample edits if no number is given."""


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
    suite = suite_dir("e-vqa-mini")
    return suite / "eval.json", suite / "anchors.jsonl" if fresh else None, limit or SAMPLES
