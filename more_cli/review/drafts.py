"""A correction as it is typed into the form, what is wrong with it beside its fields, and the edit line it becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from more_cli.errors import UsageError
from more_cli.inputs.edits import Edit

BLANK_ROWS = 2
"""Empty rows for further locality questions."""
OTHER = "other-"
"""How the name of a field begins that chooses another picture; its SHA-256 follows."""
MOST_ROWS = 200
"""Locality questions of one form."""
_FIELD = re.compile(r"`(question|target|id|image_rephrases|image|rephrases|locality)\b[^`]*`")
_PLACE = re.compile(r"^[^:]*(:\d+)?: ")
"""Name and line of the stream that a problem starts with: here there is one line only."""


@dataclass(frozen=True)
class Nearby:
    """A locality question: one whose answer must stay as it is."""

    question: str
    pictured: bool = False
    """Whether it is about the picture of the correction; else it is asked without one."""
    answer: str = ""
    """Empty for what the base answers."""
    base: str | None = None
    """What the base answers, once it was asked."""


@dataclass(frozen=True)
class Draft:
    """The fields of the form."""

    question: str = ""
    target: str = ""
    id: str = ""
    picture: str = ""
    """SHA-256; empty for none."""
    rephrases: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """SHA-256 of other pictures that should get the same answer."""
    locality: tuple[Nearby, ...] = ()
    base: str | None = None
    """What the base answers to the question, once it was asked."""
    problems: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What is wrong, by field; that of no field under an empty name."""
    notes: Sequence[str] = ()

    @classmethod
    def of_form(cls, form: Mapping[str, Any]) -> Draft:
        """Return what was typed; `form` maps names of fields to texts."""

        def text(name: str) -> str:
            value = form.get(name, "")
            return value.replace("\r\n", "\n").strip() if isinstance(value, str) else ""

        rows = (number for number in range(MOST_ROWS) if text(f"near-question-{number}"))
        return cls(
            question=text("question"),
            target=text("target"),
            id=text("id"),
            picture=text("picture"),
            others=tuple(name.removeprefix(OTHER) for name in form if name.startswith(OTHER)),
            rephrases=tuple(line.strip() for line in text("rephrases").split("\n") if line.strip()),
            locality=tuple(
                Nearby(text(f"near-question-{row}"), f"near-pictured-{row}" in form, text(f"near-answer-{row}"))
                for row in rows
            ),
        )

    @classmethod
    def like(cls, edit: Edit) -> Draft:
        """Return a draft about the same question and picture as an edit, without its target.

        Locality questions about other pictures are left out: the form has one picture.

        Raises:
            UsageError: the edit has earlier turns, which the form does not have.
        """
        if edit.turns:
            raise UsageError(
                f"`{edit.id}` ends a conversation, which this form cannot hold",
                "write the correction into an edits file, with its `messages`",
            )
        picture = edit.images[0].sha256 if edit.images else ""
        near = [
            Nearby(probe.question, probe.image is not None, probe.answer or "")
            for probe in edit.locality
            if probe.image is None or probe.image.sha256 == picture
        ]
        others = tuple(image.sha256 for image in edit.image_rephrases)
        return cls(edit.question, picture=picture, rephrases=edit.rephrases, others=others, locality=tuple(near))

    @property
    def rows(self) -> tuple[Nearby, ...]:
        """The locality questions and the empty rows after them."""
        return (*self.locality, *[Nearby("")] * BLANK_ROWS)

    def line(self, image: Path | None, others: Sequence[Path | None] = ()) -> dict[str, Any]:
        """Return the line of an edits file that says the same; `image` and `others` are where the pictures lie."""
        path = None if image is None else str(image)
        near = [
            {"question": row.question, "image": path if row.pictured else None, "answer": row.answer or None}
            for row in self.locality
        ]
        fields = {"question": self.question, "target": self.target, "rephrases": list(self.rephrases), "locality": near}
        fields["image_rephrases"] = [str(other) for other in others]
        return fields | ({"image": path} if path else {}) | ({"id": self.id} if self.id else {})


def by_field(problems: Sequence[str]) -> dict[str, list[str]]:
    """Return problems of one edit line by the field that each is about."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        text = _PLACE.sub("", problem, count=1)
        named = _FIELD.search(text)
        name = named[1] if named else next((name for name in ("locality", "id", "image") if text.startswith(name)), "")
        found.setdefault(name, []).append(text)
    return found
