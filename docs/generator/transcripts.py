"""The transcripts of the pages: a `text` block below a block of commands shows what these commands printed.

A line `...` stands for lines that are left out. Which lines a shortened transcript keeps is written by hand, once: the
first word of each finds it again in what the commands print now. Everything else comes from a run.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

from generator.pages import Block, blocks
from generator.session import run_page

LEFT_OUT = "..."
_VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+\+00:00)?"), "TIME"),
    (re.compile(r"SHA256:[\w+/]{43}|\b[0-9a-f]{16,64}\b"), "HASH"),
    (re.compile(r"\b[\d,]+ bytes\b"), "BYTES"),  # a ledger has times and versions in it
    (re.compile(r"\b[\d.]+ (ms|s)\b"), "SECONDS"),
    (re.compile(r"\bfree: [\d.]+ GiB"), "FREE"),
    (re.compile(r"(\d\.\d*)\d\b"), r"\1~"),  # the last digit of a number
    (re.compile(r"\s+"), " "),  # the width of a column follows what is in it
)
"""What differs from run to run or from machine to machine, and what stands for it in a comparison."""


PROCESSOR = Path(__file__).with_name("processor.txt")
"""Says which kind of processor the transcripts were made on."""


def processor() -> str:
    """Return the kind of this processor, by what decides how its kernels round."""
    wanted = ("vendor_id", "cpu family", "model", "flags")
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if cpus.is_file() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return " ".join(facts.get(name, platform.machine()) for name in wanted)


class StaleError(Exception):
    """A shortened transcript has a line that is not printed any more."""


def transcripts(page: Path) -> dict[Block, Block]:
    """Return the transcripts of a page, each with the block above it; those of research are measurements."""
    if page.parent.name == "research":
        return {}
    return {below: above for above, below in pairwise(blocks(page)) if above.runs and below.language == "text"}


def fresh_transcripts(page: Path, scratch: Path) -> dict[Block, str]:
    """Run the commands of a page in a scratch folder; return the text of every transcript as it is now.

    Raises:
        WrongExitError: a command of the page ends with another exit code.
        StaleError: a line that a shortened transcript keeps is not printed.
    """
    printed = dict(run_page(page, scratch))
    return {
        block: "".join(f"{line}\n" for line in rewritten(block.text.splitlines(), printed[above].splitlines(), block))
        for block, above in transcripts(page).items()
    }


def fixed(line: str) -> str:
    """Return a line without what differs from run to run."""
    for pattern, stands in _VOLATILE:
        line = pattern.sub(stands, line)
    return line.strip()


def messages(text: str) -> list[str]:
    """Return the errors and hints of a transcript without their numbers: they are the same on every processor.

    What torch says of a device depends on how it was built, so such a line is left out.
    """
    lines = (line for line in text.splitlines() if line.startswith(("error: ", "hint: ")) and "cuda" not in line)
    return [re.sub(r"\d[\d.,~]*", "#", fixed(line)) for line in lines]


def rewritten(shown: list[str], printed: list[str], where: object) -> list[str]:
    """Return what a transcript shows of what is printed now; it stays where volatile parts alone differ.

    Raises:
        StaleError: it is shortened, and a line of it is not printed any more.
    """
    lines = [line.rstrip() for line in printed]
    if LEFT_OUT in shown:
        places = _places([line for line in shown if line != LEFT_OUT], lines, where)
        lines = list(_shortened(lines, list(places)))
    return shown if [*map(fixed, shown)] == [*map(fixed, lines)] else lines


def _places(kept: Iterable[str], lines: list[str], where: object) -> Iterator[int]:
    """Yield where each kept line is: of the next ones with the same first word, the one most like it."""
    printed, after = [*map(fixed, lines)], 0
    for line in map(fixed, kept):
        alike = [place for place in range(after, len(lines)) if printed[place].split()[:1] == line.split()[:1]]
        if not alike:
            raise StaleError(f"{where}: not printed any more: {line}\nprinted:\n" + "\n".join(lines))
        place = max(alike, key=lambda place, line=line: SequenceMatcher(None, line, printed[place]).ratio())
        yield place
        after = place + 1


def _shortened(lines: list[str], places: list[int]) -> Iterator[str]:
    for before, place in pairwise([-1, *places, len(lines)]):
        gap = lines[before + 1 : place]
        yield from [LEFT_OUT] if any(gap) else gap
        yield from lines[place : place + 1]
