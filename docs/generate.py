"""Write the pages that come from the code: `cli.md`, `more-cli.1`, `recipes.md`, `json.md` with `schemas.json`,
`security.md`, `research/claims.md`, `research/rivals/`.

python docs/generate.py             writes them
python docs/generate.py --check     says which are not up to date (exit code 1)
python docs/generate.py --examples  first runs the commands on the embedded model for new examples (two minutes)
python docs/generate.py --transcripts [PAGE ...]
                                    runs the commands of these pages, or of all, and writes what they print below them
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from generator import examples
from generator.claims import claims_page
from generator.commands import commands_page
from generator.manual import manual_page
from generator.outputs import json_page
from generator.pages import PAGES, with_texts
from generator.recipes import recipes_page
from generator.rivals import rivals_pages
from generator.schemas import printed, schemas_text
from generator.security import security_page
from generator.session import WrongExitError
from generator.transcripts import PROCESSOR, StaleError, fresh_transcripts, processor, transcripts

DOCS = Path(__file__).resolve().parent


def pages() -> dict[str, str]:
    """Return the text of every generated page, by file name."""
    return {
        "cli.md": commands_page(),
        "more-cli.1": manual_page(),
        "recipes.md": recipes_page(),
        "json.md": json_page(),
        "schemas.json": schemas_text(),
        "security.md": security_page(DOCS.parent),
        "research/claims.md": claims_page(),
        **rivals_pages(),
    }


def outdated() -> list[str]:
    """Return the names of the pages on disk that differ from what the code says."""
    return [name for name, text in pages().items() if not _is(DOCS / name, text)]


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write_examples() -> None:
    """Run the commands on the embedded model and keep a shortened output of each."""
    wanted = {output.example for output in printed().values()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        found = [value for name, value in examples.run(folder) if name in wanted]
        examples.keep({value["schema"]: examples.shortened(value, folder) for value in found})


def write_transcripts(names: list[str]) -> int:
    """Run the commands of pages and write their transcripts; return the exit code."""
    failed = 0
    for page in [Path(name).resolve() for name in names] or [page for page in PAGES if transcripts(page)]:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                text = with_texts(page, fresh_transcripts(page, Path(scratch)))
            except (StaleError, WrongExitError) as error:
                print(error)
                failed = 1
            else:
                page.write_text(text, encoding="utf-8")
    if not names:  # those of a single page leave the others as they are
        PROCESSOR.write_text(f"{processor()}\n", encoding="utf-8")
    return failed


def main(arguments: list[str]) -> int:
    """Do what the arguments say and return the exit code."""
    if arguments[:1] == ["--transcripts"]:
        return write_transcripts(arguments[1:])
    if arguments == ["--check"]:
        old = outdated()
        for name in old:
            print(f"docs/{name} is not up to date: run `python docs/generate.py`")
        return 1 if old else 0
    if arguments == ["--examples"]:
        write_examples()
    elif arguments:
        print(__doc__)
        return 2
    for name, text in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
