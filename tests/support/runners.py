"""What the tests of pipelines share: a `more-cli` that only takes notes, and the command lines of a script."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer.main

from more_cli.cli.app import app

JUNIT = """<testsuites><testsuite name="edits">
<testcase classname="edits" name="e1"/>
<testcase classname="edits" name="e,2"><failure message="not learnt: 100%&#10;::set-env name=x::y"/></testcase>
</testsuite></testsuites>"""
_GATE = "--gate 'rel.gen_exact>=1'"
STUB = """#!/bin/sh
echo "$@" >> calls
case $1 in
  edit) exit "$EDIT";;
  eval)
    for word; do
      case $word in *.md) echo report > "$word";; *.xml) cp junit.xml "$word";; esac
    done
    exit "$EVAL";;
esac
"""


def stub(folder: Path) -> None:
    """Write `bin/more-cli`, which notes its words in `calls` and exits as $EDIT and $EVAL say."""
    (folder / "bin").mkdir()
    (folder / "bin" / "more-cli").write_text(STUB)
    (folder / "bin" / "more-cli").chmod(0o755)
    (folder / "junit.xml").write_text(JUNIT)


def commands(script: str) -> list[str]:
    """Return the commands that a script gives to `more-cli`, each of whose options was found to be one."""
    group: Any = typer.main.get_command(app)
    named = []
    for line in script.splitlines():
        if "more-cli" in line and not line.lstrip().startswith("#"):
            words = shlex.split(line.replace('"${gates[@]}"', _GATE).replace('"$@"', _GATE))
            name, *rest = words[words.index("more-cli") + 1 :]
            context = group.commands[name].make_context(name, rest[: rest.index(">")] if ">" in rest else rest)
            assert context.params
            named.append(name)
    return named
