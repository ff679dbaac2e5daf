"""`more demo`: its files, and what it does where they are there already."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from more_cli.demo import run as made
from more_cli.demo.files import demo_model_dir, write_files
from more_cli.errors import StateError
from more_cli.inputs.edits import read_edits, read_probes
from more_cli.outputs.evaluations import DemoOutput
from more_cli.recipe.files import data_folder
from support.helpers import run, tree
from support.schemas import differences_of

NAMES = {"llava", "images", "edits.jsonl", "anchors.jsonl", "regression.jsonl"}


def test_files_are_those_that_the_pages_name_and_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "my files"
    done = run("demo", "--files", folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"next: cd '{folder}'"
    assert {path.name for path in folder.iterdir()} == {*NAMES, "FILES"}
    assert tree(folder / "llava") == tree(demo_model_dir())
    assert len(read_edits(folder / "edits.jsonl").edits) == 24
    anchors, asked = (read_probes(folder / name) for name in ("anchors.jsonl", "regression.jsonl"))
    assert (len(anchors), len(asked)) == (22, 18)
    assert not {probe.content for probe in anchors} & {probe.content for probe in asked}


def test_files_that_are_there_stay_as_they_are_and_a_line_says_what_to_type(tmp_path: Path) -> None:
    write_files(tmp_path / "files")
    (tmp_path / "files" / "edits.jsonl").write_text("mine")
    before = tree(tmp_path)
    done = run("demo", "--files", tmp_path / "files")
    (line,) = done.out.splitlines()
    assert (done.code, tree(tmp_path)) == (0, before)
    assert f"`cd {tmp_path}/files`" in line
    assert f"`more demo --files {tmp_path}/files --force`" in line
    assert run("demo", "--files", tmp_path / "files", "--json").json["written"] is False
    assert run("demo", "--files", tmp_path / "files", "--force", "--json").json["written"] is True
    assert (tmp_path / "files" / "edits.jsonl").read_text() != "mine"


@pytest.mark.parametrize("options", [(), ("--files",), ("--force",), ("--files", "--force")])
def test_a_folder_that_no_demo_wrote_is_never_touched(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "llava-edited").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    before = tree(tmp_path)
    done = run("demo", tmp_path / "notes", *options)
    assert (done.code, tree(tmp_path)) == (2, before)
    assert done.err.startswith(f"error: `{tmp_path}/notes` ")


@pytest.mark.slow
def test_an_interrupted_demo_goes_on_and_a_finished_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = tmp_path / "samples" / "sample_edits"
    shutil.copytree(data_folder("sample_edits"), samples)
    (first, *_) = (samples / "edits.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (samples / "edits.jsonl").write_text(first, encoding="utf-8")
    monkeypatch.setattr(made, "data_folder", (tmp_path / "samples").joinpath)
    folder = tmp_path / "demo"

    def full(*_: object) -> None:
        raise StateError("no space", "free some")

    with monkeypatch.context() as patch:
        patch.setattr(made, "merge", full)
        assert run("demo", folder).code == 5
    (folder / "notes.txt").write_text("mine")
    done = run("demo", folder, "--json")
    assert (done.code, done.json["edit"]["applied"], done.json["holding"]) == (0, 0, 1)
    assert differences_of(DemoOutput, done.json) == []

    before = tree(folder)
    again = run("demo", folder)
    (line,) = again.out.splitlines()
    assert (again.code, tree(folder)) == (0, before)
    assert f"`more eval {folder}/llava`" in line
    assert f"`more demo {folder} --force`" in line
    assert (folder / "notes.txt").read_text() == "mine"
