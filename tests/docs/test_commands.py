"""Every block of README and docs is executed or checked, or says why not."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from more_cli.cli.app import main
from more_cli.errors import MoreError
from more_cli.inputs.edits import EditLine
from more_cli.recipe.files import load_recipe
from more_lab.sweep.file import read_sweep
from support.documents import PAGES, ROOT, Block, blocks, prepare, programs

CHECKED = {"json", "yaml", "toml"}
EXECUTED = {"bash", "python"}
UNCHECKED = {"text", "sh"}
"""Output, and scripts that workflows run."""
_SWEEP = re.compile(r"^(editors =|\[fleet\])", re.MULTILINE)
_EXIT = re.compile(r"# exit (\d+)\s*$")
_SHELL_WORD = re.compile(r"^\s*(cd|export|if|for|while|function|set|source|\w+=|\w+\(\))\b", re.MULTILINE)
_PUNCTUATION = set("();<>|&")
RUN = [page for page in PAGES if any(block.language in EXECUTED and not block.not_run for block in blocks(page))]


def test_every_block_has_a_known_language() -> None:
    known = CHECKED | EXECUTED | UNCHECKED
    assert [str(block) for page in PAGES for block in blocks(page) if block.language not in known] == []


def test_json_yaml_and_toml_can_be_read(tmp_path: Path) -> None:
    wrong = []
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language in CHECKED and not block.not_run:
            try:
                check(block, tmp_path)
            except (AssertionError, ValueError, MoreError, yaml.YAMLError) as error:
                wrong.append(f"{block}: {error}")
    assert wrong == []


def check(block: Block, folder: Path) -> None:
    if block.language == "yaml":
        assert yaml.safe_load(block.text), block
    elif block.language == "toml":
        path = folder / "block.toml"
        path.write_text(block.text, encoding="utf-8")
        if _SWEEP.search(block.text):
            read_sweep(path)
        else:
            load_recipe(str(path))
    else:
        for value in json_values(block.text):
            keys = set(value) if isinstance(value, dict) else set()
            if {"question", "target"} <= keys and not keys & {"schema", "status", "verdict"}:
                EditLine.model_validate(value)


def json_values(text: str) -> list[Any]:
    """Return one JSON value, or those of JSON lines."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_commands_and_python_run_in_the_order_of_the_page(page: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    if "ssh-keygen" in page.read_text(encoding="utf-8") and shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    folder = tmp_path / "work"
    folder.mkdir()
    prepare(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{programs(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.not_run:
            continue
        if block.language == "sh" and block.text.startswith("#!"):
            Path(script_name(block)).write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            run_block(block, capsys)
        elif block.language == "python":
            exec(compile(block.text, str(block), "exec"), namespace)


def script_name(block: Block) -> str:
    """Return the file that a script's own usage line names."""
    names = re.findall(r"\bsh ([\w.-]+\.sh)\b", block.text)
    assert names, f"{block}: a script says in a comment how it is run, such as `# Usage: sh correct.sh`"
    return str(names[0])


def run_block(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a block of commands: whole where it needs one shell, else line by line."""
    text = re.sub(r"\\\n\s*", "", block.text)
    if "<<" in text or _SHELL_WORD.search(text) or multiline(text):
        in_shell(block.text, wanted(block.text.rstrip().splitlines()[-1]), str(block))
        return
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line.startswith("more ") and not needs_shell(line):
            code = main(shlex.split(line, comments=True)[1:])
            captured = capsys.readouterr()
            assert code == wanted(line), f"{block}: {line}\n{captured.out[-2000:]}{captured.err}"
        else:
            in_shell(line, wanted(line), str(block))


def wanted(line: str) -> int:
    """Return the exit code that the comment at the end of a line says, else 0."""
    said = _EXIT.search(line)
    return int(said[1]) if said else 0


def multiline(text: str) -> bool:
    """Tell whether a quote of one line is closed in another."""
    try:
        for line in text.splitlines():
            shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def needs_shell(line: str) -> bool:
    """Tell whether a line has pipes, redirects, variables or wildcards outside of quotes."""
    words = shlex.shlex(io.StringIO(line), posix=False, punctuation_chars=True)
    words.whitespace_split = True
    words.commenters = "#"
    bare = [word for word in words if word[0] not in "'\""]
    return (
        any(set(word) <= _PUNCTUATION or set(word) & set("$`*~") for word in bare)
        or re.search(r'"[^"]*\$', line) is not None
    )


def in_shell(script: str, code: int, where: str) -> None:
    # Without pipefail, as in a reader's shell: `more log | head` is no failure.
    command = ["bash", "-eu", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{where}: {script}\n{done.stdout[-2000:]}{done.stderr}"


def test_lines_with_shell_syntax_are_known() -> None:
    assert needs_shell("more log llava/ | head -3")
    assert needs_shell("more log llava/ --json > log.json")
    assert needs_shell('more status "$MODEL"')
    assert not needs_shell('more eval llava/ --gate "rel.gen_exact>=0.95"  # exit 6; a gate | more')
    assert not needs_shell("more log llava/ --id 'batch-*'")


def test_blocks_are_found_with_the_reason_why_they_do_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n<!-- not run: needs a GPU -->\n```bash\nmore a\n```\n\n1. B\n\n    ```text\n    out\n    ```\n"
    )
    first, second = blocks(page)
    assert (first.language, first.text, first.not_run, first.line) == ("bash", "more a\n", "needs a GPU", 4)
    assert (second.language, second.text, second.not_run) == ("text", "out\n", "")
