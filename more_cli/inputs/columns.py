"""Which column of a table, or field of a record, becomes which field of an edit line.

A column whose name is that of a field needs no word; what has no field is kept in `tags` under its name.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from more_cli.errors import DataError, UsageError
from more_cli.text import check_strings, did_you_mean, listed, shorten, strict_json

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
        line, tags = dict[str, Any](), dict[str, Any]()
        for column, value in row.items():
            name = self._field(column)
            if _is_empty(value) or (name and name != "tags" and _is_nan(value)):
                continue
            if name == "tags":
                tags |= _tags(column, value)
            elif name:
                _put(line, name, column, value)
            else:
                self.tagged.add(column)
                tags[column] = _json_value(column, value)
        for name in ("question", "target"):
            if name not in line:
                if given := next((column for column in row if self._field(column) == name), None):
                    raise DataError(f"`{shorten(given)}` is empty", f"an edit needs a {name}")
                unnamed = [f"`{shorten(column)}`" for column in row]
                others = listed(unnamed, SHOWN) or "none"
                raise DataError(f"`{name}` is missing", f"--column {name}=COLUMN names its column; there are {others}")
        line |= {"tags": tags} if tags else {}
        try:
            check_strings(line)
        except ValueError as error:
            raise DataError(str(error), "remove it") from None
        return line

    def _field(self, column: str) -> str | None:
        if column in self.named:
            return self.named[column]
        return column if column in FIELDS and column not in self.named.values() else None


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
        line.setdefault(name, []).extend(_listed(_parsed(column, value)))
    else:
        spelled = _image if "image" in name else _one
        line.setdefault(name, []).extend(spelled(column, item) for item in _listed(_parsed(column, value)))


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
    return value if isinstance(value, str | bytes | Mapping) else str(value)


def _image(column: str, value: Any) -> Any:
    """Return an image as an edit line spells it; a cell of the `datasets` library holds its bytes and its path."""
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return f"data:application/octet-stream;base64,{base64.b64encode(value).decode()}"
    return _one(column, value)


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
