"""The `suites` commands: show a suite, check it, and convert it to lines that `more` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonlines

from more_cli.errors import UsageError
from more_cli.files import replacing
from more_cli.suites.check import SuiteCheck, check_suite
from more_cli.suites.load import EditSuite, Suite, YesNoSuite
from more_cli.text import shorten

if TYPE_CHECKING:
    from more_cli.progress import Progress

_FIRST = 3
"""Lines that `show` quotes."""
_PROBES = ("locality", "portability")

Respell = Callable[[str], str]


@dataclass(frozen=True)
class Conversion:
    """The result of `convert`."""

    out: Path
    pool: str
    """`all` for yes/no questions, which have no pools."""
    lines: int
    reader: str
    """The command that reads it."""


def first_lines(suite: Suite) -> list[dict[str, Any]]:
    """Return the first lines that `convert` would write, with image paths as the suite spells them."""
    lines = _probe_lines(suite, str) if isinstance(suite, YesNoSuite) else _edit_lines(suite, "evaluation", str)
    return list(islice(lines, _FIRST))


def check(suite: Suite, open_images: bool, progress: Progress) -> SuiteCheck:
    """Check a suite; with `open_images` its images too."""

    def tick(done: int, total: int) -> None:
        progress(done, total, "opening images")

    return check_suite(suite, open_images=open_images, on_progress=tick)


def convert(suite: Suite, out: Path, pool: str, *, force: bool) -> Conversion:
    """Write one pool as lines for `more edit`, or yes/no questions as lines for `more eval --probes`.

    Image paths become relative to the folder of `out`, so that the file needs no `--image-root`.

    Raises:
        UsageError: `out` already exists, or the suite has no such pool.
        StateError, ResourceError: as `replacing`.
    """
    if out.is_dir() or (out.exists() and not force):
        hint = "name a file" if out.is_dir() else "pass --force to replace it"
        raise UsageError(f"`{out}` already exists", hint)
    if isinstance(suite, YesNoSuite):
        pool, lines, reader = "all", _probe_lines(suite, _relative(Path(), out.parent)), "more eval --probes"
    else:
        if pool not in suite.pools:
            raise UsageError(
                f"suite `{suite.name}` has no pool `{shorten(pool)}` here", f"it has {', '.join(suite.pools)}"
            )
        root = suite.pools[pool].images.root
        lines, reader = _edit_lines(suite, pool, _relative(root, out.parent)), "more edit"
    count = 0
    spelled = partial(json.dumps, ensure_ascii=False)
    with replacing(out) as scratch, jsonlines.open(scratch, "w", dumps=spelled) as file:
        for line in lines:
            file.write(line)
            count += 1
    return Conversion(out, pool, count, reader)


def _edit_lines(suite: EditSuite, pool: str, respell: Respell) -> Iterator[dict[str, Any]]:
    for annotation in suite.pools[pool].annotations:
        line = _respelled(annotation.line.model_dump(exclude_defaults=True), respell)
        probes = {name: [_respelled(probe, respell) for probe in line[name]] for name in _PROBES if name in line}
        yield line | probes


def _probe_lines(suite: YesNoSuite, respell: Respell) -> Iterator[dict[str, Any]]:
    for category, images in suite.categories.items():
        for image in images:
            for number, asked in enumerate(image.questions, 1):
                id = f"{category}/{image.stem}/{number}"
                line = {"id": id, "image": str(image.path), "question": asked.question, "answer": asked.answer}
                yield _respelled(line, respell)


def _respelled(part: dict[str, Any], respell: Respell) -> dict[str, Any]:
    """Return a line or a probe with every image path changed."""
    images = {name: part[name] for name in ("image", "image_rephrases") if name in part}
    changed = {
        name: respell(found) if isinstance(found, str) else [respell(image) for image in found]
        for name, found in images.items()
    }
    return part | changed


def _relative(root: Path, below: Path) -> Respell:
    """Return a function that rewrites image paths from `root` to be relative to `below`, without following links."""

    def respell(image: str) -> str:
        if image[:5].lower() == "data:":
            return image
        return os.path.relpath(os.path.abspath(root / image), os.path.abspath(below))

    return respell
