"""The keys of a table that a user fills in, such as a recipe: their values, their meanings, and what is wrong with one.

The table is a pydantic model; the string below a field says what it means.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from more_cli.errors import UsageError
from more_cli.progress import Progress
from more_cli.text import quoted, reason_of, shorten

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

Filled = TypeVar("Filled", bound="BaseModel")

ANY_NAME = '"REGEX"'
"""Stands for a name that the user chooses, such as that of a table `[site."REGEX"]`."""
_PLAIN = {
    "Input should be": "must be",
    "a valid integer": "a whole number",
    "a valid": "a",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    os.PathLike: "a path",
    Mapping: "a mapping",
    Progress: "a function of done, total and text",
}
"""Types in words; all others are text."""


@dataclass(frozen=True)
class Key:
    """One key: what it takes in words, its default (None for none), and its meaning in one or more sentences."""

    takes: str
    default: Any
    meaning: str
    example: Any = None
    """A value that an error shows; None for the default."""


def keys_of(model: type[BaseModel], defaults: BaseModel | None = None, table: str = "") -> dict[str, Key]:
    """Return all keys of a model by name, `table.key` for those of an inner table."""
    keys, docs = dict[str, Key](), meanings(model)
    for name, field in model.model_fields.items():
        key = table + (field.alias or name)
        value = getattr(defaults, name) if defaults else None if field.is_required() else field.default
        if hasattr(field.annotation, "model_fields"):
            keys |= keys_of(typing.cast("type[BaseModel]", field.annotation), value, f"{key}.")
        elif get_origin(field.annotation) is dict:
            keys |= keys_of(get_args(field.annotation)[1], None, f"{key}.{ANY_NAME}.")
        else:
            keys[key] = Key(takes(field), value, docs.get(name, ""), (field.examples or [None])[0])
    return keys


def values_of(table: BaseModel, above: str = "") -> dict[str, Any]:
    """Return the values of a filled table by the names of their keys."""
    values = dict[str, Any]()
    for name, field in type(table).model_fields.items():
        key, value = above + (field.alias or name), getattr(table, name)
        if hasattr(value, "model_dump"):
            values |= values_of(value, f"{key}.")
        elif isinstance(value, dict):
            for inner, each in value.items():
                values |= values_of(each, f'{key}."{inner}".')
        else:
            values[key] = value
    return values


def dotted(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested values by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= dotted(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


def described(table: BaseModel) -> dict[str, tuple[Any, Key]]:
    """Return value and description of every key of a filled table."""
    keys = keys_of(type(table))
    return {
        key: (value, keys[re.sub(r'^(\w+)\.".*"\.', rf"\1.{ANY_NAME}.", key)])
        for key, value in values_of(table).items()
    }


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the string below each field, which says what it means."""
    (body,) = [node for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef)]
    docs = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs


def takes(field: FieldInfo) -> str:
    """Return in words which values a field takes: `a whole number >= 1`."""
    return " ".join([in_words(field.annotation), _bounds(field.metadata)]).rstrip()


def _bounds(metadata: Sequence[Any]) -> str:
    """Return the limits of a number in words: `> 0 and < 1`."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{sign} {bound:g}"
        for item in metadata
        for name, sign in signs.items()
        if (bound := getattr(item, name, None)) is not None
    ]
    return " and ".join(dict.fromkeys(bounds))


def in_words(hint: Any) -> str:
    """Return a type in words, None left out."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        inner = [item for each in arguments[1:] for item in getattr(each, "metadata", ())]
        return "`none`" if arguments[0] is type(None) else f"{in_words(arguments[0])} {_bounds(inner)}".rstrip()
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin in (types.UnionType, typing.Union):
        words = dict.fromkeys(in_words(part) for part in arguments if part is not type(None))
        if "a path" in words:  # a text is one too
            words.pop("text", None)
        return " or ".join(words)
    if origin in (tuple, Sequence, Iterable):
        return f"a list of {_several(in_words(arguments[0]))}"
    return _WORDS.get(origin or hint, "text")


def _several(word: str) -> str:
    plain = word.removeprefix("a ").replace("list of", "lists of", 1)
    return re.sub(r"^(whole number|number|path|mapping)\b", r"\1s", plain)


