"""README is a test: its commands run on the embedded model, its tables say what the code says."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from more_cli.cli.app import EDITS_FAILED, EXIT_CODES, main
from more_cli.demo.files import demo_model_dir
from more_cli.recipe import data_folder, shipped_recipes

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("more ")]


@pytest.mark.slow
def test_the_tour_runs_on_the_embedded_model(tmp_path: Path, monkeypatch, capsys) -> None:
    assert len(COMMANDS) >= 6
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(demo_model_dir(), "llava")
    samples = data_folder("sample_edits")
    shutil.copytree(samples / "images", "images")
    shutil.copy(samples / "edits.jsonl", "edits.jsonl")
    lines = (samples / "anchors.jsonl").read_text().splitlines(keepends=True)
    Path("anchors.jsonl").write_text("".join(lines[::2]))
    Path("regression.jsonl").write_text("".join(lines[1::2]))
    for line in COMMANDS:
        code = main(shlex.split(line, comments=True)[1:])
        captured = capsys.readouterr()
        assert code in (0, EDITS_FAILED) if "--verify" in line else code == 0, f"{line}\n{captured.err}"
        assert captured.out
    assert Path("llava-edited/config.json").is_file()


def test_every_recipe_is_in_the_table() -> None:
    for name in shipped_recipes():
        assert f"`{name}`" in README


def test_the_exit_codes_are_those_of_the_help() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert listed == {
        int(code)
        for code in re.findall(
            r"\b(\d+) (?:done|bug|usage|some|bad|model|a gate|out|inter)", EXIT_CODES.replace("\n", " ")
        )
    }


def test_every_file_it_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
