"""Which tests run when. Every test is in one tier, `tool`, `slow` or `lab`; `fast` is the first part of `tool`.

`lab`: all tests of the laboratory. `slow`: the tool's that are marked so. `tool`: all others. `fast`: those of `tool`
in the files below: arithmetic, files, refusals, and the command line with a session from `init` to `merge`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LAB = {"lab", "worlds", "bench"}
"""Folders of the laboratory's tests."""
FAST = (
    *("core", "recipe", "inputs", "store", "evaluation", "suites", "render", "system"),
    *("checkpoint/test_opening.py", "editors/more/test_editor.py", "runner/test_eval_suite.py"),
    *("cli/test_app.py", "cli/test_completion.py", "cli/test_output.py", "cli/test_refusals.py"),
    *("test_files.py", "test_layers.py", "test_text.py", "test_tiers.py"),
)
"""Folders and files of the first check, which takes less than a minute: measure before you add one."""


@cache
def is_fast(path: Path) -> bool:
    """Tell whether a file of tests belongs to the first check."""
    return any(path.is_relative_to(TESTS / name) for name in FAST)


def is_lab(path: Path) -> bool:
    """Tell whether a file of tests belongs to the laboratory."""
    return path.relative_to(TESTS).parts[0] in LAB


def tier(path: Path, slow: bool) -> str:
    """Return the tier of a test in this file."""
    if is_lab(path):
        return "lab"
    return "slow" if slow else "tool"


def may_hold(path: Path, asked: str) -> bool:
    """Tell whether a file of tests may hold one that the expression of `-m` asks for."""
    if asked == "fast":
        return is_fast(path)
    if asked == "tool":
        return not is_lab(path)
    return asked != "not tool" or is_lab(path) or "mark.slow" in path.read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its tier."""
    for item in items:
        found = tier(item.path, item.get_closest_marker("slow") is not None)
        item.add_marker(found)
        if found == "tool" and is_fast(item.path):
            item.add_marker("fast")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files closed that `-m` runs nothing of: reading all of them takes longer than the first check."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and not may_hold(collection_path, config.option.markexpr) else None
