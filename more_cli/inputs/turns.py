"""Earlier turns of a conversation, in the form that chat templates take: `messages` of a role and its content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from more_cli.errors import DataError
from more_cli.inputs.complaints import shown
from more_cli.inputs.records import not_found
from more_cli.text import reason_of, strict_json

ROLES = ("user", "assistant")


class Turn(NamedTuple):
    """One earlier message: who said it, its text, and how many images come before the text."""

    role: str
    text: str
    images: int = 0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Part(_Strict):
    """A part of a message: a text, or an image by its path."""

    type: Literal["text", "image"]
    text: str | None = None
    image: str | None = None


_PARTS = TypeAdapter(list[Part])


def _content(value: object) -> object:
    """Check the parts by themselves, so that what is wrong with one is not said of a text as well."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"must be a text or a list of parts, got {shown(value)}")
    return _PARTS.validate_python(value)


class Message(_Strict):
    """One earlier message, as a user writes it."""

    role: Literal["user", "assistant"]
    content: Annotated[str | list[Part], BeforeValidator(_content)]

    @property
    def parts(self) -> list[Part]:
        """Its parts; a plain text is one."""
        return [Part(type="text", text=self.content)] if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """Its texts, a line each."""
        return "\n".join(part.text or "" for part in self.parts if part.type == "text").strip()

    @property
    def images(self) -> list[str]:
        """Paths of its images."""
        return [part.image or "" for part in self.parts if part.type == "image"]


def checked_messages(messages: list[Message]) -> list[Message]:
    """Return the earlier turns of a conversation.

    Raises:
        ValueError: questions and answers do not alternate, a text or a path is missing, or an answer has an image.
    """
    for number, message in enumerate(messages):
        wanted = ROLES[number % 2]
        if message.role != wanted:
            raise ValueError(f"message {number + 1} is of `{message.role}`, not of `{wanted}`: first a question")
        if not message.text:
            raise ValueError(f"message {number + 1} has no text")
        if not all(message.images):
            raise ValueError(f"message {number + 1} has an image without a path")
        if message.images and message.role == "assistant":
            raise ValueError(f"message {number + 1} answers with an image")
    if len(messages) % 2:
        raise ValueError("the last message has no answer; the question to correct is `question`")
    return messages


def read_messages(path: Path) -> list[Message]:
    """Read and check the earlier turns of a conversation: one JSON array of messages.

    Raises:
        DataError: the file cannot be read, or holds something else.
    """
    hint = 'write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'
    try:
        values = strict_json(path.read_text(encoding="utf-8"))
        return checked_messages(TypeAdapter(list[Message]).validate_python(values))
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {reason_of(error)}") from None
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        wrong = f"`{place}` is not as it should be" if place else "is not a list of messages"
        raise DataError(f"{path}: {wrong}", hint) from None
    except ValueError as error:
        raise DataError(f"{path}: {error}", hint) from None


def turns_of(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Return checked messages as turns."""
    return tuple(Turn(message.role, message.text, len(message.images)) for message in messages)


def messages_of(turns: Sequence[Turn], images: Sequence[str]) -> list[dict[str, Any]]:
    """Return turns as a user would write them; the first `images` are theirs."""
    left, messages = list(images), list[dict[str, Any]]()
    for turn in turns:
        shown, left = left[: turn.images], left[turn.images :]
        parts = [*({"type": "image", "image": image} for image in shown), {"type": "text", "text": turn.text}]
        messages.append({"role": turn.role, "content": parts if shown else turn.text})
    return messages


def shown_in(turns: Sequence[Turn]) -> int:
    """Return how many images turns have."""
    return sum(turn.images for turn in turns)
