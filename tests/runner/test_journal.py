"""The journal of a run: what is damaged in it is measured again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from more_cli.runner.journal import LINES, STATE, RunJournal, read_lines


@pytest.mark.parametrize(
    "header", ["3", "null", '{"steps": "1", "notes": {}}', '{"steps": -1, "notes": {}}', "[" * 9999]
)
def test_a_snapshot_that_does_not_say_how_far_it_is_is_passed_over(tmp_path: Path, header: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / STATE, {"more": header})
    (tmp_path / LINES).write_text('{"t": 1}\n')
    journal = RunJournal(tmp_path)
    with journal.opened():
        assert journal.resume() is None
    assert journal.lines == []


def test_lines_before_one_that_cannot_be_read_count(tmp_path: Path) -> None:
    for bad in ("{", "[" * 100_000):
        (tmp_path / LINES).write_text(f'{{"t": 1}}\n{bad}\n{{"t": 2}}\n')
        assert read_lines(tmp_path) == [{"t": 1}]
