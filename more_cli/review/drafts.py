"""A correction as it is typed into the form, what is wrong with it beside its fields, and the edit line it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from more_cli.inputs.edits import Edit
from more_cli.inputs.turns import ROLES, Turn, messages_of

BLANK_ROWS = 2
"""Empty rows for further locality questions."""
OTHER = "other-"
"""How the name of a field begins that chooses another picture; its SHA-256 follows."""
EARLIER = "earlier-"
"""How the name of a field begins that holds a picture of the earlier turns; its SHA-256 is the value."""
MOST_ROWS = 200
"""Locality questions, and earlier turns, of one form."""
_FIELD = re.compile(r"`(question|target|id|image_rephrases|image|rephrases|locality|messages)\b[^`]*`")
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
class Talk:
    """The earlier turns of a conversation."""

    turns: tuple[Turn, ...] = ()
    pictures: tuple[str, ...] = ()
    """SHA-256 of what the turns show, in order."""


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
    talk: Talk = Talk()
    """What was said before the question."""
    queued: str = ""
    """Key of the mistake that it corrects; empty for none."""
    base: str | None = None
    """What the base answers to the question, once it was asked."""
    problems: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What is wrong, by field; that of no field under an empty name."""
    notes: Sequence[str] = ()

    @classmethod
    def of_form(cls, form: Mapping[str, str]) -> Draft:
        """Return what was typed; `form` maps names of fields to texts."""

        def text(name: str) -> str:
            return form.get(name, "").replace("\r\n", "\n").strip()

        rows = (number for number in range(MOST_ROWS) if text(f"near-question-{number}"))
        earlier = tuple(form[name] for name in sorted(form, key=_number) if name.startswith(EARLIER))
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
            talk=Talk(tuple(_turns(text, len(earlier))), earlier),
            queued=text("queued"),
        )

    @classmethod
    def like(cls, edit: Edit) -> Draft:
        """Return a draft about the same question, pictures and earlier turns as an edit, without its target.

        Locality questions about other pictures and those with turns of their own are left out: the form has neither.
        """
        own = edit.images[len(edit.before) :]
        picture = own[0].sha256 if own else ""
        near = [
            Nearby(probe.question, bool(probe.images), probe.answer or "")
            for probe in edit.locality
            if not probe.turns and [image.sha256 for image in probe.images] in ([], [picture])
        ]
        others = tuple(image.sha256 for image in edit.image_rephrases)
        draft = cls(edit.question, rephrases=edit.rephrases, others=others, locality=tuple(near))
        return replace(draft, talk=Talk(edit.turns, tuple(image.sha256 for image in edit.before)), picture=picture)

    @property
    def said(self) -> list[tuple[int, str, str, int]]:
        """The earlier turns and an empty round after them: number, role, text, and how many pictures a turn has."""
        blank = [Turn(role, "") for role in ROLES]
        return [(number, *turn) for number, turn in enumerate([*self.talk.turns, *blank])]

    @property
    def rows(self) -> tuple[Nearby, ...]:
        """The locality questions and the empty rows after them."""
        return (*self.locality, *[Nearby("")] * BLANK_ROWS)

    def line(
        self, image: Path | None, others: Sequence[Path | None] = (), earlier: Sequence[Path | None] = ()
    ) -> dict[str, Any]:
        """Return the line of an edits file that says the same; `image`, `others` and `earlier` are pictures' places."""
        path = None if image is None else str(image)
        near = [
            {"question": row.question, "image": path if row.pictured else None, "answer": row.answer or None}
            for row in self.locality
        ]
        fields = {"question": self.question, "target": self.target, "rephrases": list(self.rephrases), "locality": near}
        fields["image_rephrases"] = [str(other) for other in others]
        fields |= {"messages": messages_of(self.talk.turns, list(map(str, earlier)))} if self.talk.turns else {}
        return fields | ({"image": path} if path else {}) | ({"id": self.id} if self.id else {})


def _number(name: str) -> tuple[int, str]:
    last = name.rpartition("-")[2]
    return (int(last) if last.isdecimal() and len(last) < 5 else 0), name


def _turns(text: Callable[[str], str], pictures: int) -> Iterator[Turn]:
    """Yield the turns of a form up to the first empty round; no turn has more than the `pictures` that are left."""
    for number in range(MOST_ROWS):
        if number % 2 == 0 and not (text(f"said-{number}") or text(f"said-{number + 1}")):
            return
        typed = text(f"said-{number}-pictures")
        count = min(pictures, int(typed) if typed.isdecimal() and len(typed) < 4 else 0)
        pictures -= count
        yield Turn(ROLES[number % 2], text(f"said-{number}"), count)


def by_field(problems: Sequence[str]) -> dict[str, list[str]]:
    """Return problems of one edit line by the field that each is about."""
    found: dict[str, list[str]] = {}
    for problem in problems:
        text = _PLACE.sub("", problem, count=1)
        named = _FIELD.search(text)
        name = named[1] if named else next((name for name in ("locality", "id", "image") if text.startswith(name)), "")
        found.setdefault(name, []).append(text)
    return found
