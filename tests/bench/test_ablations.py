"""The paper's ablations: a sweep of the repository runs in every world, and its rows are compared."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from more_lab.sweep.file import read_sweep


@pytest.fixture
def ablations(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    pytest.importorskip("peft")
    import ablations

    yield ablations
    for name in ("ablations", "panel_runs", "panel_show", "streams"):
        sys.modules.pop(name, None)


def test_every_sweep_is_one_of_every_world_with_its_published_recipe(ablations: ModuleType, tmp_path: Path) -> None:
    for sweep in (path.stem for path in ablations.SWEEPS.glob("*.toml")):
        for world in (*ablations.FAMILIES, *ablations.PANEL):
            found = read_sweep(ablations.sweep_file(sweep, world, [7], tmp_path))
            assert (found.table.seeds, found.table.threads, found.table.protocols) == ((7,), 1, ("final",))
            named = {editor.partition("@")[2] for editor in found.table.editors} - {""}
            assert named <= {ablations.RECIPES.get(world, "paper-llava")}


@pytest.mark.slow
def test_a_sweep_is_run_and_added_once(ablations: ModuleType, tmp_path: Path, monkeypatch, capsys) -> None:
    sweeps = tmp_path / "sweeps"
    sweeps.mkdir()
    text = 'editors = ["more:paper"]\nsuites = ["e-vqa", "e-ic"]\nlimits = [2]\n[settings]\nrank = [8, 4]\n'
    (sweeps / "rank.toml").write_text(text)
    monkeypatch.setattr(ablations, "SWEEPS", sweeps)
    monkeypatch.setattr(ablations, "RESULTS", tmp_path / "results.jsonl")
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["ablations.py", "run", str(tmp_path), "--world", "llava", "--seed", "42"])
        assert ablations.main() == 0
    capsys.readouterr()
    assert [(row["suite"], row["change"]) for row in ablations.rows()] == [
        (suite, change) for suite in ("e-ic", "e-vqa") for change in ("rank=4", "rank=8")
    ]
    monkeypatch.setattr(sys, "argv", ["ablations.py", "show"])
    assert ablations.main() == 0
    shown = capsys.readouterr().out
    assert "| rank | `rank=4` | 2 | " in shown
    assert "| llava | e-vqa | 1 | 2 | " in shown or "| llava | e-vqa | 1 | 1 | " in shown


def test_a_difference_is_paired_by_edit_and_a_mean_over_the_bases_of_both(ablations: ModuleType, monkeypatch) -> None:
    def row(change: str, seed: int, values: list[float]) -> dict:
        named = {label: values for label in ablations.FIVE}
        row = {"sweep": "rank", "world": "A1", "suite": "mistakes", "change": change, "seed": seed, "values": named}
        return row | {"ids": [0, 1]}

    first, other = "rank=32", "rank=8"
    trials = [row(first, 42, [1.0, 0.0]), row(first, 40, [0.0, 0.0]), row(first, 41, [1.0, 1.0])]
    trials += [row(other, 42, [1.0, 1.0]), row(other, 40, [1.0, 1.0])]
    (runs,) = ablations.pairs("rank", trials, other).values()
    assert [len(side) for side in runs] == [2, 2]
    assert ablations.differences(*runs, "Rel") == [0.5, 1.0]
    assert ablations.change([[0.5, 1.0]]).startswith("+75.0 (")
    assert "(+0.0 to" in ablations.change([[0.0] * 99 + [1.0]]), "a difference is no share: its interval has 0"
    assert ablations.change([[0.0, 0.0]]) == "0.0", "where no edit differs there is no interval"
