"""Where each family's checkpoint and suites are: LLaVA's in the package, the others' in tests/data."""

from __future__ import annotations

from pathlib import Path

from more_cli.demo.files import demo_model_dir

TEST_DATA = Path(__file__).parents[2] / "tests" / "data"
SUITES = TEST_DATA / "suites"


def model_folder(family: str) -> Path:
    """The checkpoint directory of a family."""
    return demo_model_dir() if family == "llava" else TEST_DATA / family


def suites_folder(family: str) -> Path:
    """The directory of the mini-suites of a family other than LLaVA, whose suites are packed into the package."""
    return SUITES / family
