"""Answers of a deployed model that people rated: those rated down are mistakes to correct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from more_cli.files import sha256_json
from more_cli.inputs.edits import Images, Messages, Text, checked_line, raise_all
from more_cli.inputs.records import Problem, opened, records
from more_cli.inputs.turns import Turn, turns_of

DOWN, UP = (
    ("down", "thumbs_down", "thumbs-down", "bad", "negative"),
    ("up", "thumbs_up", "thumbs-up", "good", "positive"),
)


def _rating(value: Any) -> bool | None:
    """Return whether an answer was rated up; None for no rating."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (-1, 0, 1):
        return None if value == 0 else value > 0
    if isinstance(value, str) and value.lower() in (*DOWN, *UP, ""):
        return None if not value else value.lower() in UP
    raise ValueError(f"must be {DOWN[0]} or {UP[0]}, -1 or 1, or false or true")


class RatedLine(BaseModel):
    """One answer of a log; a log has fields of its own, which are passed over."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    question: Text
    answer: str
    """what the model said"""
    rating: Annotated[Any, AfterValidator(_rating)] = None
    """`down`, -1 or false for a mistake; `up`, 1 or true; left out where nobody judged"""
    image: Images = []
    messages: Messages = []
    """earlier turns, as in an edit line"""
    target: str = ""
    """what it should have said, if somebody wrote that"""
    comment: str = ""
    """what somebody wrote about the answer"""


@dataclass(frozen=True)
class Mistake:
    """An answer that was rated down."""

    key: str
    """SHA-256 of its line, 64 hex digits: the same line has the same key in every file."""
    question: str
    answer: str
    images: tuple[str, ...]
    """As the line spells them, those of the earlier turns first."""
    turns: tuple[Turn, ...] = ()
    target: str = ""
    comment: str = ""
    line: int = 0
    """Line number from 1."""


@dataclass(frozen=True)
class Ratings:
    """A file of rated answers."""

    path: Path
    mistakes: Sequence[Mistake]
    """Those rated down, each once, in the order of the file."""
    up: int
    unrated: int


def read_ratings(path: Path) -> Ratings:
    """Read and check a file of rated answers, JSON Lines or one array; no image is opened.

    Raises:
        StreamErrors: there are problems; the error lists all of them.
        DataError: the file cannot be read at all.
    """
    mistakes, problems, up, unrated = dict[str, Mistake](), list[Problem](), 0, 0
    with opened(path) as file:
        for record in records(file, str(path)):
            line = checked_line(record, RatedLine)
            if not isinstance(line, RatedLine):
                problems += line
            elif line.rating is None:
                unrated += 1
            elif line.rating:
                up += 1
            else:
                mistake = _mistake(line, sha256_json(record.value), record.line)
                mistakes.setdefault(mistake.key, mistake)
    if not (mistakes or problems or up or unrated):
        problems = [Problem(str(path), "holds no answers", "a line is one answer: `question`, `answer`, `rating`")]
    raise_all(problems)
    return Ratings(path, list(mistakes.values()), up, unrated)


def _mistake(line: RatedLine, key: str, number: int) -> Mistake:
    earlier = [spelled for message in line.messages for spelled in message.images]
    about = turns_of(line.messages), line.target.strip(), line.comment.strip()
    return Mistake(key, line.question, line.answer.strip(), (*earlier, *line.image), *about, number)
