"""Folders of the embedded models and suites."""

from __future__ import annotations

from pathlib import Path

from more_cli.suites.embedded import suite_folder

HERE = Path(__file__).parent
SUITES = ("e-vqa-mini", "e-ic-mini", "mme-mini")


def demo_model_dir(family: str = "llava") -> Path:
    """Return the folder of the embedded checkpoint."""
    return HERE / family


def suite_dir(name: str) -> Path:
    """Return the folder of one of `SUITES`."""
    return suite_folder(name)
