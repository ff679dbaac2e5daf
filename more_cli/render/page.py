"""The content of a report: the only thing that renderers know.

Text from users and models is in `subject`, `scope`, `edits`, `before`, `properties`, the first cell of a row, and what
is `Quoted` in a sentence; all other text is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.per_edit import EditScores
from more_cli.render.plots import Plot


class Quoted(str):
    """Text of a user, a model or a file, in a sentence of ours."""

    __slots__ = ()


Phrase = Sequence[str]
"""Parts of a text, in order."""


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
    before: Mapping[str, str] = field(default_factory=dict)
    """Greedy answer of the untouched base by edit, if it was asked."""
    reproduce: Mapping[str, Any] = field(default_factory=dict)
    """What is needed to reproduce the numbers."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """Properties by which a pipeline may group results."""
    seconds: float = 0.0
    """Wall time of the measuring."""
