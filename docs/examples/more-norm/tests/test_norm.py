"""The editor learns, and the command counts. Install the package first: `more` finds both by their entry points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from more_cli.cli.app import main
from more_cli.demo.files import demo_model_dir
from more_cli.model.machine import Machine
from more_cli.runner.run import RunOptions, run_suite
from more_cli.suites.load import load_suite


def reliability(editor: str, cache: Path) -> float:
    """Return the share of two edits that are right after the last of them, 0 to 1."""
    options = RunOptions(editor=editor, limit=2, protocols=("final",), cache=cache)
    report = run_suite(load_suite("e-vqa"), demo_model_dir(), options, Machine(dtype="float32"))
    return report.estimates["final@2"]["rel.tf_exact"].value


def test_the_editor_learns(tmp_path: Path) -> None:
    assert reliability("norm", tmp_path) > reliability("none", tmp_path)


def test_the_command_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.more"
    assert main(["init", str(demo_model_dir()), "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(["count", str(demo_model_dir()), "--state", str(state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "more-norm.count/1", "lines": 0}
