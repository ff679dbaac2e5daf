"""The editor learns, and the command counts. Install the package first: `more` finds both by their entry points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from more_cli.cli.app import main
from more_cli.demo.files import demo_model_dir


def test_the_editor_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--suite", "e-vqa", "--limit", "2", "--cache", str(tmp_path), "--json"]
    assert main(["compare", "none", "norm", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"]["norm"]["rel.tf_exact"]["difference"] > 0


def test_the_command_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.more"
    assert main(["init", str(demo_model_dir()), "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(["count", str(demo_model_dir()), "--state", str(state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": "more-norm.count/1", "lines": 0}
