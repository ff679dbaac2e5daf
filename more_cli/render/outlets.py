"""The files of a report: formats by suffix, checks before scoring, and atomic writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.errors import StateError, UsageError
from more_cli.files import write_whole

if TYPE_CHECKING:
    from more_cli.render.page import Page

FORMATS = (".html", ".md")


def check_outlets(reports: Sequence[Path], junit: Path | None = None) -> None:
    """Check that all files can be written, before anything is scored.

    Raises:
        UsageError: an unknown format, no such folder, a path that is not a file, or a name given twice.
        StateError: the folder is not writable.
    """
    for path in reports:
        if path.suffix.lower() not in FORMATS:
            raise UsageError(
                f"`--report {path}`: a report is {' or '.join(FORMATS)}", "name a file such as report.html"
            )
    if junit is not None and junit.suffix.lower() != ".xml":
        raise UsageError(f"`--junit {junit}`: JUnit's report is .xml", "name a file such as more.xml")
    seen = set()
    for path in _files(reports, junit):
        if not path.parent.is_dir():
            raise UsageError(f"`{path}`: there is no folder `{path.parent}`", "create it first")
        if path.exists() and not path.is_file():
            raise UsageError(f"`{path}` is not a file", "name another file")
        if path.resolve() in seen:
            raise UsageError(f"`{path}` is named twice", "give every file its own name")
        if not os.access(path.parent, os.W_OK):
            raise StateError(f"`{path.parent}` is not writable", "name a file in another folder")
        seen.add(path.resolve())


def write_outlets(page: Page, reports: Sequence[Path], junit: Path | None = None) -> None:
    """Write the reports and the JUnit file.

    Raises:
        StateError: a folder is not writable.
        ResourceError: no space.
    """
    from more_cli.render.html import html
    from more_cli.render.junit import junit_xml
    from more_cli.render.markdown import markdown

    render = {".html": html, ".md": markdown}
    texts = [render[path.suffix.lower()](page) for path in reports] + ([junit_xml(page)] if junit else [])
    for path, text in zip(_files(reports, junit), texts, strict=True):
        write_whole(path, text.encode())


def _files(reports: Sequence[Path], junit: Path | None) -> list[Path]:
    return [*reports, *([junit] if junit else [])]
