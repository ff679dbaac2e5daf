"""What a stream remembers of its edits: which stand, and their last known margins."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import numpy as np

from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.past import Past
from more_cli.recipe.schema import GROWTH


class Memory:
    """The edits that stand, by number; `recall` fetches one.

    It keeps two numbers per edit and is rebuilt from the ledger, so the state does not grow.
    """

    def __init__(self, recall: Callable[[int], EditRequest]) -> None:
        self._recall = recall
        # By number - 1. A long ledger has millions of margins: columns store them without an object for each.
        self._stands = bytearray()
        self._margins = array("d")
        self._at = array("q")
        self._by_subject: dict[str, list[tuple[int, str]]] = {}
        """By subject (images and question): number and content of the edits that stand."""
        self.together = 0
        """Number of edits that the last writing of all standing edits wrote together."""

    @property
    def standing(self) -> int:
        """Number of edits that stand."""
        return self._stands.count(True)

    def compaction_due(self, first: int | None) -> bool:
        """Return whether all standing edits are to be written together now, `first` at that many; None for never."""
        return first is not None and self.standing >= max(first, GROWTH * self.together)

    def context(self, number: int, subject: str = "", content: str = "", *, retry: bool = False) -> EditContext:
        """Return what edit `number` may use: the earlier edits that stand, without those that it replaces."""
        rows = np.flatnonzero(np.frombuffer(self._stands, np.uint8))
        # Copies: a view would keep the columns from growing.
        past = Past(rows + 1, np.frombuffer(self._margins)[rows], np.frombuffer(self._at, np.int64)[rows])
        return EditContext(number, past.without(self.replaced(subject, content, retry=retry)), self._recall)

    def add(self, number: int, subject: str, content: str, *, retry: bool = False) -> None:
        """Add an edit that stands, with a number above all before; edits that it replaces no longer stand."""
        replaced = self.replaced(subject, content, retry=retry)
        for past in replaced:
            self._stands[past - 1] = False
        same = [held for held in self._by_subject.get(subject, ()) if held[0] not in replaced]
        self._by_subject[subject] = [*same, (number, content)]
        missing = number - len(self._stands)
        self._stands.extend(bytes(missing))
        self._margins.extend([0.0] * missing)
        self._at.extend([0] * missing)
        self._stands[number - 1], self._margins[number - 1], self._at[number - 1] = True, 0.0, number

    def update(self, number: int, measured: Iterable[tuple[int, float]]) -> None:
        """Store margins by edit, measured during edit `number`; edits that were never added are ignored."""
        margins, at, count = self._margins, self._at, len(self._stands)
        for past, margin in measured:
            if 0 < past <= count:
                margins[past - 1], at[past - 1] = margin, number

    def replaced(self, subject: str, content: str, *, retry: bool = False) -> list[int]:
        """Return the standing edits that an edit replaces: about the same images and question with another target.

        With `retry` also earlier tries of the same edit.
        """
        return [number for number, other in self._by_subject.get(subject, ()) if retry or other != content]
