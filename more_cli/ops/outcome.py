"""What the reports of `edit`, `revert`, `combine` and `rebase` have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from more_cli.store.status import FAILED, Status


@dataclass(kw_only=True)
class Outcome:
    """How a command that applies edits ended."""

    statuses: dict[str, Status] = field(default_factory=dict)
    """Status of every edit that it is about, also of edits that were applied earlier."""
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    """Whether a signal ended it; what was done is saved, and the same call continues."""
    dry_run: bool = False
    wall_seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Those of the edits that do not stand."""
        return [id for id, status in self.statuses.items() if status in FAILED]
