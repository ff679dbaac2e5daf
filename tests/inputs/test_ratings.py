"""Files of rated answers: which of them are mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from more_cli.errors import DataError, StreamErrors
from more_cli.inputs.ratings import DOWN, UP, read_ratings


def written(folder: Path, *lines: object) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def rated(rating: object, **others: object) -> dict[str, object]:
    return {"question": "What is it?", "answer": f"a {rating}", "rating": rating, **others}


def test_answers_rated_down_are_mistakes_and_the_others_are_counted(tmp_path: Path) -> None:
    down = [rated(value) for value in (*DOWN, "DOWN", -1, False)]
    up = [rated(value) for value in (*UP, 1, True)]
    none = [rated(value) for value in (None, 0, "")]
    found = read_ratings(written(tmp_path, *down, *up, *none, {"question": "What?", "answer": "x"}))
    assert [mistake.answer for mistake in found.mistakes] == [line["answer"] for line in down]
    assert (found.up, found.unrated) == (len(up), 4)


def test_fields_of_a_log_are_passed_over_and_those_of_a_correction_kept(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": "a red star"},
    ]
    line = rated(-1, image="b.png", messages=turns, target=" star ", comment="no", session=17)
    (mistake,) = read_ratings(written(tmp_path, line, line)).mistakes
    assert mistake.images == ("a.png", "b.png")
    assert [(turn.role, turn.images) for turn in mistake.turns] == [("user", 1), ("assistant", 0)]
    assert (mistake.target, mistake.comment, mistake.line) == ("star", "no", 1)
    other = read_ratings(written(tmp_path, rated(1), line)).mistakes[0]
    assert (other.key, other.line) == (mistake.key, 2), "the same line in another file is the same mistake"


def test_every_problem_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, rated(2), rated("down", question=""), {"question": "What?", "rating": "down"}, [1])
    with pytest.raises(StreamErrors) as error:
        read_ratings(path)
    assert error.value.problems == [
        f"{path}:1: `rating` must be down or up, -1 or 1, or false or true",
        f"{path}:2: `question` is empty",
        f"{path}:3: `answer` is missing",
        f"{path}:4: must be a JSON object, got a list",
    ]
    with pytest.raises(StreamErrors, match="holds no answers"):
        read_ratings(written(tmp_path))
    with pytest.raises(DataError, match="file not found"):
        read_ratings(tmp_path / "none.jsonl")
