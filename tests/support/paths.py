"""Folders of the repository, wherever a test that needs them lies."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
DATA = TESTS / "data"
BENCH = TESTS / "bench"
MMEDIT = Path(os.environ.get("MORE_MMEDIT", ROOT.parent / "shared" / "data" / "mmedit"))


NO_MMEDIT = pytest.mark.skipif(
    not MMEDIT.is_dir(), reason="MMEdit's files are not here; MORE_MMEDIT names their folder"
)
