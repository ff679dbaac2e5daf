"""What a reader sees of a report, whatever was measured: renderers know this and nothing else.

Text of a user's or a model's stands in `subject`, `scope`, `edits`, `before`, `properties` and the first cell of a row;
every other word is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.per_edit import EditScores
from more_cli.render.plots import Plot


@dataclass(frozen=True)
class Table:
    """A section: a table, and plots of what it says where there is room for them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    """The first cell names the row."""
    note: str = ""
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Page:
    """A whole report."""

    command: str
    subject: str
    """What was measured, such as the model's name."""
    headline: str
    scope: str
    """How much of it."""
    reading: str
    """How the numbers are to be read."""
    gates: Sequence[Judgement] = ()
    tables: Sequence[Table] = ()
    edits: Sequence[EditScores] = ()
    before: Mapping[str, str] = field(default_factory=dict)
    """Greedy answer of the untouched base by edit, where it was asked."""
    reproduce: Mapping[str, Any] = field(default_factory=dict)
    """What is needed to get these numbers again."""
    properties: Mapping[str, object] = field(default_factory=dict)
    """What a pipeline may want to group results by."""
    seconds: float = 0.0
    """Wall time of the measuring."""
