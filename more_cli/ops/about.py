"""What edits are about, judged by pictures and words: such questions are no anchors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.inputs.wording import Words, words_of
from more_cli.ops.anchors import identity

ALIKE = 0.5
"""Share of common words from which two questions may be about the same thing."""


def alike(one: Words, other: Words) -> bool:
    """Return whether questions with these words may be about the same thing: both neutral, or half of the words."""
    if not one or not other:
        return not one and not other
    return len(one & other) >= ALIKE * len(one | other)


@dataclass(frozen=True)
class Question:
    """A question that pictures can be asked."""

    text: str
    wordings: tuple[Words, ...]
    """The words of the question and of its rephrases."""

    @staticmethod
    def of_edits(edits: Iterable[Edit]) -> dict[str, Question]:
        """Return the questions of edits about one picture; equal ones count once, with all their rephrases."""
        texts, wordings = dict[str, str](), dict[str, set[Words]]()
        for edit in edits:
            if len(edit.images) == 1:
                _, key = identity(Probe(edit.question))
                texts.setdefault(key, edit.question)
                wordings.setdefault(key, set()).update(map(words_of, (edit.question, *edit.rephrases)))
        return {key: Question(text, tuple(wordings[key])) for key, text in texts.items()}


@dataclass(frozen=True)
class Corrected:
    """What edits are about."""

    asked: set[tuple[str, str]] = field(default_factory=set)
    """Identity of every question of an edit and of its probes."""
    words: dict[str, list[Words]] = field(default_factory=dict)
    """Words of the questions whose answers change, by the picture's hash, which is empty without a picture."""

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> Corrected:
        """Return what these edits are about."""
        found = cls()
        for edit in edits:
            found.add(edit)
        return found

    def add(self, edit: Edit) -> None:
        """Add what an edit is about."""
        self.asked.update(map(identity, edit.locality))
        for probe in _changing(edit):
            self.asked.add(identity(probe))
            words = words_of(probe.question)
            for picture in [image.sha256 for image in probe.images] or [""]:
                self.words.setdefault(picture, []).extend([words, words | words_of(probe.answer or "")])

    def allows(self, question: Question, picture: ImageSource | None) -> bool:
        """Return whether a picture may be asked this: by its words, no edit changes the answer."""
        about = self.words.get(picture.sha256 if picture else "", ())
        if any(alike(wording, words) for wording in question.wordings for words in about):
            return False
        return identity(Probe(question.text, (picture,) if picture else ())) not in self.asked

    def allows_neutral(self, question: Question, picture: ImageSource) -> bool:
        """Return whether a picture may be asked a neutral question: no edit is about the picture as a whole."""
        return frozenset() not in self.words.get(picture.sha256, ()) and self.allows(question, picture)


def _changing(edit: Edit) -> Iterator[Probe]:
    """Yield every question whose answer an edit changes, in each wording and about each picture."""
    pictures: list[tuple[ImageSource, ...]] = [(image,) for image in (*edit.images, *edit.image_rephrases)]
    for images in pictures or [()]:
        for question in (edit.question, *edit.rephrases):
            yield Probe(question, images, edit.target)
    yield from edit.portability
