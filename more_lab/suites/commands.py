"""The lines that `more` reads, made of a suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jsonlines

from more_cli.errors import UsageError
from more_cli.files import check_free_file, replacing
from more_cli.inputs.respelling import Respell, relative, respelled
from more_cli.suites.load import EditSuite, Suite, YesNoSuite
from more_cli.text import shorten

_FIRST = 3
"""Lines that `show` quotes."""


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


def convert(suite: Suite, out: Path, pool: str, *, force: bool) -> Conversion:
    """Write one pool as lines for `more edit`, or yes/no questions as lines for `more eval --probes`.

    Image paths become relative to the folder of `out`, so that the file needs no `--image-root`.

    Raises:
        UsageError: `out` already exists, or the suite has no such pool.
        StateError, ResourceError: as `replacing`.
    """
    check_free_file(out, force)
    if isinstance(suite, YesNoSuite):
        pool, lines, reader = "all", _probe_lines(suite, relative(Path(), out.parent)), "more eval --probes"
    else:
        if pool not in suite.pools:
            raise UsageError(
                f"suite `{suite.name}` has no pool `{shorten(pool)}` here", f"it has {', '.join(suite.pools)}"
            )
        root = suite.pools[pool].images.root
        lines, reader = _edit_lines(suite, pool, relative(root, out.parent)), "more edit"
    count = 0
    spelled = partial(json.dumps, ensure_ascii=False)
    with replacing(out) as scratch, jsonlines.open(scratch, "w", dumps=spelled) as file:
        for line in lines:
            file.write(line)
            count += 1
    return Conversion(out, pool, count, reader)


def _edit_lines(suite: EditSuite, pool: str, respell: Respell) -> Iterator[dict[str, Any]]:
    for annotation in suite.pools[pool].annotations:
        yield respelled(annotation.line.model_dump(exclude_defaults=True), respell)


def _probe_lines(suite: YesNoSuite, respell: Respell) -> Iterator[dict[str, Any]]:
    for category, images in suite.categories.items():
        for image in images:
            for number, asked in enumerate(image.questions, 1):
                id = f"{category}/{image.stem}/{number}"
                line = {"id": id, "image": str(image.path), "question": asked.question, "answer": asked.answer}
                yield respelled(line, respell)
