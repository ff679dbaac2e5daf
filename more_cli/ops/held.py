"""Which anchors a state holds at a place of its history, and which edits correct the answers to some of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.wording import Words, words_of
from more_cli.ops.about import Corrected, alike
from more_cli.ops.anchors import identity, identity_of, load_anchors
from more_cli.store.entry import Entry, turns_in
from more_cli.store.ledger import Ledger
from more_cli.store.state import StateMeta


class Held:
    """The anchors of a state; a place in them stays, whatever is added."""

    def __init__(self) -> None:
        self.anchors: list[Probe] = []
        self.places: dict[tuple[str, str], int] = {}
        """Place of every anchor, by its identity."""
        self.pictured = 0
        """Anchors that ask about a picture."""
        self.made = set[int]()
        """Places of those that edits brought, made of their pictures."""
        self._words: dict[str, dict[int, Words]] = {}
        """Words of the anchors that were made, not written, by picture and place."""

    def add(self, anchors: Iterable[Probe], *, written: bool = True) -> None:
        """Add anchors, `written` by somebody, or made of pictures of edits and questions of the recipe."""
        for anchor in anchors:
            place = len(self.anchors)
            self.anchors.append(anchor)
            self.places[identity(anchor)] = place
            self.pictured += bool(anchor.images)
            if not written:
                if anchor.images:
                    self.made.add(place)
                for picture in [image.sha256 for image in anchor.images] or [""]:
                    self._words.setdefault(picture, {})[place] = words_of(anchor.question)

    def may_be_corrected_by(self, entry: Entry) -> bool:
        """Return whether an edit can correct an anchor's answer, by its pictures: a long ledger has few that can."""
        if identity_of(entry.question, entry.images, turns_in(entry.turns)) in self.places:
            return True
        further = (image for probe in entry.portability for image in probe.pictures or [""])
        return not self._words.keys().isdisjoint((*(entry.images or [""]), *entry.image_rephrases, *further))

    def corrected_by(self, edit: Edit) -> set[int]:
        """Return the places of the anchors whose answer an edit corrects.

        One that somebody wrote asks what the edit asks; of the others the edit is about the same picture in words that
        are alike.
        """
        place = self.places.get(identity(edit))
        found = set() if place is None else {place}
        if self._words:
            for picture, about in Corrected.of([edit]).words.items():
                for place, words in self._words.get(picture, {}).items():
                    if any(alike(words, other) for other in about):
                        found.add(place)
        return found


def held_at(ledger: Ledger, meta: StateMeta, place: int) -> Held:
    """Return the anchors at a place of the history: the first set, and what the lines up to there brought.

    Raises:
        StateError: a file of anchors is missing or damaged.
    """
    held = Held()
    if meta.anchors:
        held.add(load_anchors(ledger.folder, meta.anchors), written=not meta.arriving)
    for entry in ledger.anchor_lines(place):
        if entry.kind == "anchors":  # all of them: those of before, then more
            held.add(load_anchors(ledger.folder, entry.content)[len(held.anchors) :])
        else:
            held.add(ledger.made_of(entry), written=False)
    return held


def added_at(ledger: Ledger, meta: StateMeta, place: int) -> list[Probe]:
    """Return the anchors that the "anchors" line at a place of the history added.

    Raises:
        StateError: a file of anchors is missing or damaged.
    """
    known = len(held_at(ledger, meta, place - 1).anchors)
    return held_at(ledger, meta, place).anchors[known:]


def anchors_of(folder: Path, meta: StateMeta) -> list[Probe]:
    """Return the anchors that a state holds now, by its ledger, which is read only if anchors were added.

    Raises:
        StateError: their file, or the ledger, is missing or damaged.
    """
    if meta.arriving or any(folder.glob("anchors-*.jsonl")):
        ledger = Ledger(folder)
        return held_at(ledger, meta, len(ledger.history)).anchors
    return load_anchors(folder, meta.anchors) if meta.anchors else []


def corrected(held: Held, ledger: Ledger, until: int | None = None) -> dict[int, str]:
    """Return, by place, the last edit in force that corrects an anchor: such an anchor is held no longer.

    With `until`, only edits up to that place of the history count.
    """
    found = dict[int, str]()
    if held.anchors:
        for entry in ledger.history[:until]:
            if entry.kind == "edit" and held.may_be_corrected_by(entry):
                found |= dict.fromkeys(held.corrected_by(ledger.edit_of(entry)), entry.id)
    return found
