"""What a stream remembers of its edits: which stand, and how firmly each was last seen to hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from more_cli.editors.base import EditContext, EditRequest, Look


class Memory:
    """The edits that stand, by number; `recall` fetches one.

    It holds two numbers an edit and is rebuilt from the ledger, so the state does not grow.
    """

    def __init__(self, recall: Callable[[int], EditRequest]) -> None:
        self._recall = recall
        self._looks: dict[int, Look] = {}
        # Seen since the last `context`: a long ledger is read into these without a `Look` for each of its millions.
        self._margins: dict[int, float] = {}
        self._seen_at: dict[int, int] = {}
        self._about: dict[str, dict[int, str]] = {}
        """By what an edit is about (images and question): number -> content."""

    def context(self, number: int, subject: str = "", content: str = "") -> EditContext:
        """Return what edit `number` may look at: the edits before it that stand and that it does not contradict."""
        self._settle()
        rivals = self._rivals(subject, content)
        past = {n: look for n, look in self._looks.items() if n not in rivals} if rivals else self._looks
        return EditContext(number, past, self._recall)

    def add(self, number: int, subject: str, content: str) -> None:
        """Note an edit that stands; those that it contradicts no longer do."""
        for rival in self._rivals(subject, content):
            del self._looks[rival], self._about[subject][rival]
        self._about.setdefault(subject, {})[number] = content
        self._looks[number] = Look(0.0, number)
        self._margins.pop(number, None)

    def see(self, number: int, looks: Mapping[int, float]) -> None:
        """Note margins by edit, seen during edit `number`."""
        self._margins.update(looks)
        self._seen_at.update(dict.fromkeys(looks, number))

    def _settle(self) -> None:
        for number, margin in self._margins.items():
            if number in self._looks:
                self._looks[number] = Look(margin, self._seen_at[number])
        self._margins.clear()
        self._seen_at.clear()

    def _rivals(self, subject: str, content: str) -> list[int]:
        return [number for number, other in self._about.get(subject, {}).items() if other != content]
