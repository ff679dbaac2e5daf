"""`more` hands over to the pager of the same name where that was meant, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from more_cli.cli.commands import names
from more_cli.system.pager import GUARD, next_pager, wants_pager


@pytest.mark.parametrize(
    ("arguments", "piped", "meant"),
    [
        ("notes.txt", False, True),
        ("notes", False, True),
        ("notes.txt edit", False, True),
        ("+5 notes.txt", False, True),
        ("-d +10 notes.txt", False, True),
        ("-n 20 notes.txt", False, True),
        ("--lines 20 notes.txt", False, True),
        ("edit.txt", False, True),
        ("./logs", False, True),
        ("./log", False, True),
        ("", True, True),
        ("-s", True, True),
        ("-n 20", True, True),
        ("", False, False),
        ("absent.txt", False, False),
        ("absent.txt notes.txt", False, False),
        ("a" * 300, False, False),
        ("folder", False, False),
        ("edit model notes.txt", True, False),
        ("edti notes.txt", False, False),
        ("edti notes.txt", True, False),
        ("log", False, False),
        ("logs", False, False),
        ("logs notes.txt", True, False),
        ("status", True, False),
        ("statsu", True, False),
        ("--help", True, False),
        ("--version", True, False),
    ],
)
def test_when_the_pager_is_meant(tmp_path: Path, monkeypatch, arguments: str, piped: bool, meant: bool) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes.txt", "notes", "edit.txt", "log", "logs"):
        Path(name).write_text("text")
    Path("folder").mkdir()
    assert wants_pager(arguments.split(), piped, names) is meant


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A folder with ours, one with a link to it, one with a pager."""
    found = [tmp_path / name for name in ("venv", "link", "system")]
    for folder in found:
        folder.mkdir()
    script = f"#!{sys.executable}\nfrom more_cli.__main__ import run_or_page\nrun_or_page()\n"
    (found[0] / "more").write_text(script)
    (found[2] / "more").write_text(f'#!/bin/sh\necho "paged $* {GUARD}=${GUARD}"\ncat\n')
    for folder in (found[0], found[2]):
        (folder / "more").chmod(0o755)
    (found[1] / "more").symlink_to(found[0] / "more")
    return found


def test_the_next_pager_is_the_first_that_is_not_ours(folders: list[Path]) -> None:
    path = os.pathsep.join(map(str, folders))
    assert next_pager(path, folders[0] / "more") == folders[2] / "more"
    assert next_pager(str(folders[1]), folders[0] / "more") is None


def test_handing_over(folders: list[Path], tmp_path: Path) -> None:
    for name in ("notes.txt", "model.more", "logs"):
        (tmp_path / name).write_text("text")

    def call(*arguments: str, guard: bool = False, text: str | None = None) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        environment = os.environ | {"PATH": path} | ({GUARD: "1"} if guard else {})
        pipe = {"input": text} if text is not None else {"stdin": subprocess.DEVNULL}
        command = [folders[0] / "more", *arguments]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, **pipe)

    assert call("-d", "notes.txt").stdout == f"paged -d notes.txt {GUARD}=1\n"
    assert call(text="a man page").stdout == f"paged  {GUARD}=1\na man page"
    assert "no such command" in call("notes.txt", guard=True).stderr
    typo = call("edti", "model.more")
    assert (typo.returncode, typo.stdout) == (2, "")
    assert typo.stderr == "error: no such command `edti`\nhint: did you mean `edit`?\n"
    near = call("logs")
    assert (near.returncode, near.stdout) == (2, "")
    assert near.stderr.endswith("hint: did you mean `log`? `more ./logs` shows the file\n")
    assert call("./logs").stdout == f"paged ./logs {GUARD}=1\n"
    assert "Usage: more" in call("--help", text="piped").stdout
