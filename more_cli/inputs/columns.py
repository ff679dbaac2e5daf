"""Which column of a table, or field of a record, becomes which field of an edit line.

A column whose name is that of a field, in small or capital letters, needs no word; what has no field is kept in `tags`
under its name.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from more_cli.errors import DataError, UsageError
from more_cli.text import check_strings, counted, did_you_mean, listed, quoted, shorten, strict_json

_TEXTS = ("id", "question", "target", "video")
_COUNT = "frames"
_LISTS = ("image", "rephrases", "image_rephrases")
_PROBES = ("locality", "portability")
_WHOLE = (*_PROBES, "messages")
"""Fields that hold lists of objects."""
_PARTS = ("question", "answer", "image")
FIELDS = (*_LISTS, *_TEXTS, _COUNT, *_WHOLE, *(f"{probe}.{part}" for probe in _PROBES for part in _PARTS), "tags")
"""What a column can be: a field of an edit line, or a part of a single probe."""
SHOWN = 20
"""Columns that a hint names."""
PLACEHOLDER = "<image>"
"""The place of an image in a text."""
_PICTURE_FILE = re.compile(r"[^\n]+\.(?:jpe?g|png|webp|gif|bmp|tiff?|ppm)", re.IGNORECASE)
_FILE = "file://"
_BASE64 = ("/9j/", "iVBORw0KGgo")
"""How JPEG and PNG begin in base64, in which there is no dot as in a file's name."""


@dataclass
class Columns:
    """The mapping, and which columns were met."""

    named: Mapping[str, str] = field(default_factory=dict)
    """Field by column, as given."""
    met: set[str] = field(default_factory=set)
    tagged: set[str] = field(default_factory=set)
    """Columns whose values went into `tags`."""

    @classmethod
    def parse(cls, options: Sequence[str]) -> Columns:
        """Read options such as `image=path`: the field `image` is in the column `path`.

        Raises:
            UsageError: not FIELD=COLUMN, no such field, or a column given twice.
        """
        named: dict[str, str] = {}
        for option in options:
            name, equals, column = (part.strip() for part in option.partition("="))
            if not equals or not column:
                raise UsageError(f"`--column {option}` is not FIELD=COLUMN", "for example --column image=path")
            if name not in FIELDS:
                hint = did_you_mean(name, FIELDS) or f"there are {', '.join(FIELDS)}"
                raise UsageError(f"`--column {option}`: no field `{name}`", hint)
            if column in named:
                raise UsageError(f"`--column {option}`: column `{column}` is named twice", "name it once")
            named[column] = name
        return cls(named)

    def check(self) -> None:
        """Refuse a mapping of a column that no row had.

        Raises:
            UsageError: there is such a column.
        """
        for column, name in self.named.items():
            if column not in self.met:
                hint = did_you_mean(column, self.met) or f"there are {', '.join(sorted(self.met)) or 'none'}"
                raise UsageError(f"`--column {name}={column}`: no column `{column}`", hint)

    def edit_line(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row as the fields of an edit line; the reader of edits checks the values.

        Raises:
            DataError: question or target are missing, or a value cannot be what its field needs.
        """
        self.met |= row.keys()
        line, tags, fields = dict[str, Any](), dict[str, Any](), self._fields(row)
        for column, value in row.items():
            name = fields.get(column)
            if _is_empty(value) or (name and name != "tags" and _is_nan(value)):
                continue
            if name == "tags":
                tags |= _tags(column, value)
            elif name:
                _put(line, name, column, value)
            else:
                self.tagged.add(column)
                tags[column] = _json_value(column, value)
        _check_needed(line, fields, row)
        _check_pictures(line, {column: value for column, value in row.items() if column not in fields})
        _remove_places(line)
        line |= {"tags": tags} if tags else {}
        try:
            check_strings(line)
        except ValueError as error:
            raise DataError(str(error), "remove it") from None
        return line

    def _fields(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the field of every column that has one; a name that is spelled as its field comes first."""
        fields = {column: self.named[column] for column in row if column in self.named}
        taken = set(self.named.values())
        for spelled in (str, _spelled):
            found = {column: spelled(column) for column in row if column not in fields}
            free = {column: name for column, name in found.items() if name in FIELDS and name not in taken}
            fields |= free
            taken |= set(free.values())
        return fields


def _spelled(column: str) -> str:
    """Return the field that a column means whose name differs in capital letters or in number."""
    name = column.strip().lower()
    return "image" if name == "images" else name


def _check_needed(line: Mapping[str, Any], fields: Mapping[str, str], row: Mapping[str, Any]) -> None:
    """Check that a line has a question and a target."""
    missing = [name for name in ("question", "target") if name not in line]
    if empty := next((column for column, name in fields.items() if name in missing), None):
        raise DataError(f"`{shorten(empty)}` is empty", f"an edit needs a {fields[empty]}")
    if missing:
        what = "`question` and `target` are missing" if len(missing) > 1 else f"`{missing[0]}` is missing"
        raise DataError(what, _how_to_name(missing, row))


def _check_pictures(line: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Refuse a row without an image where a column that is no field names one: it would become a text-only edit."""
    if line.keys() & {"image", "video", "messages"}:
        return
    for column, value in others.items():
        if isinstance(value, str) and _PICTURE_FILE.fullmatch(value):
            hint = f"say --column image={quoted(column)}, or --column tags={quoted(column)} to keep it as a tag"
            raise DataError(f"`{shorten(column)}` names a picture, and the row has no image", hint)


def _how_to_name(missing: Sequence[str], row: Mapping[str, Any]) -> str:
    options = " ".join(f"--column {name}=COLUMN" for name in missing)
    names = "names its column" if len(missing) == 1 else "name their columns"
    return f"{options} {names}; there are {listed([f'`{shorten(column)}`' for column in row], SHOWN) or 'none'}"


def inner_rows(row: Mapping[str, Any]) -> str:
    """Return how to take out the rows that a file's only object holds; empty if it holds none."""
    if len(row) > 1 and all(isinstance(value, Mapping) for value in row.values()):
        return "if the rows are inside this object, take them out: jq -c '.[]' FILE > rows.jsonl"
    lists = {key: len(value) for key, value in row.items() if isinstance(value, list) and value}
    inner = [key for key in lists if all(isinstance(item, Mapping) for item in row[key]) and key.isidentifier()]
    if not inner:
        return ""
    most = max(inner, key=lists.__getitem__)
    return f"if `{most}` holds the rows, take them out: jq -c '.{most}[]' FILE > rows.jsonl"


def _remove_places(line: dict[str, Any]) -> None:
    """Take the places of images out of a question: an edit's images come before its text."""
    question = line["question"]
    places = question.count(PLACEHOLDER) if isinstance(question, str) else 0
    shown = len(line.get("image", ()))
    if places and places != shown:
        text = f"{counted(places, 'place')} for images in the question, and {counted(shown, 'image')}"
        raise DataError(text, "name one image for each place; --column image=COLUMN names their column")
    if places:
        line["question"] = question.replace(PLACEHOLDER, "").strip()


def _put(line: dict[str, Any], name: str, column: str, value: Any) -> None:
    outer, _, part = name.partition(".")
    if name in line and name in (*_TEXTS, _COUNT):
        raise DataError(f"`{shorten(column)}` and a column before it both give the {name}", "leave one of them out")
    if part:
        probes = line.setdefault(outer, [{}])
        if len(probes) != 1 or not isinstance(probes[0], dict):
            raise DataError(f"`{outer}` and `{shorten(column)}` both give probes", "leave one of the columns out")
        (probe,) = probes
        probe[part] = _image(column, value) if part == "image" else _one(column, value)
    elif name in _TEXTS:
        line[name] = _one(column, value)
    elif name == _COUNT:
        text = str(_one(column, value)).strip()
        line[name] = int(text) if text.isdecimal() else text
    elif name in _WHOLE:
        items = _listed(_parsed(column, value))
        line.setdefault(name, []).extend(message for item in items for message in _messages(name, item))
    else:
        spelled = _image if "image" in name else _one
        line.setdefault(name, []).extend(spelled(column, item) for item in _listed(_parsed(column, value)))


def _messages(name: str, item: Any) -> list[Any]:
    """Return an earlier round as two messages, where it is spelled as a pair of question and answer."""
    if name != "messages" or not isinstance(item, list) or list(map(type, item)) != [str, str]:
        return [item]
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), item, strict=True)]


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [value]


