"""Conversations about pictures: LLaVA's `conversations`, and `messages` as OpenAI and Hugging Face write them.

The last round, a question with its answer, becomes an edit; the rounds before it are its `messages`. A system message
and every other field stay as they are, by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from more_cli.errors import DataError
from more_cli.text import counted, shorten

LLAVA, MESSAGES = "LLaVA conversations", "chat messages"
_KEYS = {"conversations": LLAVA, "messages": MESSAGES}
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_PLACEHOLDER = "<image>"
_MISSING = object()
"""An image part without a path: the record names it elsewhere."""


def chat_form(record: Mapping[str, Any]) -> str:
    """Return which kind of conversation a record is; empty for none, and for an edit line with its `messages`."""
    if "question" in record:
        return ""
    return next((form for key, form in _KEYS.items() if isinstance(record.get(key), list)), "")


@dataclass
class _Turn:
    role: str
    text: str
    images: list[Any] = field(default_factory=list)


def rounds_of(record: Mapping[str, Any], *, each: bool = False) -> list[dict[str, Any]]:
    """Return the last round of a conversation as a row with `question`, `target`, `image` and earlier `messages`.

    With `each`, every round is a row. Further rounds get the record's id with their number.

    Raises:
        DataError: the turns do not alternate, or images and their places do not match.
    """
    key = next(key for key in _KEYS if isinstance(record.get(key), list))
    turns = [_turn(number, turn) for number, turn in enumerate(record[key], 1)]
    rest = {name: value for name, value in record.items() if name not in (key, "image", "images")}
    named = _listed(record.get("image")) + _listed(record.get("images"))
    if turns and turns[0].role == "system":
        rest["system"] = turns.pop(0).text
    _alternate(turns)
    _place(turns, named)
    rows = list(_rows(turns, rest))
    return rows if each else [rows[-1] | ({"id": rest["id"]} if "id" in rest else {})]


def _rows(turns: Sequence[_Turn], rest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, (asked, answer) in enumerate(zip(turns[::2], turns[1::2], strict=True), 1):
        row = dict(rest)
        if number > 1 and "id" in rest:
            row["id"] = f"{rest['id']}-{number}"
        row |= {"messages": list(messages)} if messages else {}
        yield row | {"image": asked.images, "question": asked.text, "target": answer.text}
        messages += [_message(asked), _message(answer)]


def _message(turn: _Turn) -> dict[str, Any]:
    """Return a turn as an edit line has it."""
    if not turn.images:
        return {"role": turn.role, "content": turn.text}
    images = [{"type": "image", "image": image} for image in turn.images]
    return {"role": turn.role, "content": [*images, {"type": "text", "text": turn.text}]}


def _alternate(turns: Sequence[_Turn]) -> None:
    """Check that a question comes first, that an answer follows each, and that no answer shows an image."""
    for number, turn in enumerate(turns):
        wanted = ("user", "assistant")[number % 2]
        if turn.role != wanted:
            raise DataError(f"turn {number + 1} is of `{turn.role}`, not of `{wanted}`", "a question, then its answer")
        if number % 2 and turn.images:
            raise DataError(f"turn {number + 1} answers with an image", "an edit's answer is text")
    if not turns or len(turns) % 2:
        raise DataError("the last question has no answer", "end with the answer that is right")


def _place(turns: Sequence[_Turn], named: list[Any]) -> None:
    """Give every place of an image the image that the record names for it; without places, all to the first turn."""
    places = sum(image is _MISSING for turn in turns for image in turn.images)
    if not places:
        turns[0].images += named
        return
    if places != len(named):
        raise DataError(
            f"{counted(places, 'place')} for images, and {counted(len(named), 'image')}",
            "name one image for each place",
        )
    images = iter(named)
    for turn in turns:
        turn.images = [next(images) if image is _MISSING else image for image in turn.images]


def _turn(number: int, turn: Any) -> _Turn:
    if not isinstance(turn, Mapping):
        raise DataError(f"turn {number} is no object", "a turn has a role and a text")
    name = turn.get("from", turn.get("role"))
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        hint = "there are user, assistant and system; in LLaVA's form human and gpt"
        raise DataError(f"turn {number}: no role `{shorten(str(name))}`", hint)
    content = turn.get("value") if "from" in turn else turn.get("content")
    if isinstance(content, str):
        images = [_MISSING] * content.count(_PLACEHOLDER)
        return _Turn(role, content.replace(_PLACEHOLDER, "").strip(), images)
    if not isinstance(content, list):
        raise DataError(f"turn {number} has no text", "write it under `content`, in LLaVA's form under `value`")
    texts, images = list[str](), []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("text", "input_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("image", "image_url", "input_image"):
            images.append(_image_of(part))
        else:
            hint = "a part is text or an image"
            raise DataError(f"turn {number}: no part of type `{shorten(str(kind))}` can be edited", hint)
    return _Turn(role, "\n".join(texts).strip(), images)


def _image_of(part: Mapping[str, Any]) -> Any:
    found = next((part[name] for name in ("image_url", "image", "path", "url") if part.get(name)), _MISSING)
    return found.get("url", _MISSING) if isinstance(found, Mapping) and "url" in found else found


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]
