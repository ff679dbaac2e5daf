"""What a release needs to know of this checkout.

python docs/release.py check TAG     fails unless the tag is `v` and the version, which the changelog has with a date
python docs/release.py notes TAG     prints that section
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from more_cli import __version__

ROOT = Path(__file__).resolve().parent.parent
_HEADING = re.compile(r"^## (?P<version>\S+) \((?P<when>[^)]+)\)\n", re.MULTILINE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def problems_of(tag: str, changelog: str, citation: str, version: str = __version__) -> list[str]:
    """Return what keeps a tag from being released, a sentence each."""
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and more_cli/__init__.py says {version}: tag v{version}, or change that line")
    if f"version: {version}\n" not in citation:
        found.append(f"CITATION.cff: write `version: {version}`")
    heading = next((each for each in _HEADING.finditer(changelog) if each["version"] == version), None)
    if heading is None:
        found.append(f"CHANGELOG.md has no section: write `## {version} (YEAR-MONTH-DAY)`")
    elif not _DATE.fullmatch(heading["when"]):
        found.append(f"CHANGELOG.md: `## {version} ({heading['when']})` has no date: write it in place of those words")
    return found


def notes_of(version: str, changelog: str) -> str:
    """Return the section of a version, without its heading; empty if there is none."""
    sections = list(_HEADING.finditer(changelog))
    ends = [each.start() for each in sections[1:]] + [len(changelog)]
    found = (
        changelog[each.end() : end] for each, end in zip(sections, ends, strict=True) if each["version"] == version
    )
    return next(found, "").strip()


def main(arguments: list[str]) -> int:
    """Do what the arguments say and return the exit code."""
    if len(arguments) != 2 or arguments[0] not in ("check", "notes"):
        print(__doc__, file=sys.stderr)
        return 2
    command, tag = arguments
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if command == "notes":
        print(notes_of(tag.removeprefix("v"), changelog))
        return 0
    found = problems_of(tag, changelog, (ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    print("\n".join(found), file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
