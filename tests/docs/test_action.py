"""The GitHub action: its command lines are ours, and its steps do what a runner expects of them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from support.paths import ROOT
from support.runners import commands, stub

FOLDER = ROOT / ".github" / "actions" / "more"
ACTION = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))
STEPS = [step for step in ACTION["runs"]["steps"] if "run" in step]


def test_every_command_line_can_be_parsed() -> None:
    assert commands("\n".join(step["run"] for step in STEPS)) == ["edit", "verify", "eval", "merge"]


def test_every_input_is_used_and_reaches_the_shell_as_a_variable_only() -> None:
    text = (FOLDER / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.(\w+)", text)) == set(ACTION["inputs"])
    assert not any("${{" in step["run"] for step in STEPS), "an input with a quote would run as a command"


def run(folder: Path, *, edit: int = 0, evaluate: int = 0, **inputs: str) -> tuple[list[int], str]:
    """Do the steps as a runner does: after a failure only those that always run; exit codes, and what was printed."""
    stub(folder)
    given = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()} | inputs
    codes, printed = list[int](), ""
    for step in STEPS:
        own = {name: given[re.findall(r"inputs\.(\w+)", value)[0]] for name, value in step["env"].items()}
        runner = {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_ACTION_PATH": str(FOLDER)}
        seen = os.environ | runner | own | {"EDIT": str(edit), "EVAL": str(evaluate)}
        if not any(codes) or step.get("if") == "always()":
            done = subprocess.run(["bash", "-c", step["run"]], cwd=folder, env=seen, capture_output=True, text=True)
            codes.append(done.returncode)
            printed += done.stdout
    return codes, printed


@pytest.mark.parametrize(
    ("edit", "evaluate", "codes", "called"),
    [
        (0, 0, [0, 0], ["edit", "verify", "eval", "merge"]),
        (3, 6, [6, 0], ["edit", "verify", "eval"]),
        (4, 0, [4, 0], ["edit"]),
    ],
)
def test_the_steps(tmp_path: Path, edit: int, evaluate: int, codes: list[int], called: list[str]) -> None:
    programs, gates = str(tmp_path / "bin"), "rel.gen_exact>=0.9\n\nrel.target_nll<=1\n"
    done = run(tmp_path, edit=edit, evaluate=evaluate, model="my model", out="o", programs=programs, gates=gates)
    assert done[0] == codes
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == called
    if edit == 4:
        assert not (tmp_path / "summary.md").exists()
        return
    assert "eval my model --gate rel.gen_exact>=0.9 --gate rel.target_nll<=1 --junit more-report/more.xml" in calls[2]
    assert (tmp_path / "summary.md").read_text() == "report\n"
    assert done[1] == "::error title=edits%3A e%2C2::not learnt: 100%25%0A::set-env name=x::y\n"


def test_nothing_is_merged_without_a_folder_for_it(tmp_path: Path) -> None:
    codes, _ = run(tmp_path, model="m", programs=str(tmp_path / "bin"))
    assert codes == [0, 0]
    assert "merge" not in (tmp_path / "calls").read_text()
