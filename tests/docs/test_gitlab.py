"""The GitLab template: its script runs line by line in one shell, as a runner's does, and keeps the exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from generator.pages import ROOT, blocks
from generator.session import programs
from more_cli.demo.files import write_files
from support.runners import commands, stub

JOB = yaml.safe_load((ROOT / "docs" / "ci" / "gitlab.yml").read_text(encoding="utf-8"))[".more"]
SCRIPT = "\n".join(JOB["script"])


def run(folder: Path, **variables: str) -> int:
    """Run the job in a folder, with its variables and these."""
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment = os.environ | fixed | JOB["variables"] | {"PROGRAMS": str(folder / "bin")} | variables
    return subprocess.run(["sh", "-c", SCRIPT], cwd=folder, env=environment, capture_output=True).returncode


def test_every_command_line_can_be_parsed() -> None:
    assert commands(SCRIPT) == ["edit", "verify", "eval", "merge"]


def test_the_page_gives_variables_that_the_template_has() -> None:
    files = [yaml.safe_load(b.text) for b in blocks(ROOT / "docs" / "pipelines.md") if "extends: .more" in b.text]
    (file,) = files
    assert (ROOT / file["include"][0]["file"]).is_file()
    assert set(file["correct"]["variables"]) <= set(JOB["variables"])


@pytest.mark.parametrize(
    ("edit", "evaluate", "code", "called"),
    [
        ("0", "0", 0, ["edit", "verify", "eval", "merge"]),
        ("3", "6", 6, ["edit", "verify", "eval"]),
        ("4", "0", 4, ["edit"]),
        ("130", "0", 130, ["edit"]),
    ],
)
def test_the_steps(tmp_path: Path, edit: str, evaluate: str, code: int, called: list[str]) -> None:
    stub(tmp_path)
    (tmp_path / "more-report").mkdir()
    (tmp_path / "more-report" / "more.xml").write_text("of an earlier job")
    given = {"MODEL": "my model", "OUT": "o", "GATES": "rel.gen_exact>=0.9 rel.target_nll<=1"}
    assert run(tmp_path, EDIT=edit, EVAL=evaluate, **given) == code
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == called
    if "eval" in called:
        assert (
            "eval my model --gate rel.gen_exact>=0.9 --gate rel.target_nll<=1 --junit more-report/more.xml" in calls[2]
        )
    else:
        assert not (tmp_path / "more-report" / "more.xml").exists()


def test_an_interrupted_job_goes_on_and_nothing_is_merged_without_a_folder(tmp_path: Path) -> None:
    assert JOB["retry"]["exit_codes"] == [130]
    stub(tmp_path)
    assert run(tmp_path, MODEL="m", EDIT="0", EVAL="0") == 0
    assert "merge" not in (tmp_path / "calls").read_text()


@pytest.mark.slow
def test_a_met_gate_merges_and_a_missed_one_does_not(tmp_path: Path) -> None:
    write_files(tmp_path)
    programs(tmp_path / "bin")
    edits = (tmp_path / "edits.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "edits.jsonl").write_text(edits[0])
    assert run(tmp_path, MODEL="llava", OUT="merged") == 0
    report = tmp_path / "more-report"
    for path in (*JOB["artifacts"]["paths"], JOB["artifacts"]["reports"]["junit"], "merged/more.json"):
        assert (tmp_path / path).exists(), path
    assert json.loads((report / "merge.json").read_text())["verification"]["lost"] == []

    shutil.rmtree(tmp_path / "merged")
    assert run(tmp_path, MODEL="llava", OUT="merged", GATES="rel.gen_exact>=0.9 rel.target_nll<=0") == 6
    assert "rel.target_nll" in (report / "more.xml").read_text()
    assert not (tmp_path / "merged").exists()
