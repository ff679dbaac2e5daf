"""A suite's file of edits: which of its records are edits of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from more_cli.suites.annotations import read_pool

TURNS = ["what is it ?", "where is it ?"]


@pytest.mark.parametrize(
    "differing",
    [
        pytest.param([{"video": "a.gif"}, {"video": "b.gif"}], id="video"),
        pytest.param([{"video": "a.gif", "frames": count} for count in (2, 3)], id="frames"),
        pytest.param(
            [
                {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a dog"}]}
                for text in TURNS
            ],
            id="earlier turns",
        ),
    ],
)
def test_edits_that_differ_in_what_comes_before_the_question_are_several(
    tmp_path: Path, differing: list[dict[str, object]]
) -> None:
    path = tmp_path / "edits.jsonl"
    lines = [{"question": "what colour is it ?", "target": "red", **more} for more in differing]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0]]))
    pool = read_pool(path, tmp_path)
    assert (len(pool), pool.records) == (2, 3)
