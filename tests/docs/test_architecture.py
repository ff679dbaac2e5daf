"""The architecture page: its rooms are the package's, its paths exist, and its examples run."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from more_cli.evaluation.names import METRICS
from more_cli.model.families import FAMILIES
from support.helpers import QUICK, World, run
from support.packages import Packages, outsiders
from support.tiny_families import tiny_family
from test_layers import LABORATORY, TOOL

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "more-norm"
MARK = "<!-- not run: tests/docs/test_architecture.py runs it -->"
EDITOR, FAMILY, METRIC, COMMAND, OPTION, KEY = EXAMPLES = re.findall(r"^## (How do I add .*)$", PAGE, re.MULTILINE)


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def example(title: str) -> str:
    """Return the Python block of a section."""
    (code,) = re.findall(rf"{re.escape(MARK)}\n```python\n(.*?)```", section(title), re.DOTALL)
    return code


def entry_points(title: str) -> dict[str, dict[str, str]]:
    """Return the entry points of a section's TOML block, as `Packages.bring` takes them."""
    (rows,) = re.findall(r"^```toml\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)
    found = tomllib.loads(rows)["project"]["entry-points"]
    return {group.removeprefix("more."): points for group, points in found.items()}


def execute(title: str) -> None:
    """Run an example in a module of its own, not the test's: the page must import what it uses."""
    exec(compile(example(title), f"architecture.md, {title}", "exec"), vars(sys.modules["example"]))


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run in a folder of its own, and undo what an example registers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "example", ModuleType("example"))
    tables = [(table, dict(table)) for table in (FAMILIES, METRICS)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Packages]:
    with outsiders(tmp_path / "site") as found:
        yield found


def rooms(page: str, package: str) -> list[list[str]]:
    """Return the first column of the table of a package's rooms."""
    table = re.search(rf"^\| \w+ of `{package}/?` \|.*\n\|-.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None
    return [re.findall(r"`(\w+/?)`", row.split("|")[1]) for row in table[1].splitlines()]


def test_every_example_is_run_here() -> None:
    assert PAGE.count("```python") == PAGE.count(MARK) == len(EXAMPLES)
    assert all(map(example, EXAMPLES))


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
@pytest.mark.parametrize(("package", "layers"), [("more_cli", TOOL), ("more_lab", LABORATORY)])
def test_the_rooms_are_those_of_the_layers(page: str, package: str, layers: list[list[str]]) -> None:
    found = rooms((ROOT / page).read_text(encoding="utf-8"), package)
    names = [sorted(name.rstrip("/") for name in row) for row in found]
    assert names == [sorted(layer) for layer in reversed(layers)], "the highest first"
    for name in (name for row in found for name in row):
        assert (ROOT / package / name).is_dir() if name.endswith("/") else (ROOT / package / f"{name}.py").is_file()


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
    rows = [line for line in section("Where to find").splitlines() if "`more_" in line]
    assert len(rows) > 9
    for row in rows:
        for path, names in re.findall(r"`(more_\w+/[\w/]+\.py)`((?:, `\w+`)*)", row):
            text = (ROOT / path).read_text(encoding="utf-8")
            for name in re.findall(r"\w+", names):
                assert re.search(rf"^ *(def |class )?{name}\b", text, re.MULTILINE), (path, name)


def test_every_file_that_the_page_names_is_there() -> None:
    for path in re.findall(r"`((?:docs|tests|more_cli|more_lab|recipes)/[\w/.-]*)`", PAGE):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(("title", "file"), [(EDITOR, "editor.py"), (COMMAND, "count.py"), (KEY, "outputs.py")])
def test_the_page_shows_the_example_package(title: str, file: str) -> None:
    assert example(title) == (EXAMPLE / "more_norm" / file).read_text(encoding="utf-8")


def test_the_page_shows_the_entry_points_of_the_example_package() -> None:
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert entry_points(EDITOR) | entry_points(COMMAND) == {
        group.removeprefix("more."): found for group, found in points.items()
    }


def test_an_editor(packages: Packages) -> None:
    packages.bring("more_norm.editor", example(EDITOR), **entry_points(EDITOR))
    compared = run("compare", "none", "norm", "--suite", "e-vqa", "--limit", 2, "--dtype", "float32", "--json")
    assert compared.code == 0, compared.err
    assert compared.json["editors"]["norm"]["metrics"]["rel.tf_exact"]["value"] > 0, "it learns"
    assert compared.json["differences"]["norm"]["rel.tf_exact"]["difference"] > 0


def test_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_family(tmp_path / "internvl", "internvl")
    monkeypatch.delitem(FAMILIES, "internvl")
    execute(FAMILY)


def test_a_metric() -> None:
    execute(METRIC)
    assert METRICS["tf_first"].mask


def test_an_option() -> None:
    execute(OPTION)


def test_a_command_and_a_key(packages: Packages, tmp_path: Path) -> None:
    packages.bring("more_norm.outputs", example(KEY))
    packages.bring("more_norm.count", example(COMMAND), **entry_points(COMMAND))
    world = World(tmp_path / "world")
    assert run("edit", world.model, world.edits(2), *QUICK).code == 3, "too few steps to learn"
    assert run("count", world.model).out == "2 lines\n"
    assert run("count", world.model, "--json").json == {"schema": "more-norm.count/1", "lines": 2}
