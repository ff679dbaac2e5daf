"""What a run of `more edit` tells: a report at its end, and every edit as it is applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from more_cli.inputs.records import Problem
from more_cli.ops.drift import Drift
from more_cli.ops.init import InitReport
from more_cli.store.entry import FAILED, Entry, Status
from more_cli.store.target import Target


@dataclass
class EditRun:
    """How a run of `more edit` went."""

    created: InitReport | None = None
    """The state, if this run made it."""
    replayed: int = 0
    """Ledger lines that were applied again because the sidecar lacked them."""
    consolidation: Entry | None = None
    drift: Drift | None = None
    """Of the watched anchors after the stream; None without any."""
    interrupted: bool = False
    dry_run: bool = False
    wall_seconds: float = 0.0


@dataclass
class EditReport:
    """The result of a stream."""

    target: Target
    total: int = 0
    """Edits in the stream, without repetitions."""
    skipped: int = 0
    """Edits that were in the ledger before."""
    reverted: list[str] = field(default_factory=list)
    """Skipped edits that were reverted and stay so."""
    ids: list[str] = field(default_factory=list)
    """Every edit of the stream, in order."""
    applied: int = 0
    entries: Sequence[Entry] = ()
    """Edits that this run applied, in order; read from the ledger on access."""
    statuses: dict[str, Status] = field(default_factory=dict)
    """Status of every edit of the stream, also of edits applied in earlier runs."""
    problems: list[str] = field(default_factory=list)
    """Lines that were left out (`--on-error skip`)."""
    notes: list[str] = field(default_factory=list)
    superseded: dict[str, list[str]] = field(default_factory=dict)
    """Edits of this run that corrected earlier ones, with the ids of these."""
    run: EditRun = field(default_factory=EditRun)

    def count(self, entry: Entry, contradicted: Sequence[str]) -> Sequence[str]:
        """Record an applied edit and return those it supersedes: all that it contradicts, unless it was refused."""
        self.applied += 1
        if not contradicted or entry.status is Status.REFUSED:
            return ()
        self.superseded[entry.id] = list(contradicted)
        return contradicted

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run; the state is saved, and the same call continues."""
        return self.run.interrupted

    @property
    def counts(self) -> dict[str, int]:
        """Number of the stream's edits by status."""
        return dict(sorted(Counter(self.statuses.values()).items()))

    @property
    def failed(self) -> list[str]:
        """Edits of the stream that do not stand."""
        return [id for id, status in self.statuses.items() if status in FAILED]


class Listener:
    """Receives results while a stream is applied; a subclass overrides what it needs."""

    def edited(self, entry: Entry, status: Status, *, new: bool, supersedes: Sequence[str] = ()) -> None:
        """Receive an edit that is safe in the ledger: a `new` one, which may supersede others, or one from before."""

    def problem(self, problem: Problem) -> None:
        """Receive a line that cannot be applied."""
