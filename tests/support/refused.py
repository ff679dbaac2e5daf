"""What every refused command has in common."""

from __future__ import annotations

from support.helpers import Result


def assert_refused(result: Result, code: int, *said: str) -> None:
    assert result.code == code, result.err
    assert result.out == ""
    first, *rest = result.err.splitlines()
    assert first.startswith("error: ")
    assert all(text.startswith(("error: ", "hint: ")) for text in rest), result.err
    assert not any(words in result.err for words in ("Value error", "Input should be", "inputs are not")), result.err
    for fragment in said:
        assert fragment in result.err
