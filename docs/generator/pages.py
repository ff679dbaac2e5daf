"""The pages and their fenced blocks: README and those of docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = "docs", "docs/research", "docs/research/rivals"
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md")))]
TEST_COMMAND = "the test command"
"""The comment above the block that CI runs as it stands."""
EXECUTED = {"bash", "python"}
"""Languages of the blocks that run, unless a comment above them says why not."""

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

    @property
    def runs(self) -> bool:
        """Whether it is executed."""
        return self.language in EXECUTED and not self.not_run

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


def with_texts(page: Path, texts: Mapping[Block, str]) -> str:
    """Return a page in which some of its blocks have other texts."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in reversed(blocks(page)):  # from below, so that the lines above keep their numbers
        if block in texts:
            indent = lines[block.line - 1].partition("`")[0]
            new = [f"{indent}{line}".rstrip() for line in texts[block].splitlines()]
            lines[block.line : block.line + len(block.text.splitlines())] = new
    return "\n".join(lines) + "\n"
