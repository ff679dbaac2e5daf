"""The tables and figures of the paper, each with the runs that measure it (`exhibits.toml`)."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from more_lab.analyses.catalog import one_or_all
from more_lab.experiments.published import EDITORS

FILE = Path(__file__).with_name("exhibits.toml")


class Variant(BaseModel):
    """One run of an exhibit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    editor: str
    """As on the command line."""
    settings: tuple[str, ...] = ()
    """As `--set`."""
    embedded: tuple[str, ...] | None = None
    """What stands in place of `settings` on the embedded models, whose layers are narrow."""
    anchors: bool = False
    """Whether it has anchors of the calibration pool."""

    def settings_on(self, *, small: bool) -> tuple[str, ...]:
        """Return its settings on a `small` model or a real one."""
        return self.embedded if small and self.embedded is not None else self.settings

    @property
    def protocol(self) -> Literal["online", "final"]:
        """When an edit is scored: M-ORE's right after it, as the paper's appendix says, a rival's after the last one.

        The sources of the rivals, MMEdit and LiveEdit, score what is left in the end, against the base.
        """
        return "online" if self.editor.startswith("more") else "final"


class Exhibit(BaseModel):
    """One table or figure, or several that show the same runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    labels: tuple[str, ...]
    """In the LaTeX source."""
    backbones: tuple[str, ...]
    """The models that the paper shows it on."""
    suites: tuple[str, ...] = ("e-vqa", "e-ic")
    edits: tuple[int, ...] = (1, 10, 100)
    """Numbers of edits after which something is measured; the last one is the length of the stream."""
    variants: dict[str, Variant] = {name: Variant(editor=editor) for name, editor in EDITORS.items()}
    """By the names of the paper; by default every editor of its main table."""
    keep: tuple[Literal["updates", "states", "answers"], ...] = ()
    """What its runs keep for the analyses."""
    every_lag: bool = False
    """Whether each edit is scored after every later one."""
    analyses: tuple[str, ...] = ()
    """Of `more analyze`; an exhibit without any is a table of scores."""
    printed: str = ""
    """The table of `published.json` that it shows. Default: the one of its own name, if there is one."""

    @property
    def compares_editors(self) -> bool:
        """Whether it has every editor of the main table, and so can have others beside them."""
        return self.variants.keys() == EDITORS.keys()


@cache
def exhibits() -> dict[str, Exhibit]:
    """Return every exhibit by its name, in the order of the file."""
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: Exhibit.model_validate({"name": name, "printed": name, **row}) for name, row in rows.items()}


def chosen(name: str) -> list[Exhibit]:
    """Return the exhibit of a name, or all of them.

    Raises:
        UsageError: there is no such exhibit.
    """
    hint = "`more reproduce` lists all tables and figures"
    return one_or_all(name, exhibits(), "the paper has no table or figure", hint)
