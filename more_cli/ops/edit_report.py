"""What a stream of edits is applied with, what becomes of it, and who hears of it meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from more_cli.inputs.edits import Problem
from more_cli.store.entry import Entry, Status
from more_cli.store.target import Target

if TYPE_CHECKING:  # `status` shows reports too, and starts without torch
    from more_cli.ops.init import InitReport

FAILED = (Status.NOT_LEARNT, Status.REFUSED)


@dataclass(frozen=True)
class EditOptions:
    """How a stream is applied."""

    recipe: str | None = None
    settings: tuple[str, ...] = ()
    image_root: Path | None = None
    strict_paths: bool = False
    on_error: Literal["stop", "skip"] = "stop"
    limit: int | None = None
    save_every: int = 10
    dry_run: bool = False
    store_images: bool = True
    consolidate: Literal["off", "run", "all"] = "off"
    """After the stream, write once more what does not hold: of this run's edits, or of all."""
    batch: bool = False
    """Absorb every key first, then write all edits together, as a consolidation does."""
    reapply: bool = False
    """Apply edits again that were reverted."""
    snapshot_every: int | None = None
    """Keep a copy of the state after every so many edits, for a revert to start from."""


@dataclass
class EditReport:
    """What became of a stream."""

    target: Target
    total: int = 0
    """Edits in the stream, without repetitions."""
    skipped: int = 0
    """Edits that the ledger had already."""
    reverted: list[str] = field(default_factory=list)
    """Those of them that were taken back, and stay so."""
    replayed: int = 0
    """Ledger entries that were applied again because the sidecar did not have them."""
    ids: list[str] = field(default_factory=list)
    """Every edit of the stream, in order."""
    applied: int = 0
    entries: Sequence[Entry] = ()
    """What this run applied, in order; read from the ledger when asked for."""
    statuses: dict[str, Status] = field(default_factory=dict)
    """Status of every edit of the stream, also of those applied in earlier runs."""
    problems: list[str] = field(default_factory=list)
    """Lines that were left out (`--on-error skip`)."""
    notes: list[str] = field(default_factory=list)
    consolidation: Entry | None = None
    created: InitReport | None = None
    interrupted: bool = False
    dry_run: bool = False
    wall_seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Number of the stream's edits by status."""
        return dict(sorted(Counter(self.statuses.values()).items()))

    @property
    def failed(self) -> list[str]:
        """Edits of the stream that do not stand."""
        return [id for id, status in self.statuses.items() if status in FAILED]


class Listener:
    """Told what becomes of a stream while it is applied; a subclass says what it wants to hear."""

    def edited(self, entry: Entry, status: Status, *, new: bool) -> None:
        """Hear of an edit that is durable in the ledger: a `new` one, or one that was there before."""

    def problem(self, problem: Problem) -> None:
        """Hear of a line that cannot be applied."""
