"""README is a test: its commands run on the embedded model, its tables say what the code says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from more_cli.cli.app import EXIT_CODES, main
from more_cli.cli.failures import EDITS_FAILED
from more_cli.demo.files import demo_model_dir
from more_cli.recipe import data_folder, shipped_recipes

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
SCRIPT, *_ = re.findall(r"```sh\n(#!.*?)```", README, re.DOTALL)
WORKFLOW = yaml.safe_load(*re.findall(r"```yaml\n(.*?)```", README, re.DOTALL))
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("more ")]


@pytest.mark.slow
def test_the_tour_runs_on_the_embedded_model(tmp_path: Path, monkeypatch, capsys) -> None:
    assert len(COMMANDS) >= 6
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(demo_model_dir(), "llava")
    samples = data_folder("sample_edits")
    shutil.copytree(samples / "images", "images")
    shutil.copy(samples / "edits.jsonl", "edits.jsonl")
    lines = (samples / "anchors.jsonl").read_text().splitlines(keepends=True)
    Path("anchors.jsonl").write_text("".join(lines[::2]))
    Path("regression.jsonl").write_text("".join(lines[1::2]))
    for line in COMMANDS:
        code = main(shlex.split(line, comments=True)[1:])
        captured = capsys.readouterr()
        assert code in (0, EDITS_FAILED) if "--verify" in line else code == 0, f"{line}\n{captured.err}"
        assert captured.out
    assert Path("llava-edited/config.json").is_file()


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A checkout with the script, the embedded model in place of the runner's, and `more` on PATH."""
    samples = data_folder("sample_edits")
    shutil.copytree(demo_model_dir(), tmp_path / "models" / "llava")
    shutil.copytree(samples / "images", tmp_path / "images")
    shutil.copy(samples / "anchors.jsonl", tmp_path)
    edits = (samples / "edits.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "edits.jsonl").write_text("".join(edits[:3]))
    (tmp_path / "correct.sh").write_text(SCRIPT)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "more").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m more_cli "$@"\n')
    (tmp_path / "bin" / "more").chmod(0o755)
    return tmp_path


def run_workflow(folder: Path) -> list[int]:
    """Do what the runner does: its `run` steps in order, after a failure only those that always run; the exit codes."""
    (job,) = WORKFLOW["jobs"].values()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GITHUB_STEP_SUMMARY": "summary.md"}
    environment |= {name: value.replace("/models", str(folder / "models")) for name, value in job["env"].items()}
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    codes: list[int] = []
    for step in job["steps"]:
        if "run" in step and (not any(codes) or step.get("if") == "always()"):
            command = ["bash", "-e", "-c", step["run"]]
            codes.append(subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode)
    return codes


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_pipeline_edits_gates_merges_and_publishes(pipeline: Path) -> None:
    assert run_workflow(pipeline) == [0, 0]
    report, merged = pipeline / "report", pipeline / "models" / "llava-edited"
    assert {path.name for path in report.iterdir()} == {
        *("edit.json", "eval.json", "merge.json", "log.json", "more.html", "more.md", "more.xml")
    }
    assert read(report / "edit.json")["applied"] == read(report / "log.json")["total"] == 3
    assert read(report / "merge.json")["verification"]["lost"] == []
    assert read(merged / "more.json")["ledger_head"] == read(report / "log.json")["head"]
    assert (pipeline / "summary.md").read_bytes() == (report / "more.md").read_bytes()

    # A missed gate: the report is published all the same, the checkpoint stays the one before.
    (pipeline / "correct.sh").write_text(SCRIPT.replace(">=0.95", ">=1.01"))
    before = (merged / "more.json").stat().st_mtime_ns
    assert run_workflow(pipeline) == [6, 0]
    assert read(report / "edit.json")["skipped"] == 3
    assert (merged / "more.json").stat().st_mtime_ns == before

    (pipeline / "edits.jsonl").write_text("{\n")
    assert run_workflow(pipeline) == [4, 0]


def test_every_recipe_is_in_the_table() -> None:
    for name in shipped_recipes():
        assert f"`{name}`" in README


def test_the_exit_codes_are_those_of_the_help() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert listed == {
        int(code)
        for code in re.findall(
            r"\b(\d+) (?:done|bug|usage|some|bad|model|a gate|out|inter)", EXIT_CODES.replace("\n", " ")
        )
    }


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
