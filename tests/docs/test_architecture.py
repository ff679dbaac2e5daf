"""The architecture page: its rooms are the package's, its paths exist, and its examples run."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from more_cli.cli.app import app
from more_cli.editors.registry import EDITORS
from more_cli.evaluation.names import METRICS
from more_cli.model.families import FAMILIES
from support.helpers import QUICK, World, run
from support.tiny import tiny_llava
from support.tiny_families import tiny_family

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MARK = "<!-- not run: tests/docs/test_architecture.py runs it -->"


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def example(title: str) -> str:
    """Return the Python block of a section."""
    (code,) = re.findall(rf"{re.escape(MARK)}\n```python\n(.*?)```", section(title), re.DOTALL)
    return code


def execute(title: str) -> None:
    # A module of its own, not the test's: the page must import what it uses.
    exec(compile(example(title), f"architecture.md, {title}", "exec"), {"__name__": "example"})


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run in a folder of its own, and undo what an example registers."""
    monkeypatch.chdir(tmp_path)
    tables = [(table, dict(table)) for table in (EDITORS, FAMILIES, METRICS)]
    commands = list(app.registered_commands)
    yield
    for table, before in tables:
        table.clear()
        table.update(before)
    app.registered_commands[:] = commands


def test_every_example_is_run_here() -> None:
    titles = re.findall(r"^## (How do I add .*)$", PAGE, re.MULTILINE)
    assert len(titles) == PAGE.count("```python") == PAGE.count(MARK) == 4
    assert all(example(title) for title in titles)


def test_the_rooms_are_those_of_the_layers() -> None:
    rows = [line.split("|")[1] for line in section("Rooms").splitlines() if line.startswith("| `")]
    rooms = [re.findall(r"`(\w+)/?`", row) for row in rows]
    tree = ast.parse((ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8"))
    (layers,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "LAYERS"  # type: ignore[attr-defined]
    ]
    assert [sorted(row) for row in rooms] == [sorted(layer) for layer in reversed(layers)], "the highest first"
    for name in re.findall(r"`(\w+)/`", "".join(rows)):
        assert (ROOT / "more_cli" / name).is_dir(), name


def test_one_edit_passes_seven_modules_before_the_recursion_and_each_function_exists() -> None:
    rows = [line for line in section("One edit, file by file").splitlines() if re.match(r"\| \d", line)]
    paths = [re.findall(r"`([\w/]+\.py)`", row)[0] for row in rows]
    assert len(set(paths) - {"core/recursion.py"}) == 7
    for path, row in zip(paths, rows, strict=True):
        module = importlib.import_module("more_cli." + path.removesuffix(".py").replace("/", "."))
        for name in re.findall(r"`([\w.]+)`", row.split("|")[3]):
            found = module
            for part in name.split("."):
                found = getattr(found, part)


def test_what_is_to_be_found_is_there() -> None:
    rows = [line for line in section("Where to find").splitlines() if "`more_cli/" in line]
    assert len(rows) > 9
    for row in rows:
        for path, name in re.findall(r"`(more_cli/[\w/]+\.py)`(?:, `(\w+))?", row):
            text = (ROOT / path).read_text(encoding="utf-8")
            assert name == "" or re.search(rf"^ *(def )?{name}\b", text, re.MULTILINE), (path, name)


def test_every_file_that_the_page_names_is_there() -> None:
    for path in re.findall(r"`((?:tests|more_cli|recipes)/[\w/.]*)`", PAGE):
        assert (ROOT / path).exists(), path


def test_an_editor(capsys: pytest.CaptureFixture[str]) -> None:
    execute("How do I add an editor")
    assert "rel.tf_exact" in capsys.readouterr().out
    compared = run("compare", "none", "norm", "--suite", "e-vqa", "--limit", 2, "--dtype", "float32", "--json")
    assert compared.code == 0, compared.err
    assert compared.json["editors"]["norm"]["metrics"]["rel.tf_exact"]["value"] > 0, "it learns"
    assert compared.json["differences"]["norm"]["rel.tf_exact"]["difference"] > 0


def test_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_family(tmp_path / "internvl", "internvl")
    monkeypatch.delitem(FAMILIES, "internvl")
    execute("How do I add a backbone")


def test_a_metric() -> None:
    execute("How do I add a metric")
    assert METRICS["tf_first"].mask


def test_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path / "world")
    tiny_llava(tmp_path / "llava")
    assert run("edit", tmp_path / "llava", world.edits(2), *QUICK).code == 3, "too few steps to learn"
    execute("How do I add a command")
    assert '"lines": 2' in capsys.readouterr().out
