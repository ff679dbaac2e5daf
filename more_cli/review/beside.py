"""Two states beside each other: what each has that the other lacks, and where they say different things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from more_cli.ops.shared import Holding, SourceState, Union


@dataclass(frozen=True)
class Pair:
    """The edits of two states about the same pictures and question; one of them may be missing."""

    here: Holding | None
    there: Holding | None
    contradict: bool = False
    """Neither state has decided which of two targets counts."""

    @property
    def question(self) -> str:
        """What both are about."""
        return self._any.entry.question

    @property
    def images(self) -> Sequence[str]:
        """SHA-256 of the pictures."""
        return self._any.entry.images

    @property
    def _any(self) -> Holding:
        found = self.here or self.there
        assert found is not None
        return found


def beside(sources: Sequence[SourceState], union: Union) -> list[Pair]:
    """Return what two states do not have in common, contradictions first, then the newest first."""
    own, other = (source.counting for source in sources)
    unlike = [subject for subject in {**own, **other} if _content(own, subject) != _content(other, subject)]
    against = {each.earlier.subject for each in union.contradictions}
    pairs = [Pair(own.get(subject), other.get(subject), subject in against) for subject in unlike]
    newest = sorted(pairs, key=lambda pair: max(side.moment for side in (pair.here, pair.there) if side), reverse=True)
    return sorted(newest, key=lambda pair: not pair.contradict)


def _content(edits: dict[str, Holding], subject: str) -> str | None:
    found = edits.get(subject)
    return found.content if found else None
