"""What can become of an edit. The command line shows these words before anything else is loaded."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """State of an edit."""

    LEARNT = "learnt"
    NOT_LEARNT = "not-learnt"
    """Written, but still wrong after the last step."""
    REFUSED = "refused"
    """Rolled back."""
    ALREADY_RIGHT = "already-right"
    """Nothing was written; its key was absorbed."""
    SUPERSEDED = "superseded"
    """A later edit has the same images and question and another target."""
    REVERTED = "reverted"


RIGHT = (Status.LEARNT, Status.ALREADY_RIGHT)
"""Statuses of edits whose answer is right."""
FAILED = (Status.NOT_LEARNT, Status.REFUSED)
"""Statuses of edits that do not stand."""
GONE = (Status.REVERTED, Status.SUPERSEDED)
"""Statuses of edits that no longer count."""
