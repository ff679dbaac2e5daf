"""The pre-commit hook of the pages: it names every bad file, and a commit with one fails."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from generator.pages import ROOT, blocks
from generator.session import programs
from more_cli.demo.files import write_files
from support.runners import stub

CONFIG = next(b for b in blocks(ROOT / "docs" / "pipelines.md") if "repo: local" in b.text and b.language == "yaml")
((HOOK,),) = [repository["hooks"] for repository in yaml.safe_load(CONFIG.text)["repos"]]


def shell(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    environment = os.environ | fixed | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_every_file_is_checked_and_a_bad_one_fails(tmp_path: Path) -> None:
    stub(tmp_path)
    entry = (*shlex.split(HOOK["entry"]), "my model", "edits a.jsonl", "edits-b.jsonl")
    assert [shell(tmp_path, *entry, EDIT=code).returncode for code in ("0", "4")] == [0, 4]
    line = "edit my model {} --dry-run --quiet\n"
    assert (tmp_path / "calls").read_text() == 2 * (line.format("edits a.jsonl") + line.format("edits-b.jsonl"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pre_commit") is None, reason="pre-commit is not installed")
def test_pre_commit_runs_it_on_changed_streams(tmp_path: Path) -> None:
    write_files(tmp_path)
    programs(tmp_path / "bin")
    before = {path.name for path in tmp_path.iterdir()}
    assert HOOK["args"] == ["/models/llava"]
    (tmp_path / ".pre-commit-config.yaml").write_text(CONFIG.text.replace("/models/llava", "llava"))
    assert shell(tmp_path, "git", "init", "--quiet").returncode == 0

    def hook(name: str) -> subprocess.CompletedProcess[str]:
        assert shell(tmp_path, "git", "add", ".pre-commit-config.yaml", name).returncode == 0
        command = (sys.executable, "-m", "pre_commit", "run", "--color", "never")
        return shell(tmp_path, *command, PRE_COMMIT_HOME=str(tmp_path / "cache"))

    assert "no files to check" in hook("anchors.jsonl").stdout
    good = hook("edits.jsonl")
    assert (good.returncode, good.stdout.rstrip().endswith("Passed")) == (0, True), good.stdout
    (tmp_path / "new edits.jsonl").write_text('{"image": "images/none.png", "question": "q", "target": "t"}\n')
    bad = hook("new edits.jsonl")
    assert bad.returncode == 1
    assert "- exit code: 4" in bad.stdout
    assert "error: new edits.jsonl:1: image not found: `images/none.png`\nhint: " in bad.stdout
    written = {path.name for path in tmp_path.iterdir()} - before
    assert written == {".git", ".pre-commit-config.yaml", "cache", "new edits.jsonl"}, "a check writes nothing"
