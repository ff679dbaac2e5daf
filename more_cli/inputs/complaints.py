"""What is wrong with a value of a line, in words."""

from __future__ import annotations

import difflib

from pydantic_core import ErrorDetails

from more_cli.text import canonical_json, shorten

# Names that other tools use for the same field.
_SYNONYMS = {"prompt": "question", "answer": "target", "label": "target", "img": "image", "images": "image"}


def explain(detail: ErrorDetails, known: list[str]) -> str:
    """Return one sentence about an error of pydantic."""
    *outer, last = detail["loc"]
    place = shorten("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])[1:])
    if detail["type"] == "missing":
        return f"`{place}` is missing"
    if detail["type"] == "extra_forbidden":
        near = _SYNONYMS.get(str(last)) or next(iter(difflib.get_close_matches(str(last), known, 1)), None)
        return f"unknown field `{place}`" + (f"; did you mean `{near}`?" if near in known and not outer else "")
    if detail["type"] == "value_error":
        return f"`{place}` {detail['msg'].removeprefix('Value error, ')}"
    if detail["type"] == "less_than_equal":
        return f"`{place}` must be at most {detail['ctx']['le']}, got {shown(detail['input'])}"
    if detail["type"] == "literal_error":
        choices = detail["ctx"]["expected"].replace("'", "`")
        return f"`{place}` must be {choices}, got {shown(detail['input'])}"
    kind = detail["type"].removesuffix("_type")
    wanted = {"string": "a string", "list": "a list", "dict": "an object", "model": "an object"}
    expected = wanted.get(kind.removesuffix("_attributes"), "a whole number from 1")
    return f"`{place}` must be {expected}, got {shown(detail['input'])}"


def shown(value: object) -> str:
    """Return a bad value for a message, shortened."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return shorten(canonical_json(value), 40)
