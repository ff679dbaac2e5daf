"""`text`: one spelling for what is stored, strict reading, and messages that steer no terminal."""

from __future__ import annotations

import contextlib
import errno
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from more_cli.text import canonical_json, listed, reason_of, shorten, strict_json


def test_canonical_json_has_one_spelling() -> None:
    assert canonical_json({"b": 1, "a": ["é", None, 0.5]}) == '{"a":["é",null,0.5],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": float("nan")})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1,}', "not JSON: .*, column [89]"),
        ('{"a": 1, "a": 2}', "field `a` is given twice"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ('{"a": -Infinity}', "not a finite number"),
        ('{"a": 1e999}', "1e999 is not a finite number"),
        ('["\\u0000"]', r"a control character, U\+0000"),
        ('["\x9b"]', r"a control character, U\+009B"),
        ('{"\\ud800": 1}', r"half a surrogate pair, U\+D800"),
        ("[" * 40 + "]" * 40, "nested more than 32"),
        ("[" * 200_000, "nested more than 32"),
        ("1" * 5000, "digits"),
    ],
)
def test_strict_json_refuses(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        strict_json(text)


@settings(deadline=None)
@given(st.text())
def test_strict_json_takes_what_can_be_stored_again(text: str) -> None:
    with contextlib.suppress(ValueError):
        value = strict_json(text)
        canonical_json(value).encode()
    with contextlib.suppress(ValueError):
        assert strict_json(json.dumps([text])) == [text]


def test_shorten_is_one_printable_line() -> None:
    assert shorten("a\nb\x1b[31m") == "a�b�[31m"
    assert shorten("x" * 100, 10) == "x" * 9 + "…"


def test_an_error_of_the_system_is_told_without_number_and_path() -> None:
    assert reason_of(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "A/b")) == "no such file or directory"
    assert reason_of(OSError("cannot identify A/b")) == "cannot identify A/b"


def test_a_list_is_cut_where_it_has_too_many_items() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(range(1002), 2, "; ") == "0; 1 and 1,000 more"
