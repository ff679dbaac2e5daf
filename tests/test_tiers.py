"""Every test is run by CI, and the first check by what README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.paths import ROOT
from support.tiers import FAST, LAB, TESTS, is_fast, is_lab, may_hold, tier

PYTEST = re.compile(r"-m pytest .*-m (?:\"([^\"]+)\"|(\w+))")


def test_a_test_is_in_one_tier() -> None:
    assert tier(TESTS / "ops" / "test_merge.py", slow=False) == "tool"
    assert tier(TESTS / "ops" / "test_merge.py", slow=True) == "slow"
    assert {tier(TESTS / folder / "test_a.py", slow) for folder in LAB for slow in (False, True)} == {"lab"}


def test_only_files_without_a_test_that_is_asked_for_stay_closed() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__).resolve()]
    assert all(may_hold(path, asked) for path in files for asked in ("", "slow", "tool or slow"))
    assert [path for path in files if not is_lab(path) and not may_hold(path, "tool")] == []
    assert [path for path in files if is_lab(path) and not may_hold(path, "not tool")] == []
    closed = [path for path in files if not may_hold(path, "not tool")]
    assert closed
    # The marker itself is looked for: a name that stands for it would hide the tests that have it.
    assert [path for path in closed if re.search(r"@\w*slow|mark\w*\s*=.*slow", path.read_text(encoding="utf-8"))] == []


def test_every_name_of_a_tier_is_a_file_or_folder_of_tests() -> None:
    assert [name for name in (*FAST, *LAB) if not (TESTS / name).exists()] == []
    assert not any(is_fast(TESTS / folder) for folder in LAB)


def test_the_first_check_is_marked_with_both_of_its_tiers(request: pytest.FixtureRequest) -> None:
    markers = {mark.name for mark in request.node.iter_markers()}
    assert markers & {"fast", "tool", "slow", "lab"} == {"fast", "tool"}


def test_ci_runs_every_tier() -> None:
    """README's command runs the tool's tests, and the command after it all others."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- the test command -->")[2]
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert ["".join(found) for found in PYTEST.findall(readme.partition("```\n")[0])] == ["tool"]
    assert ["".join(found) for found in PYTEST.findall(run)] == ["not tool"]