def _parsed(column: str, value: Any) -> Any:
    """Return a cell's text as a list or an object if it is spelled as one in JSON."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return strict_json(value)
    except ValueError as error:
        raise DataError(f"`{shorten(column)}` is {error}", 'spell a list as JSON, for example ["a", "b"]') from None


def _one(column: str, value: Any) -> Any:
    """Return the text of a field that has one value."""
    if isinstance(value, list):
        if len(value) != 1:
            raise DataError(f"`{shorten(column)}` has {len(value)} values", "keep the one that is right")
        return _one(column, value[0])
    if isinstance(value, bool):
        raise DataError(f"`{shorten(column)}` is {str(value).lower()}, no text", "write it as text, such as yes or no")
    return value if isinstance(value, str | bytes | Mapping) else str(value)


def _image(column: str, value: Any) -> Any:
    """Return an image as an edit line spells it."""
    return _one(column, image_cell(value))


def image_cell(value: Any) -> Any:
    """Return an image as a path or a `data:` URI; it may be bytes, base64, a `file://` path, or an object with one.

    Such an object is how the `datasets` library stores a picture, and how a form logs an uploaded one.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path") or value
    if isinstance(value, bytes):
        return f"data:application/octet-stream;base64,{base64.b64encode(value).decode()}"
    if isinstance(value, str) and value[: len(_FILE)].lower() == _FILE:
        return value[len(_FILE) :]
    if isinstance(value, str) and value.startswith(_BASE64) and "." not in value:
        return f"data:application/octet-stream;base64,{''.join(value.split())}"
    return value


def _tags(column: str, value: Any) -> dict[str, Any]:
    value = _parsed(column, value)
    if isinstance(value, Mapping):
        return {name: _json_value(column, item) for name, item in value.items()}
    return dict.fromkeys(map(str, _listed(value)), True)


def _json_value(column: str, value: Any) -> Any:
    """Return a value as JSON has it: times and other kinds of a table as text."""
    if isinstance(value, bytes):
        raise DataError(f"`{shorten(column)}` holds bytes", "name it as an image (--column image=...) or leave it out")
    if isinstance(value, Mapping):
        return {str(name): _json_value(column, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(column, item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _is_nan(value: Any) -> bool:
    """Return whether a cell is what tables of numbers have in place of a missing one."""
    return isinstance(value, float) and math.isnan(value)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list) and not value)
