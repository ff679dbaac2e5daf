"""The content of a report: the only thing that renderers know.

Text from users and models is in `subject`, `scope`, `edits`, `base`, `properties`, the first cell of a row, and what
is `Quoted` in a sentence; all other text is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.per_edit import EditScores
from more_cli.inputs.images import ImageSource
from more_cli.render.plots import Plot

BROAD = 6
"""A table with more columns is never cut: a page has no room for two pieces side by side."""
NARROW = 3
"""On a phone each row of a table with more columns is a card."""
LONG = 16
"""Rows of one piece of a table that HTML cuts."""

Phrase = Sequence[str | ImageSource]
"""Parts of a text, in order, and pictures of what it is about."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of the first screen."""

    words: Phrase
    items: Sequence[Phrase] = ()
    """What it names, the most important first; renderers cut a long list."""
    good: bool = True
    """Whether it says that all is well."""


@dataclass(frozen=True)
class Table:
    """A section: a table, and plots of it for formats that can show them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    """The first cell names the row."""
    note: str = ""
    plots: Sequence[Plot] = ()
    folded: bool = False
    """Whether it has to be opened."""

    @property
    def shape(self) -> str:
        """The classes of its form in HTML."""
        columns = len(self.columns)
        return " ".join(name for name, most in {"cards": NARROW, "broad": BROAD}.items() if columns > most)

    @property
    def height(self) -> int:
        """Rows that HTML shows in one piece: a long and narrow table is cut into equal pieces, side by side."""
        rows = max(1, len(self.rows))
        pieces = 1 if len(self.columns) > BROAD or len(self.plots) == 1 else math.ceil(rows / LONG)
        return math.ceil(rows / pieces)


@dataclass(frozen=True)
class Page:
    """A whole report."""

    command: str
    subject: str
    """What was measured, such as the model's name."""
    headline: str
    scope: str
    """How much of it was measured."""
    reading: str
    """How to read the numbers: protocol and baseline."""
    sentences: Sequence[Sentence] = ()
    """What a reviewer needs to know first, in words."""
    left_out: str = ""
    """How many probes were left out because they are anchors too, in one sentence; empty for none."""
    gates: Sequence[Judgement] = ()
    tables: Sequence[Table] = ()
    edits: Sequence[EditScores] = ()
    base: Mapping[str, str] = field(default_factory=dict)
    """Greedy answer of the base by edit, if it was asked."""
    reproduce: Mapping[str, Any] = field(default_factory=dict)
    """What is needed to reproduce the numbers."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """Properties by which a pipeline may group results."""
    seconds: float = 0.0
    """Wall time of the measuring."""
