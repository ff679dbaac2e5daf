"""Where the embedded model, suites and samples lie."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
SUITES = ("e-vqa-mini", "e-ic-mini", "mme-mini")


def demo_model_dir(family: str = "llava") -> Path:
    """The embedded checkpoint's directory."""
    return HERE / family


def suite_dir(name: str) -> Path:
    """The directory of one of SUITES."""
    return HERE / "suites" / name
