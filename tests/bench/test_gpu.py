"""The page about a GPU is made on a CPU too, from the same code, and says so."""

import json
from pathlib import Path

import pytest
import torch

import gpu


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu")
    assert gpu.main([str(out), "--device", "cpu", "--edits", "2"]) == 0
    return out


def test_every_row_is_there_and_the_page_says_that_no_gpu_was_used(made: Path) -> None:
    (result,) = map(json.loads, (made / "gpu.jsonl").read_text().splitlines())
    assert set(result["rows"]) | set(result["left_out"]) == set(gpu.ROWS)
    assert set(result["left_out"]) <= {"lora"}, "PEFT may be missing"
    assert all(value > 0 for value in result["rows"].values())
    page = (made / "gpu.md").read_text()
    assert "No GPU was used" in page
    assert all(f"| {words} |" in page for words in gpu.ROWS.values())


def test_rows_without_time_are_left_out_by_name(tmp_path: Path) -> None:
    assert gpu.main([str(tmp_path), "--device", "cpu", "--limit", "0"]) == 0
    (result,) = map(json.loads, (tmp_path / "gpu.jsonl").read_text().splitlines())
    assert result["rows"] == {}
    page = (tmp_path / "gpu.md").read_text()
    assert all(f"Left out of tiny: {words} (no time left)." in page for words in gpu.ROWS.values())


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="several devices are here")
def test_one_device_is_not_spread_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([str(tmp_path), "--device-map", "auto"]) == 2
    assert "needs two CUDA devices or more" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