def spelled(value: Any) -> str:
    """Return a value as TOML; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(spelled, value))}]"
    if isinstance(value, float):
        short = f"{value:g}"
        return short.replace("e+0", "e") if float(short) == value else repr(value)
    if isinstance(value, int):
        return str(value)
    return f"'{value}'" if "\\" in str(value) else f'"{value}"'


def apply_setting(values: dict[str, Any], setting: str) -> None:
    """Put a `key=value`, as typed by the user, into a table of values.

    Raises:
        UsageError: it has no `=` or no key, or its key is inside a key that is no table.
    """
    key, equals, text = setting.partition("=")
    if not (equals and key.strip()):
        missing = "key" if equals else "`=`"
        raise UsageError(
            f"`--set {setting}` has no {missing}", "write --set key=value, for instance --set max_steps=20"
        )
    value: object = text
    with suppress(ValueError):  # no TOML, so it is text; or TOML that cannot be read
        value = parse_toml(f"value = {text}")["value"]
    if odd := put(values, key.strip(), value):
        raise UsageError(f"`--set {setting}`: `{odd}` is no table", f"write --set {odd}=value")


def put(values: dict[str, Any], key: str, value: object) -> str:
    """Put a value at a dotted key into nested tables; return "", or the part of the key that is no table."""
    *parents, leaf = _names(key)
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            return parent
    values[leaf] = value
    return ""


def _names(key: str) -> list[str]:
    """Return the names that a dotted key is made of; TOML allows a dot inside quotes: `site."text.*".step`."""
    if '"' not in key and "'" not in key:
        return key.split(".")
    names, inside = list[str](), dict[str, Any]()
    with suppress(ValueError):
        inside = tomllib.loads(f"{key} = 0")
    while isinstance(inside, dict) and len(inside) == 1:
        ((name, inside),) = inside.items()
        names.append(name)
    return names or [key]


_DOTS = 500
"""Most dots in a line of TOML: tomllib takes time by the square of the parts of a dotted key."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML whose whole numbers have at most 64 bits, as its specification says; Python would take any.

    Raises:
        ValueError: one sentence that says what is wrong.
    """
    if any(line.count(".") > _DOTS for line in text.split("\n")):
        raise ValueError(f"has more than {_DOTS} dots in a line")
    try:
        values = tomllib.loads(text)
        _check_numbers(values)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's own, about digits
        raise ValueError("holds a whole number of more than 64 bits") from None
    return values


def toml_problem(path: Path, text: str, error: Exception) -> str:
    """Return what is wrong with a TOML file, with its line where that is known."""
    found = re.fullmatch(r"(.+) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
    if found is None:
        return f"{path}: {reason_of(error)}"
    what, line, column = found.groups()
    where = f"column {column}" if line else "at the end of the file"
    return f"{path}:{line or text.rstrip().count(chr(10)) + 1}: not TOML: {what[:1].lower()}{what[1:]}, {where}"


def _check_numbers(value: object) -> None:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_numbers(item)


def filled(
    model: type[Filled],
    values: Mapping[str, Any],
    where: str | Callable[[str], str],
    *,
    listed: str = "",
    typed: Sequence[str] = (),
) -> Filled:
    """Return a table filled with these values.

    `where` names the table or, by its name, the place of a key; `listed` says where its keys are listed, and `typed`
    are the values that come from `--set`.

    Raises:
        UsageError: it names everything that is wrong.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, model, where, listed, typed) from None


def _refusal(
    error: ValidationError,
    model: type[BaseModel],
    where: str | Callable[[str], str],
    listed: str,
    typed: Sequence[str],
) -> UsageError:
    keys = keys_of(model)
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for problem in error.errors(include_url=False):
        name, key = _named(problem["loc"], keys)
        if problem["type"] == "extra_forbidden":
            found.setdefault((name, ""), (f"there is no key `{shorten(name)}`", _near(name, keys)))
        elif key is not None and problem["type"] == "missing":
            found.setdefault((name, ""), (f"`{name}` is missing; it takes {key.takes}", ""))
        elif key is not None:
            found.setdefault((name, ""), (_misfit(name, key, problem["input"]), _example(name, key, typed)))
        elif problem["type"] == "value_error":
            found.setdefault((name, problem["msg"]), (f"`{name}`: " * bool(name) + plain_problem(problem), ""))
        else:
            inner = ", ".join(other for other in keys if other.startswith(f"{name}."))
            found.setdefault((name, ""), (f"`{name}` is a table; its keys are {inner}", ""))
    hint = next((hint for _, hint in found.values() if hint), "")
    lines = [f"{where if isinstance(where, str) else where(name)}: {text}" for (name, _), (text, _) in found.items()]
    return UsageError("\nerror: ".join(lines), f"{hint} {listed}".lstrip())


def _named(place: tuple[int | str, ...], keys: Mapping[str, Key]) -> tuple[str, Key | None]:
    """Return the name at the place of a problem and, if it is a key, that key; a place may lie inside a key's value."""
    parts = list(map(str, place))
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        known = ".".join((parts[0], ANY_NAME, *parts[2:end]))
        if name in keys or known in keys:
            return name, keys.get(name) or keys[known]
    return ".".join(parts), None


def _near(name: str, keys: Mapping[str, Key]) -> str:
    """Return a hint with the keys that were probably meant: spelled alike, or else explained with this word."""
    table, _, word = name.rpartition(".")
    inside = [key for key in keys if key.startswith(f"{table}.")] or list(keys)
    short = {key.rpartition(".")[2]: key for key in reversed(inside)}
    near = difflib.get_close_matches(name, keys, 1, 0.85)
    near = near or [short[other] for other in difflib.get_close_matches(word, short, 3, 0.7)]
    if not near and len(word) > 2:
        near = [key for key in inside if re.search(rf"\b{re.escape(word)}\b", keys[key].meaning)][:1]
    return f"did you mean {' or '.join(f'`{key}`' for key in near)}?" if near else ""


def _misfit(name: str, key: Key, value: object) -> str:
    if value == "":
        return f"`{name}` has no value; it takes {key.takes}"
    text = value if isinstance(value, str) else spelled(value) if not isinstance(value, dict) else "a table"
    return f"`{name}` cannot be `{shorten(text)}`; it takes {key.takes}"


def _example(name: str, key: Key, typed: Sequence[str]) -> str:
    value = key.default if key.example is None else key.example
    if value is None:
        return ""
    given = {setting.partition("=")[0].strip() for setting in typed}
    if name in given:
        return f"for example --set {quoted(f'{name}={spelled(value)}')};"
    return f"for example {name} = {spelled(value)};"


def plain_problem(problem: Mapping[str, Any]) -> str:
    """Return what pydantic found in plain words, without the value: `must be a whole number`."""
    text = re.sub(r"^Value error, |, (unable to|got) .*$", "", problem["msg"])
    for words, plain in _PLAIN.items():
        text = text.replace(words, plain)
    return text[:1].lower() + text[1:]
