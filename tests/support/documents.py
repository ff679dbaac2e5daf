"""README and the pages of docs/: their fenced blocks, their links, and a folder in which their commands run."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from more_cli.demo.files import demo_model_dir
from more_cli.recipe.files import data_folder

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "research").glob("*.md"))]
TEST_COMMAND = "the test command"
"""The comment above the block that CI runs as it stands."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>.*)$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>\S.*) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str
    """Why it is not executed; empty for a block that is."""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return list(_blocks(page, page.read_text(encoding="utf-8").splitlines()))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        first, indent = number + 1, len(opened["indent"])
        number = first
        while not re.fullmatch(rf" *{opened['ticks']}`*", lines[number]):
            number += 1
        text = "".join(f"{line[indent:]}\n" for line in lines[first:number])
        above = lines[first - 2].strip() if first > 1 else ""
        reason = _NOT_RUN.fullmatch(above)
        not_run = "CI runs it" if above == f"<!-- {TEST_COMMAND} -->" else reason["reason"] if reason else ""
        yield Block(page, first, opened["info"].strip(), text, not_run)
        number += 1


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *(```+)[^\n]*\n.*?^ *\1`*$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the ids that a page's headings and `id`s give, as a forge and the site make them."""
    found = set(re.findall(r'id="([^"]+)"', prose(page))) | set(re.findall(r"\{ ?#([\w-]+) ?\}", prose(page)))
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\{[^}]*\}|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().replace("`", "").strip()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text)))
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text)))
    return found


def prepare(folder: Path) -> None:
    """Fill a folder as the pages say: `llava/`, `edits.jsonl`, `images/`, `anchors.jsonl`, `regression.jsonl`."""
    samples = data_folder("sample_edits")
    shutil.copytree(demo_model_dir(), folder / "llava")
    shutil.copytree(samples / "images", folder / "images")
    shutil.copy(samples / "edits.jsonl", folder)
    lines = (samples / "anchors.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    text = [line for line in lines if '"image"' not in line]
    # Eight of them are without a picture, so that no made ones join them.
    anchors = {*lines[::2], *text[-4:]}
    (folder / "anchors.jsonl").write_text("".join(line for line in lines if line in anchors), encoding="utf-8")
    (folder / "regression.jsonl").write_text("".join(line for line in lines if line not in anchors), encoding="utf-8")


def programs(folder: Path) -> Path:
    """Write `more`, `more-cli` and `python` for shells into a folder, which goes to the front of PATH."""
    folder.mkdir()
    here = shlex.quote(sys.executable)
    for name, command in {"more": f"{here} -m more_cli", "more-cli": f"{here} -m more_cli", "python": here}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder
