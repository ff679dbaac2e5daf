"""What `more log` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from more_cli.outputs.base import FilePath, Number, Part, Printed
from more_cli.outputs.edits import answers_of
from more_cli.store.entry import Entry, ProbeEntry, TurnEntry

if TYPE_CHECKING:
    from more_cli.ops.log import EditRecord, Line


class LogLine(Part, like=Entry):
    """A ledger line, without hashes, images and probes, and what has become of it."""

    now: str
    """status of today"""
    answer_base: str | None
    """`greedy_base` of the ledger line"""
    answer_before: str | None
    """`greedy_before` of the ledger line"""
    answer_after: str | None
    """`greedy_after` of the ledger line"""
    drift: Number | None
    """the largest of `drifts` of the ledger line"""

    seq: int
    kind: str
    id: str
    status: str
    reason: str
    question: str
    target: str
    nll_before: Number | None
    nll_after: Number | None
    forced_before: str | None
    forced_after: str | None
    right_after: bool | None
    writes: int
    tags: dict[str, Any]
    source: str
    line: int
    time: str
    retry: bool
    settings: list[str]
    ids: list[str]
    anchors: int

    @classmethod
    def of_line(cls, line: Line, **values: object) -> Self:
        """Make it of a line and its status of today."""
        return cls.of(line.entry, now=line.now, **answers_of(line.entry), **values)


class LogOutput(Printed, schema="more.log/2", command="more log [MODEL] --json"):
    """Lines of the ledger."""

    state: FilePath
    total: int
    """lines of the ledger"""
    matching: int
    """lines that the filters leave"""
    head: str
    """SHA-256 of the last line"""
    lines: list[LogLine]
    """the lines, the oldest first"""


class StoredTurn(Part, like=TurnEntry):
    """An earlier turn of a conversation, as the ledger keeps it."""

    role: str
    text: str
    images: int


class StoredProbe(Part, like=ProbeEntry):
    """A question of an edit, or of an anchor made of its picture, as the ledger keeps it."""

    question: str
    image: str | None
    images: list[str]
    answer: str | None
    hop: int | None
    turns: list[StoredTurn]


class LogEdit(LogLine):
    """A ledger line, and what has become of the edit."""

    prev: str
    check: str
    content: str
    subject: str
    images: list[str]
    turns: list[StoredTurn]
    rephrases: list[str]
    image_rephrases: list[str]
    locality: list[StoredProbe]
    portability: list[StoredProbe]
    made: list[StoredProbe]
    paths: dict[str, str]
    greedy_base: str | None
    greedy_before: str | None
    greedy_after: str | None
    joint: bool
    sites: list[str]
    cost: Number | None
    looks: list[list[Number]]
    drifts: list[list[Number]]
    since: int
    anew: bool
    redone: int
    wall_ms: Number | None
    versions: dict[str, str]
    note: str
    lines: list[int]
    """numbers of all lines of this id"""
    superseded_by: str | None
    """id of the later edit with another target"""
    stored: dict[str, bool]
    """whether the image is in the store, by hash"""


class LogShowOutput(Printed, schema="more.log.show/2", command="more log show ID [MODEL] --json"):
    """Everything that the ledger records about one edit."""

    state: FilePath
    edit: LogEdit
    """the last ledger line of the edit"""

    @classmethod
    def of_record(cls, record: EditRecord) -> LogShowOutput:
        """Make it of the record of an edit."""
        about = {"lines": record.numbers, "stored": record.stored, "superseded_by": record.superseded_by or None}
        return cls(state=record.target.sidecar, edit=LogEdit.of_line(record.line, **about))
