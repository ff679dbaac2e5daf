"""The content of a report: the only thing that renderers know.

Text from users and models is in `subject`, `scope`, `failed`, `edits`, `before`, `properties` and the first cell of a
row; all other text is ours.
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
    """A section: a table, and plots of it for formats that can show them."""

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
    """How much of it was measured."""
    reading: str
    """How to read the numbers: protocol and baseline."""
    failed: str = ""
    """Which edits that were asked for do not stand, in one sentence; empty if all do."""
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
