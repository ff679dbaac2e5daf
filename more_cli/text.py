"""Text: canonical JSON that is hashed and stored, strict JSON that is read, and text that is safe to print."""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

MAX_DEPTH = 32
"""Deepest nesting of lists and objects in JSON that is read."""

_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_JOINERS = "\u200c\u200d"

# Made once: `json.dumps` makes an encoder for each call, and a ledger needs one for every line.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: object) -> str:
    """Return ``value`` as the JSON that is hashed and stored: sorted keys, no spaces, no NaN.

    Raises:
        ValueError: a number is not finite.
    """
    return _CANONICAL.encode(value)


def finite(value: Any) -> Any:
    """Return JSON values with None for every infinity and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def strict_json(text: str) -> object:
    """Parse JSON that can be stored again unchanged: finite numbers, no duplicate field, no control characters.

    Raises:
        ValueError: one sentence that says what is wrong, with the column if it is known.
    """
    try:
        value = json.loads(text, object_pairs_hook=unique_fields, parse_constant=_not_finite, parse_float=_finite_float)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column" if "\n" in text else "column"
        raise ValueError(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}, {where} {error.colno}") from None
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise ValueError(reason_of(error)) from None
    check_strings(value)
    return value


def reason_of(error: Exception) -> str:
    """Return what an exception says within a sentence, without what is for programmers: error numbers and advice."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if "integer string conversion" in str(error):
        return f"a whole number has more than {sys.get_int_max_str_digits():,} digits"
    if isinstance(error, RecursionError):
        return f"nested more than {MAX_DEPTH} levels deep"
    return str(error)


def first_line(error: Exception) -> str:
    """Return the first line of what an exception says; the name of its class if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object; for `object_pairs_hook`.

    Raises:
        ValueError: a field is given twice.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"field `{shorten(twice)}` is given twice")
    return fields


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _not_finite(shorten(text))
    return number


def check_strings(value: object, depth: int = 0) -> None:
    """Check that every text of a JSON value can be stored and printed.

    Raises:
        ValueError: one sentence that says what is wrong.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if match := _UNWANTED.search(value):
            kind = "half a surrogate pair" if "\ud800" <= match[0] <= "\udfff" else "a control character"
            raise ValueError(f"text holds {kind}, U+{ord(match[0]):04X}")
    elif isinstance(value, dict):
        for name, item in value.items():
            check_strings(name, depth + 1)
            check_strings(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            check_strings(item, depth + 1)


def shorten(text: str, limit: int = 60) -> str:
    """Return ``text`` for a message: one printable line of at most ``limit`` characters."""
    line = "".join(letter if letter.isprintable() else "�" for letter in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def quoted(word: object) -> str:
    """Return a word as it is typed in a shell, such as a path with a blank in it."""
    return shlex.quote(str(word))


def nats(limit: float) -> str:
    """Return a limit with its unit, `1 nat` or `0.2 nats`."""
    return f"{limit:g} nat" + "s" * (limit != 1)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 edit`, `2 edits`, `1,024 edits`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(items: Sequence[object], shown: int, separator: str = ", ") -> str:
    """Return the first `shown` items as text, and how many more there are."""
    rest = f" and {len(items) - shown:,} more" if len(items) > shown else ""
    return separator.join(map(str, items[:shown])) + rest


def verb(number: int, one: str, many: str) -> str:
    """Return the verb that a number of things takes, such as `1 of 4 holds`, `2 of 4 hold`."""
    return one if number == 1 else many


def did_you_mean(word: str, known: Iterable[str], closeness: float = 0.6) -> str:
    """Return a hint that names the known word spelled most like this one; empty if none is close (0 to 1)."""
    near = difflib.get_close_matches(word, list(known), 1, closeness)
    return f"did you mean `{near[0]}`?" if near else ""


def is_utf8(name: object) -> bool:
    """Return whether the name of a file is UTF-8: others can neither be stored as text nor named to every library."""
    return not any("\ud800" <= letter <= "\udfff" for letter in str(name))


def plain(text: object) -> str:
    """Return ``text`` on one line, safe for terminals and valid in XML and HTML: what is not seen is an escape.

    A line break is a space, and so is a joiner, which many languages have inside of words.
    """
    said = str(text)
    return said if said.isprintable() else "".join(map(_visible, said))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else " " if letter.isspace() or letter in _JOINERS else _escaped(letter)


def inert(text: str, encoding: str = "utf-8") -> str:
    """Return the same JSON with escapes for what could control a terminal, and for what an encoding may lack."""
    every = encoding.lower().startswith("utf")
    if text.isprintable() and (every or text.isascii()):
        return text
    return "".join(
        letter if letter.isprintable() and (every or letter.isascii()) else _escaped(letter) for letter in text
    )


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def code(text: str) -> str:
    """Return text as a code span that fits a table of Markdown: nothing in it is markup, a link or a mention."""
    # A table is split at its pipes before code spans are read, so pipes are escaped; a backslash before a pipe gets a
    # space, as parsers differ in what two backslashes mean.
    return span(text, 120).replace("\\|", "\\ |").replace("|", "\\|")


def span(text: str, limit: int = 300) -> str:
    """Return text as a code span of Markdown for a line that is no table; empty where nothing is to be seen."""
    shown = shorten(plain(text), limit).strip()
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
