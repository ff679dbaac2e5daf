"""What the lines of a history leave for the next edit: edits that stand, await their batch, or were refused."""

from __future__ import annotations

from collections.abc import Callable

from more_cli.editors.base import EditRequest
from more_cli.editors.memory import Memory
from more_cli.inputs.edits import Edit
from more_cli.store.entry import Entry
from more_cli.store.status import Status


class Standing:
    """The edits of a history that count, line by line; `recall` fetches the edit of a place."""

    def __init__(self, recall: Callable[[int], EditRequest]) -> None:
        self.memory = Memory(recall)
        self.unwritten: list[int] = []
        """Places of the edits of a batch that no consolidation has written yet."""
        self._refused: dict[str, dict[str, str]] = {}
        """Refused edits that no later edit contradicts: by subject, the content of each id."""

    def take(self, place: int, entry: Entry) -> None:
        """Take the line at a place of the history, the one after the last that was taken."""
        if entry.kind == "edit" and entry.status is Status.REFUSED:
            self._refused.setdefault(entry.subject, {})[entry.id] = entry.content
        elif entry.kind == "edit":
            for id in (entry.id, *self.refused_about(entry)):
                self._refused.get(entry.subject, {}).pop(id, None)
            self.memory.add(place, entry.subject, entry.content, retry=entry.retry)
            if entry.joint:
                self.unwritten.append(place)
        if entry.kind == "consolidate" and self.unwritten and entry.since <= self.unwritten[0]:
            self.unwritten = []
        if entry.kind == "compact" or entry.anew:
            self.memory.together = len(entry.looks)
        self.memory.update(place, entry.looks)

    def refused_about(self, edit: Edit | Entry) -> list[str]:
        """Return the ids of the refused edits about the same images and question with another target."""
        refused = self._refused.get(edit.subject, {})
        return [id for id, content in refused.items() if content != edit.content]
