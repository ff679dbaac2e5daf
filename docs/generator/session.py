"""Runs the commands of a page as a reader types them: from an empty folder, in order, with what each block prints."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from generator.pages import ROOT, Block, blocks
from more_cli.cli.app import main

HOME = "/home/me"
"""Stands on the pages for the folder in which they begin."""
_EXIT = re.compile(r"# exit (\d+)\s*$")
_SHELL_WORD = re.compile(r"^\s*(export|if|for|while|function|set|source|\w+=|\w+\(\))\b", re.MULTILINE)
_PUNCTUATION = set("();<>|&")
_WITHOUT_PROGRESS = (
    "import math, runpy, more_cli.cli.output as output; output.LOG_SECONDS = math.inf; "
    "runpy.run_module('more_cli', run_name='__main__', alter_sys=True)"
)
"""`python -m more_cli` without lines of progress: they come with the time."""


PLAIN_KERNELS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}
"""Kernels that most x86 processors share: each generation has others, and they round differently."""


class WrongExitError(Exception):
    """A command of a page ended with another exit code than the page says."""


def run_page(page: Path, scratch: Path) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in an empty folder below `scratch`; yield each that runs, with what it printed.

    Raises:
        WrongExitError: a command does not end with 0, or with the code in the comment behind it.
    """
    folder = scratch.resolve() / "me"
    folder.mkdir()
    path = f"{programs(scratch / 'bin')}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / ".cache")}
    environment |= PLAIN_KERNELS
    namespace: dict[str, Any] = {"__name__": "page"}
    quiet = mock.patch("more_cli.cli.output.LOG_SECONDS", math.inf)
    with contextlib.chdir(folder), mock.patch.dict("os.environ", environment), quiet:
        os.environ.pop("COLUMNS", None)  # the width of tables
        for block in blocks(page):
            if block.language == "sh" and block.text.startswith("#!"):
                Path(script_name(block)).write_text(block.text, encoding="utf-8")
            elif block.runs:
                printed = _python(block, namespace) if block.language == "python" else _commands(block)
                yield block, printed.replace(str(folder), HOME)


def programs(folder: Path) -> Path:
    """Write `more`, `more-cli` and `python` for shells into a folder, which goes to the front of PATH."""
    folder.mkdir()
    here = shlex.quote(sys.executable)
    more = f"{here} -c {shlex.quote(_WITHOUT_PROGRESS)}"
    for name, command in {"more": more, "more-cli": more, "python": here}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def script_name(block: Block) -> str:
    """Return the file that a script's own usage line names."""
    (name,) = set(re.findall(r"\bsh ([\w.-]+\.sh)\b", block.text))
    return str(name)


def _python(block: Block, namespace: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(block.text, str(block), "exec"), namespace)
    return out.getvalue()


def _commands(block: Block) -> str:
    """Run a block of commands, whole where it needs one shell, else line by line; return what a terminal shows."""
    text = re.sub(r"\\\n\s*", "", block.text)
    if "<<" in text or _SHELL_WORD.search(text) or multiline(text):
        return _in_shell(block.text, block)
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return "".join(_line(line, block) for line in lines)


def _line(line: str, block: Block) -> str:
    if not line.startswith(("cd ", "more ")) or needs_shell(line):
        return _in_shell(line, block)
    words = shlex.split(line, comments=True)
    if words[0] == "cd":
        os.chdir(words[1])
        return ""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(words[1:])
    return _checked(code, line, out.getvalue(), block)


def _in_shell(script: str, block: Block) -> str:
    # Without pipefail, as in a reader's shell: `more log | head` is no failure.
    command = ["bash", "-eu", "-c", script]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, check=False, text=True, timeout=600, **both)
    return _checked(done.returncode, script.rstrip().splitlines()[-1], done.stdout, block)


def _checked(code: int, line: str, printed: str, block: Block) -> str:
    said = _EXIT.search(line)
    if code != (int(said[1]) if said else 0):
        raise WrongExitError(f"{block}: exit {code} from: {line}\n{printed}")
    return printed


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
