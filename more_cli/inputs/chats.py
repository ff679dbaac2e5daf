"""Conversations about pictures: LLaVA's `conversations`, and `messages` as OpenAI and Hugging Face write them.

The last round, a question with its answer, becomes an edit; the rounds before it are its `messages`. Of a preference
pair the answer is the chosen one. A system message and every other field stay as they are, by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from more_cli.errors import DataError
from more_cli.inputs.columns import PLACEHOLDER, image_cell
from more_cli.text import counted, shorten

LLAVA, MESSAGES = "LLaVA conversations", "chat messages"
_KEYS = {"conversations": LLAVA, **dict.fromkeys(("messages", "prompt", "chosen", "chosen_messages"), MESSAGES)}
"""Where the turns stand, the first that there is."""
_ANSWERS = ("chosen", "completion")
"""Where the answer to the last question can stand beside the conversation."""
_VERDICTS = ("label", "kto_tag")
"""False if the answer is marked as a bad one."""
_ROLES = {
    **{"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"},
    **{"system": "system", "developer": "system"},
}
_PICTURE = re.compile(rf"(?:Picture \d+: *)?<img>(.*?)</img>\n?|{PLACEHOLDER}")
"""An image within a text: by its path, as Qwen-VL writes it, or only its place."""
_UNREAD = re.compile("<(video|audio|bbox|ref-object)>")
"""Places of what is no image."""
_MISSING = object()
"""An image part without a path: the record names it elsewhere."""


def chat_form(record: Mapping[str, Any]) -> str:
    """Return which kind of conversation a record is; empty for none, and for an edit line with its `messages`."""
    if "question" in record:
        return ""
    return _KEYS.get(_key(record), "")


def _key(record: Mapping[str, Any]) -> str:
    """Return the field that holds the turns; empty if there is none. A `prompt` or `chosen` can be something else."""
    lists = {key: value for key in _KEYS if isinstance(value := record.get(key), list)}
    sure = ("conversations", "messages")
    return next((key for key in lists if key in sure or (lists[key] and isinstance(lists[key][0], Mapping))), "")


@dataclass
class _Turn:
    role: str
    text: str
    images: list[Any] = field(default_factory=list)


def rounds_of(record: Mapping[str, Any], *, each: bool = False) -> list[dict[str, Any]]:
    """Return the last round of a conversation as a row with `question`, `target`, `image` and earlier `messages`.

    With `each`, every round is a row. Further rounds get the record's id with their number.

    Raises:
        DataError: the turns do not alternate, images and their places do not match, or the answer is marked as bad.
    """
    if bad := next((name for name in _VERDICTS if record.get(name) is False), None):
        raise DataError(f"`{bad}` is false: the answer is a bad one", "write the right answer, or leave the row out")
    key = _key(record)
    turns = [_turn(number, turn) for number, turn in enumerate(record[key], 1)]
    answer = next((name for name in _ANSWERS if name != key and record.get(name)), "")
    if answer and turns and turns[-1].role == "user":
        turns += [_turn(len(turns) + 1, turn) for turn in _answers(record[answer])]
    else:
        answer = ""
    rest = {name: value for name, value in record.items() if name not in (key, answer, "image", "images")}
    named = _listed(record.get("image")) + _listed(record.get("images"))
    if turns and turns[0].role == "system":
        rest["system"] = turns.pop(0).text
    turns = _joined(turns)
    _alternate(turns)
    _place(turns, named)
    rows = list(_rows(turns, rest))
    return rows if each else [rows[-1] | ({"id": rest["id"]} if "id" in rest else {})]


def _answers(value: Any) -> list[Any]:
    """Return the turns of an answer beside a conversation: a text, a turn, or a list of turns."""
    return [{"role": "assistant", "content": value}] if isinstance(value, str) else _listed(value)


def _joined(turns: Sequence[_Turn]) -> list[_Turn]:
    """Join messages of a user that follow one another, such as a question and its image."""
    joined: list[_Turn] = []
    for turn in turns:
        if turn.role == "user" and joined and joined[-1].role == "user":
            last = joined.pop()
            turn = _Turn("user", f"{last.text}\n{turn.text}".strip(), last.images + turn.images)
        joined.append(turn)
    return joined


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
    images = [{"type": "image", "image": image_cell(image)} for image in turn.images]
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
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise DataError(f"turn {number} has no text", "write it under `content`, in LLaVA's form under `value`")
    texts, images = list[str](), list[Any]()
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text", part.get("value")) if kind in ("text", "input_text", "output_text") else None
        if isinstance(text, str):
            texts.append(text)
        elif kind in ("image", "image_url", "input_image"):
            images.append(_image_of(part))
        else:
            hint = "a part is text or an image"
            raise DataError(f"turn {number}: no part of type `{shorten(str(kind))}` can be edited", hint)
    text = "\n".join(texts)
    if found := _UNREAD.search(text):
        raise DataError(f"turn {number}: only images are read, not what `{found[0]}` stands for", "leave the row out")
    images = images or [_MISSING if place[1] is None else place[1] for place in _PICTURE.finditer(text)]
    return _Turn(role, _PICTURE.sub("", text).strip(), images)


def _image_of(part: Mapping[str, Any]) -> Any:
    found = next((part[name] for name in ("image_url", "image", "path", "url", "value") if part.get(name)), _MISSING)
    return found.get("url", _MISSING) if isinstance(found, Mapping) and "url" in found else found


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]
