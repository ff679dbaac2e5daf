"""The example of a package from outside: pip installs it, and `more` has its editor and its command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from more_cli.demo.files import demo_model_dir
from more_cli.system.pager import COMPLETING

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "more-norm"
SUITE = ("--suite", "e-vqa", "--limit", "1", "--dtype", "float32", "--json")

Python = Callable[..., CompletedProcess[str]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package alone, installed; its dependencies come from the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(EXAMPLE)]
    subprocess.run(pip, check=True, capture_output=True)
    return folder


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Python:
    """Run Python in an empty folder, where the package is installed."""

    def run(*arguments: object, **environment: str) -> CompletedProcess[str]:
        known = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(site / "cache")}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=known | environment, capture_output=True, text=True)

    return run


def printed(done: CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_its_editor_runs_on_a_suite_and_is_compared(python: Python) -> None:
    alone = printed(python("-m", "more_cli", "run", "--editor", "norm", *SUITE))
    assert alone["editor"] == "norm"
    assert alone["counts"] == {"learnt": 1}
    assert alone["reproduce"]["constants"]["rate"] == 0.03
    assert alone["reproduce"]["versions"]["more-norm"] == "0.1.0"
    compared = printed(python("-m", "more_cli", "compare", "none", "norm", *SUITE))
    assert compared["differences"]["norm"]["rel.tf_exact"]["difference"] == 1.0


def test_its_settings_are_checked(python: Python) -> None:
    done = python("-m", "more_cli", "run", "--editor", "norm", "--set", "rat=1", *SUITE)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "error: editor `norm`: there is no key `rat`",
        "hint: did you mean `rate`? its keys are steps, rate, decay, stop, prompts, labels, end_of_sequence",
    ]


def test_its_command_is_listed_and_runs(python: Python) -> None:
    shown = python("-m", "more_cli", "--help").stdout
    assert "\nFrom more-norm:\n  count  Count the lines of the ledger.\n" in shown
    assert python("-m", "more_cli", "init", demo_model_dir(), "--state", "it.more").returncode == 0
    counted = printed(python("-m", "more_cli", "count", demo_model_dir(), "--state", "it.more", "--json"))
    assert counted == {"schema": "more-norm.count/1", "lines": 0}


def test_the_shell_completes_its_names(python: Python) -> None:
    commands = {"combine", "compare", "convert", "count"}
    for words, offered in (("more run --editor no", {"none", "norm"}), ("more co", commands)):
        asked = {COMPLETING: "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert set(python("-m", "more_cli", **asked).stdout.split()) == offered


def test_its_own_tests_pass(python: Python, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")  # beside the sources they would not ask what is installed
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout


def test_a_broken_entry_point_is_one_line(python: Python, site: Path) -> None:
    (points,) = site.glob("more_norm-*.dist-info/entry_points.txt")
    text = points.read_text()
    points.write_text(text.replace("editor:NormEditor", "editors:NormEditor"))
    try:
        done = python("-m", "more_cli", "run", "--editor", "norm", *SUITE)
    finally:
        points.write_text(text)
    assert done.returncode == 2
    problem = "ModuleNotFoundError: No module named 'more_norm.editors'"
    assert done.stderr.splitlines()[-2:] == [
        f"error: `norm` of package `more-norm` cannot be loaded: {problem}",
        "hint: its entry point is `more_norm.editors:NormEditor`; MORE_DEBUG=1 shows the traceback",
    ]
